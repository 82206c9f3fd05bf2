"""Blocks: attention and gated MLP, with the parts that llama does not use."""

from __future__ import annotations

import pytest
from tests.unit.model.programs import first_of, one_span

from plait.model.blocks import AttentionShape, attention, gated_mlp
from plait.model.builder import ProgramBuilder
from plait.model.ops import Activation, Add, Attend, Glu, Linear, Norm, Rope, op_name
from plait.model.program import Program
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL, Visibility, window

ROPE = RopeSpec(1e4, 4, 64)


def attention_program(shape: AttentionShape, visibility: Visibility = CAUSAL) -> Program:
    def build(b: ProgramBuilder) -> None:
        group = b.kv_group("full", 1, shape.kv_heads, shape.head_dim)
        b.sample(b.select(attention(b, b.embed("embed", 32, 8), "layers.0", shape, visibility, group, 0)))

    return one_span(build)


def test_head_norms_stand_between_projection_and_rope() -> None:
    program = attention_program(AttentionShape(2, 1, 4, ROPE, 1e-5, head_norm=True))
    names = [op_name(op) for op in program.ops]
    assert names[1:9] == ["Norm", "Linear", "Linear", "Linear", "Norm", "Norm", "Rope", "Rope"]
    norms = [op for op in program.ops if isinstance(op, Norm)][1:]
    assert [(op.weight, op.parts) for op in norms] == [("layers.0.q_norm", 2), ("layers.0.k_norm", 1)]
    assert program.weights["layers.0.q_norm"].shape == (4,)


def test_attention_without_rope_rotates_nothing() -> None:
    program = attention_program(AttentionShape(2, 1, 4, None, 1e-5))
    assert not any(isinstance(op, Rope) for op in program.ops)


def test_heads_may_be_wider_together_than_the_residual() -> None:
    program = attention_program(AttentionShape(4, 2, 4, ROPE, 1e-5))
    assert program.weights["layers.0.q"].shape == (16, 8)
    assert program.weights["layers.0.o"].shape == (8, 16)


def test_attention_sees_what_it_is_told_to_see() -> None:
    program = attention_program(AttentionShape(2, 1, 4, ROPE, 1e-5), window(3))
    assert first_of(program, Attend).visibility == window(3)


@pytest.mark.parametrize(("qkv", "out"), [(True, False), (False, True), (False, False)])
def test_biases_of_inputs_and_output_are_separate(qkv: bool, out: bool) -> None:
    program = attention_program(AttentionShape(2, 1, 4, ROPE, 1e-5, qkv_bias=qkv, out_bias=out))
    given = {op.weight.removeprefix("layers.0."): op.bias is not None for op in program.ops if isinstance(op, Linear)}
    assert given == {"q": qkv, "k": qkv, "v": qkv, "o": out}


def mlp_program(*, bias: bool = False) -> Program:
    def build(b: ProgramBuilder) -> None:
        x = b.embed("embed", 32, 8)
        b.sample(b.select(gated_mlp(b, x, "layers.0", 12, Activation.GELU_TANH, 1e-5, bias=bias)))

    return one_span(build)


def test_a_gated_mlp_multiplies_its_activated_gate() -> None:
    program = mlp_program()
    glu = first_of(program, Glu)
    gate, up = (op for op in program.ops if isinstance(op, Linear) and program.values[op.output].width == 12)
    assert glu.inputs == (gate.output, up.output)
    assert (gate.weight, up.weight, glu.activation) == ("layers.0.gate", "layers.0.up", Activation.GELU_TANH)


def test_a_gated_mlp_adds_to_what_it_was_given() -> None:
    program = mlp_program()
    add = first_of(program, Add)
    down = [op for op in program.ops if isinstance(op, Linear)][-1]
    assert add.inputs == (0, down.output)


def test_all_projections_of_an_mlp_have_a_bias_or_none() -> None:
    biased = [op.bias for op in mlp_program(bias=True).ops if isinstance(op, Linear)]
    assert biased == ["layers.0.gate_bias", "layers.0.up_bias", "layers.0.down_bias"]
    assert [op.bias for op in mlp_program().ops if isinstance(op, Linear)] == [None] * 3
