"""Blocks: attention, MLPs and the frame around layers, with the parts that llama does not use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.model.programs import first_of, tiny

from plait.model.blocks import Layer, QkNorm, decoder
from plait.model.model_config import ModelConfig
from plait.model.ops import (
    Act,
    Activation,
    Add,
    Attend,
    Embed,
    Glu,
    Linear,
    Norm,
    NormKind,
    Rope,
    Sample,
    ValueId,
    op_name,
)
from plait.model.program import Program
from plait.model.rope import LongScaling, RopeSpec, YarnScaling
from plait.model.visibility import CAUSAL, window

ROPE = RopeSpec(1e4, 4, 64)


def attention_program(config: ModelConfig, qk_norm: QkNorm = QkNorm.NONE) -> Program:
    return decoder(config, lambda layer, x: layer.attention(x, qk_norm))


def test_head_norms_stand_between_projection_and_rope() -> None:
    program = attention_program(tiny(CAUSAL), QkNorm.HEADS)
    names = [op_name(op) for op in program.ops]
    assert names[1:8] == ["Linear", "Linear", "Linear", "Norm", "Norm", "Rope", "Rope"]
    norms = [op for op in program.ops if isinstance(op, Norm)][:2]
    assert [(op.weight, op.parts) for op in norms] == [("layers.0.q_norm", 2), ("layers.0.k_norm", 1)]
    assert program.weights["layers.0.q_norm"].shape == (4,)


def test_a_norm_over_the_whole_width_has_a_weight_for_every_column() -> None:
    program = attention_program(tiny(CAUSAL), QkNorm.WIDTH)
    norms = [op for op in program.ops if isinstance(op, Norm)][:2]
    assert [op.parts for op in norms] == [1, 1]
    assert program.weights["layers.0.q_norm"].shape == (8,)
    assert program.weights["layers.0.k_norm"].shape == (4,)


def test_a_layer_without_positions_rotates_nothing_and_is_a_kind_of_its_own() -> None:
    program = attention_program(replace(tiny(CAUSAL, CAUSAL), unrotated_layers=(1,)))
    assert sum(isinstance(op, Rope) for op in program.ops_of(program.spans[1])) == 2
    assert not any(isinstance(op, Rope) for op in program.ops_of(program.spans[2]))
    assert [span.kind for span in program.spans[1:3]] == ["layer", "layer unrotated"]


def test_windowed_layers_have_the_rotary_table_that_is_theirs() -> None:
    local = RopeSpec(100.0, 4, 64)
    program = attention_program(replace(tiny(window(3), CAUSAL), local_rope=local))
    assert first_of(program, Attend).visibility == window(3)
    assert [op.spec.theta for op in program.ops if isinstance(op, Rope)] == [100.0, 100.0, 10_000.0, 10_000.0]


@pytest.mark.parametrize(
    "scaling", [YarnScaling(4.0, 16, 1.5), LongScaling((1.0, 2.0), (3.0, 4.0), 16, 1.5)], ids=["yarn", "long"]
)
def test_a_scaling_with_a_magnitude_multiplies_queries_and_keys(scaling: YarnScaling | LongScaling) -> None:
    program = attention_program(replace(tiny(CAUSAL), rope=RopeSpec(1e4, 4, 64, scaling)))
    assert [op.mscale for op in program.ops if isinstance(op, Rope)] == [1.5, 1.5]


def test_heads_may_be_wider_together_than_the_residual() -> None:
    program = attention_program(replace(tiny(CAUSAL), num_heads=4, num_kv_heads=2))
    assert program.weights["layers.0.q"].shape == (16, 8)
    assert program.weights["layers.0.o"].shape == (8, 16)


def test_scores_are_scaled_and_capped_as_the_config_says() -> None:
    op = first_of(attention_program(replace(tiny(CAUSAL), attention_scale=0.3, attention_softcap=20.0)), Attend)
    assert (op.scale, op.softcap) == (0.3, 20.0)
    assert first_of(attention_program(tiny(CAUSAL)), Attend).scale == 0.5


@pytest.mark.parametrize(("qkv", "out"), [(True, False), (False, True), (False, False)])
def test_biases_of_inputs_and_output_are_separate(qkv: bool, out: bool) -> None:
    program = attention_program(replace(tiny(CAUSAL), qkv_bias=qkv, out_bias=out))
    linears = [op for op in program.ops if isinstance(op, Linear)][:-1]
    given = {op.weight.removeprefix("layers.0."): op.bias is not None for op in linears}
    assert given == {"q": qkv, "k": qkv, "v": qkv, "o": out}


def mlp_program(config: ModelConfig) -> Program:
    def write(layer: Layer, x: ValueId) -> ValueId:
        return layer.add(layer.attention(x), layer.gated_mlp(x))

    return decoder(config, write)


def test_a_gated_mlp_multiplies_its_activated_gate() -> None:
    program = mlp_program(replace(tiny(CAUSAL), activation=Activation.GELU_TANH))
    glu = first_of(program, Glu)
    gate, up = (op for op in program.ops if isinstance(op, Linear) and program.values[op.output].width == 12)
    assert glu.inputs == (gate.output, up.output)
    assert (gate.weight, up.weight, glu.activation) == ("layers.0.gate", "layers.0.up", Activation.GELU_TANH)


def test_an_mlp_without_a_gate_activates_what_goes_up() -> None:
    program = decoder(tiny(CAUSAL), lambda layer, x: layer.mlp(layer.attention(x)))
    act = first_of(program, Act)
    up = next(op for op in program.ops if isinstance(op, Linear) and op.weight == "layers.0.up")
    assert act.inputs == (up.output,)
    assert "layers.0.gate" not in program.weights


def test_what_is_added_to_the_residual_may_be_scaled() -> None:
    add = first_of(mlp_program(replace(tiny(CAUSAL), residual_scale=0.25)), Add)
    assert add.factor == 0.25


def test_all_projections_of_an_mlp_have_a_bias_or_none() -> None:
    biased = [op.bias for op in mlp_program(replace(tiny(CAUSAL), mlp_bias=True)).ops if isinstance(op, Linear)]
    assert biased[4:7] == ["layers.0.gate_bias", "layers.0.up_bias", "layers.0.down_bias"]


def test_embeddings_and_logits_are_scaled_as_the_config_says() -> None:
    program = mlp_program(replace(tiny(CAUSAL), embed_scale=3.0, logit_scale=0.5, logit_softcap=30.0))
    sample = first_of(program, Sample)
    assert (first_of(program, Embed).scale, sample.logit_scale, sample.softcap) == (3.0, 0.5, 30.0)


def test_norms_are_of_the_configs_kind_and_offset() -> None:
    program = decoder(tiny(CAUSAL), lambda layer, x: layer.attention(layer.norm(x, "attn_norm")))
    assert {(op.kind, op.offset, op.bias) for op in program.ops if isinstance(op, Norm)} == {(NormKind.RMS, 0.0, None)}
    config = replace(tiny(CAUSAL), norm_kind=NormKind.LAYER, norm_offset=1.0)
    program = decoder(config, lambda layer, x: layer.attention(layer.norm(x, "attn_norm")))
    norms = [op for op in program.ops if isinstance(op, Norm)]
    assert {(op.kind, op.offset) for op in norms} == {(NormKind.LAYER, 1.0)}
    assert [op.bias for op in norms] == ["layers.0.attn_norm_bias", "final_norm_bias"]
