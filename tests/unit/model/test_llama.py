"""The llama family: which operations stand in which order, and which weights they name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.model.programs import LLAMA_8B, SMOLLM2, tiny, tiny_program

from plait.model.llama import llama_program
from plait.model.ops import (
    Add,
    Attend,
    CacheWrite,
    Linear,
    Norm,
    Op,
    Pairing,
    Rope,
    Space,
    op_name,
    op_weights,
)
from plait.model.program import GroupKind, Program
from plait.model.visibility import CAUSAL, chunk, window

LAYER = """Norm Linear Linear Linear Rope Rope CacheWrite Attend Linear Add
Norm Linear Linear Glu Linear Add"""


def layer(program: Program, number: int) -> tuple[Op, ...]:
    return program.ops_of(next(span for span in program.spans if span.name == f"layers.{number}"))


def test_a_layer_is_attention_then_a_gated_mlp() -> None:
    assert [op_name(op) for op in layer(tiny_program(), 1)] == LAYER.split()


def test_a_layers_weights_in_order_of_use() -> None:
    names = [name for op in layer(tiny_program(), 1) for name in op_weights(op)]
    assert names == [f"layers.1.{name}" for name in ["attn_norm", "q", "k", "v", "o", "ffn_norm", "gate", "up", "down"]]


def test_queries_and_keys_are_rotated_and_values_are_not() -> None:
    program = tiny_program()
    _, q, k, v, rotate_q, rotate_k, write, look, *_ = layer(program, 0)
    assert (rotate_q.inputs, rotate_k.inputs) == ((q.output,), (k.output,))
    assert write.inputs == (rotate_k.output, v.output)
    assert look.inputs == (rotate_q.output,)
    assert isinstance(rotate_q, Rope)
    assert rotate_q.pairing is Pairing.HALF
    assert rotate_q.spec == tiny().rope


def test_both_halves_of_a_layer_add_to_the_residual() -> None:
    ops = layer(tiny_program(), 1)
    first, second = (op for op in ops if isinstance(op, Add))
    previous = layer(tiny_program(), 0)[-1]
    assert first.inputs[0] == previous.output
    assert second.inputs[0] == first.output


def test_the_last_norm_and_the_head_see_only_output_rows() -> None:
    program = tiny_program()
    select, norm, head, sample = program.ops_of(program.spans[-1])
    assert [op_name(op) for op in (select, norm, head, sample)] == ["Select", "Norm", "Linear", "Sample"]
    assert isinstance(norm, Norm)
    assert norm.weight == "final_norm"
    assert all(program.values[op.output].space is Space.OUTPUTS for op in (select, norm, head) if op.output is not None)


def test_every_layer_has_its_own_slot() -> None:
    program = llama_program(SMOLLM2)
    writes = [op for op in program.ops if isinstance(op, CacheWrite)]
    reads = [op for op in program.ops if isinstance(op, Attend)]
    assert [op.slot for op in writes] == [op.slot for op in reads] == list(range(30))


def test_grouped_queries_keep_their_published_shape() -> None:
    op = next(op for op in llama_program(LLAMA_8B).ops if isinstance(op, Attend))
    assert (op.heads, op.kv_heads, op.head_dim_k, op.head_dim_v) == (32, 8, 128, 128)
    assert op.scale == pytest.approx(128**-0.5, rel=1e-15)


def test_layers_with_different_views_get_groups_and_kinds_of_their_own() -> None:
    program = tiny_program(window(8), window(8), CAUSAL, chunk(4), window(8))
    assert [(group.name, group.kind, group.num_layers, group.window) for group in program.cache_groups] == [
        ("window 8", GroupKind.WINDOW, 3, 8),
        ("full", GroupKind.FULL, 1, 0),
        ("chunked 4", GroupKind.CHUNKED, 1, 4),
    ]
    assert [span.kind for span in program.spans[1:-1]] == [
        "layer window 8",
        "layer window 8",
        "layer",
        "layer chunk 4",
        "layer window 8",
    ]
    reads = [(op.group, op.slot) for op in program.ops if isinstance(op, Attend)]
    assert reads == [(0, 0), (0, 1), (1, 0), (2, 0), (0, 2)]


def test_biases_are_named_after_their_weights() -> None:
    program = llama_program(replace(tiny(), qkv_bias=True, out_bias=True, mlp_bias=True))
    biases = [op.bias for op in layer(program, 0) if isinstance(op, Linear)]
    assert biases == [f"layers.0.{name}_bias" for name in ["q", "k", "v", "o", "gate", "up", "down"]]
    assert program.weights["layers.0.q_bias"].shape == (8,)
    assert program.weights["layers.0.k_bias"].shape == (4,)
    assert program.weights["layers.0.down_bias"].shape == (8,)


def test_projections_take_adapters_and_the_head_does_not() -> None:
    linears = [op for op in tiny_program().ops if isinstance(op, Linear)]
    assert [op.adaptable for op in linears] == [True] * 14 + [False]


def test_an_untied_head_is_a_weight_of_its_own() -> None:
    program = tiny_program(tied=False)
    assert program.weights["head"].shape == (32, 8)
    assert program.weights["embed"].shape == (32, 8)


@pytest.mark.parametrize("tied", [True, False])
def test_padding_rows_are_in_the_tables_and_not_in_the_vocabulary(tied: bool) -> None:
    program = llama_program(replace(tiny(tied=tied), padding_rows=3))
    assert program.weights["embed"].shape == (35, 8)
    head = program.ops[-2]
    assert isinstance(head, Linear)
    assert program.weights[head.weight].shape == (35, 8)
    assert program.vocab_size == 32


def test_shard_axes_cut_heads_columns_and_vocabulary() -> None:
    weights = tiny_program(tied=False).weights
    axes = {name.removeprefix("layers.0."): spec.shard_axis for name, spec in weights.items()}
    assert [axes[name] for name in ["embed", "q", "k", "v", "gate", "up", "head"]] == [0] * 7
    assert [axes[name] for name in ["o", "down"]] == [1, 1]
    assert [axes[name] for name in ["attn_norm", "ffn_norm", "final_norm"]] == [None] * 3
