"""The rwkv7 family: what its configuration is read from, and what its program keeps."""

from __future__ import annotations

import pytest
from tests.unit.model.programs import RWKV, rwkv_program

from plait.core.errors import ModelError
from plait.model.config import config_from_hf
from plait.model.model_config import RwkvRanks
from plait.model.ops import Norm, NormKind, Scan, Shift
from plait.model.program import GroupKind, expected_weights


def complaint(**changed: object) -> str:
    with pytest.raises(ModelError) as caught:
        config_from_hf({**RWKV, **changed})
    return str(caught.value)


def test_a_configuration_of_flash_linear_attention_is_read() -> None:
    config = config_from_hf(RWKV)
    assert (config.num_heads, config.head_dim, config.hidden) == (2, 4, 8)
    assert config.rwkv == RwkvRanks(decay=3, rate=2, value=5, gate=6)
    assert config.unrotated_layers == (0, 1, 2)


def test_ranks_that_a_file_leaves_out_follow_from_the_width() -> None:
    bare = {key: value for key, value in RWKV.items() if not key.endswith("_low_rank_dim")}
    wide = {**bare, "hidden_size": 2048, "head_dim": 64, "intermediate_size": None}
    config = config_from_hf(wide)
    assert config.rwkv == RwkvRanks(decay=128, rate=128, value=64, gate=224)
    assert config.ffn_hidden == 8192


def test_heads_may_be_counted_instead_of_measured() -> None:
    assert config_from_hf({**RWKV, "head_dim": None, "num_heads": 4}).head_dim == 2
    assert "hidden_size is 8, which does not divide into num_heads 3" in complaint(head_dim=None, num_heads=3)


def test_what_the_program_does_not_do_is_refused_by_name() -> None:
    assert "attn is" in complaint(attn={"layers": [1]})
    assert "norm_first is False" in complaint(norm_first=False)
    assert "norm_bias is False" in complaint(norm_bias=False)
    assert "hidden_act is 'relu'" in complaint(hidden_act="relu")
    assert "value_dim is not hidden_size, 8" in complaint(value_dim=[8, 16, 8])
    assert "width 8 does not divide into heads of 3" in complaint(head_dim=3)


def test_a_sequence_keeps_one_state_of_three_parts_in_each_layer() -> None:
    (group,) = rwkv_program().cache_groups
    assert (group.kind, group.num_layers, group.state_parts) == (GroupKind.STATE, 3, (8, 2 * 4 * 4, 8))
    assert group.elements_per_token == 0


def test_layers_behind_the_first_have_a_gate_of_its_values() -> None:
    program = rwkv_program()
    weights = expected_weights(program)
    assert [span.kind for span in program.spans] == ["embed", "first layer", "layer", "layer", "head"]
    assert "layers.0.value_up" not in weights
    assert weights["layers.1.value_up"] == (8, 5)
    assert weights["layers.2.mix"] == (6, 8)
    assert weights["layers.2.ffn_mix"] == (1, 8)


def test_what_is_read_from_a_state_is_normed_head_by_head_with_an_epsilon_for_each_column() -> None:
    program = rwkv_program()
    (norm, *_) = [op for op in program.ops if isinstance(op, Norm) and op.weight == "layers.0.read_norm"]
    assert (norm.parts, norm.kind) == (2, NormKind.LAYER)
    assert norm.eps == pytest.approx(4e-5)
    assert sum(isinstance(op, Scan) for op in program.ops) == 3
    assert sum(isinstance(op, Shift) for op in program.ops) == 6
