"""Bamba: what its configuration says, what its layers keep, and what is refused by name."""

from __future__ import annotations

import pytest

from plait.core.errors import ModelError
from plait.core.step import ChunkShape, StepShape
from plait.model.config import config_from_hf
from plait.model.families import build_program
from plait.model.mamba2 import Mamba2
from plait.model.ops import Attend, Conv, Norm, Scan
from plait.model.parts import GroupKind
from plait.model.program import Program

CONFIG: dict[str, object] = {
    "model_type": "bamba",
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "attn_layer_indices": [1, 4],
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 5,
}


def program(**changed: object) -> Program:
    return build_program(config_from_hf({**CONFIG, **changed}))


def test_layers_attend_or_keep_a_state() -> None:
    made = program()
    assert [span.kind for span in made.spans[1:-1]] == ["layer state", "layer", "layer state", "layer state", "layer"]
    states, full = made.cache_groups
    assert (states.kind, states.num_layers) == (GroupKind.STATE, 3)
    assert states.state_parts == (3 * (48 + 2 * 2 * 5), 48 * 5)
    assert (full.kind, full.num_layers, full.head_dim_k) == (GroupKind.FULL, 2, 8)
    assert [op.slot for op in made.ops if isinstance(op, Scan)] == [0, 1, 2]
    assert [op.slot for op in made.ops if isinstance(op, Attend)] == [0, 1]


def test_the_mixer_normalises_groups_of_columns_with_weights_of_their_own() -> None:
    made = program()
    norm = next(op for op in made.ops if isinstance(op, Norm) and op.parts > 1)
    assert norm.parts == 2
    assert norm.weight is not None
    assert made.weights[norm.weight].shape == (48,)


def test_half_of_a_head_is_rotated_whatever_the_file_says() -> None:
    assert config_from_hf({**CONFIG, "partial_rotary_factor": 1.0}).rope.rotary_dim == 4
    assert config_from_hf({**CONFIG, "attn_rotary_emb": 4}).rope.rotary_dim == 4


def test_a_width_of_heads_follows_from_their_number() -> None:
    expected = Mamba2((0, 2, 3), 6, 8, 5, 2, 4)
    for changed in ({}, {"mamba_d_head": "auto"}, {"mamba_d_head": 8}):
        assert config_from_hf({**CONFIG, **changed}).mamba2 == expected


def test_biases_and_convolutions_are_as_the_file_says() -> None:
    made = program(mamba_proj_bias=True, mamba_conv_bias=False, mamba_d_conv=2, attention_bias=True)
    for name in ("z_bias", "xbc_bias", "dt_bias", "out_bias"):
        assert f"layers.0.{name}" in made.weights
    assert "layers.0.conv_bias" not in made.weights
    assert "layers.1.q_bias" in made.weights
    assert all(op.width == 2 for op in made.ops if isinstance(op, Conv))


def test_a_checkpoint_in_a_chunk_costs_another_write_of_the_states() -> None:
    made = program()
    plain, kept = (
        sum(cost.cache_write * cost.count for cost in made.cost(StepShape((ChunkShape(0, 64, 1, snapshots),))))
        for snapshots in (0, 1)
    )
    states = made.cache_groups[0]
    assert kept - plain == pytest.approx(states.elements_per_state * 4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mamba_n_heads": 5}, "mamba_n_heads is 5, which does not divide 48 columns"),
        ({"mamba_d_head": 7}, "into heads of 7"),
        ({"mamba_n_groups": 4}, "6 state heads do not share 4 groups evenly"),
        ({"mamba_d_conv": 1}, "mamba_d_conv is 1; it must be a whole number from 2 to 16"),
        ({"attn_layer_indices": [5]}, "attn_layer_indices names layer 5; there are 5"),
        ({"attn_layer_indices": [True]}, "attn_layer_indices is no list of layers"),
        ({"attn_layer_indices": "all"}, "attn_layer_indices is no list of layers"),
        ({"attn_layer_indices": [0, 1, 2, 3, 4]}, "keeps states in some"),
        ({"hidden_act": "gelu"}, "hidden_act is another than silu"),
        ({"attn_rotary_emb": 8}, "attn_rotary_emb is 8; half of a head of 8 columns is rotated"),
        ({"time_step_limit": [0.0, 0.1]}, "time_step_limit bounds steps in time"),
        ({"time_step_limit": [0.001, {"__float__": "Infinity"}]}, "time_step_limit bounds steps in time"),
        ({"num_local_experts": 4}, "mixture-of-experts models are not supported yet"),
    ],
)
def test_what_it_cannot_be_is_refused_by_name(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message.replace("[", r"\[")):
        program(**changed)


def test_steps_in_time_without_bounds_are_read_as_transformers_writes_them() -> None:
    assert program(time_step_limit=[0.0, {"__float__": "Infinity"}]) == program()


def test_a_model_of_states_alone_is_one() -> None:
    assert [group.kind for group in program(attn_layer_indices=None).cache_groups] == [GroupKind.STATE]
