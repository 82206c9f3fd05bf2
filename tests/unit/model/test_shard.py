"""Sharding: each rank gets its part, sums stand where parts meet, and what cannot be cut is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.model.programs import (
    LLAMA_8B,
    expert_span,
    first_of,
    hybrid_program,
    one_span,
    step,
    tiny,
    tiny_program,
)

from plait.core.errors import ModelError
from plait.core.ids import GroupId
from plait.model.builder import ProgramBuilder
from plait.model.cost import Formats, Parallel
from plait.model.llama import llama_program
from plait.model.ops import Activation, AllReduce, Attend, Experts, Linear, Norm, PoolKind, Rope, Space, op_name
from plait.model.program import CacheGroup, GroupKind, Program
from plait.model.rope import RopeSpec
from plait.model.shard import shard
from plait.model.visibility import ALL


def four_heads(tied: bool = True) -> Program:
    """Four query heads over two KV heads of 2 columns: divides by two ranks."""
    config = replace(tiny(tied=tied), num_heads=4, num_kv_heads=2, head_dim=2, rope=RopeSpec(1e4, 2, 64))
    return llama_program(config)


def linears(program: Program) -> dict[str, tuple[int, int]]:
    """(input, output) columns of each product, by weight."""
    values = program.values
    return {
        op.weight: (values[op.inputs[0]].width, values[op.output].width) for op in program.ops if isinstance(op, Linear)
    }


def test_one_rank_has_the_program_itself() -> None:
    program = four_heads()
    assert shard(program, 1) is program


def test_two_ranks_halve_heads_columns_and_vocabulary() -> None:
    program = shard(four_heads(tied=False), 2)
    widths = linears(program)
    assert [widths[f"layers.0.{name}"] for name in "qkvo"] == [(8, 4), (8, 2), (8, 2), (4, 8)]
    assert [widths[f"layers.0.{name}"] for name in ("gate", "up", "down")] == [(8, 6), (8, 6), (6, 8)]
    assert widths["head"] == (8, 16)
    attend, rope = first_of(program, Attend), first_of(program, Rope)
    assert (attend.heads, attend.kv_heads, rope.heads) == (2, 1, 2)
    assert (program.cache_groups[0].num_kv_heads, program.cache_groups[0].num_layers) == (1, 2)


def test_weights_of_a_rank_have_the_shapes_of_its_part() -> None:
    whole, part = four_heads(tied=False).weights, shard(four_heads(tied=False), 2).weights
    assert list(part) == list(whole)
    assert part["layers.1.q"].shape == (4, 8)
    assert part["layers.1.down"].shape == (8, 6)
    assert part["embed"].shape == part["head"].shape == (16, 8)
    assert part["layers.1.attn_norm"].shape == (8,)


def test_sums_stand_behind_the_table_and_both_halves_of_a_layer() -> None:
    program = shard(four_heads(), 2)
    before = [op_name(program.ops[i - 1]) for i, op in enumerate(program.ops) if isinstance(op, AllReduce)]
    assert before == ["Embed", "Linear", "Linear", "Linear", "Linear"]
    weights = [
        op.weight
        for op, after in zip(program.ops, program.ops[1:], strict=False)
        if isinstance(op, Linear) and isinstance(after, AllReduce)
    ]
    assert weights == ["layers.0.o", "layers.0.down", "layers.1.o", "layers.1.down"]
    assert {op.ranks for op in program.ops if isinstance(op, AllReduce)} == {2}


def test_a_rank_keeps_only_the_whole_residual_between_spans() -> None:
    program = shard(four_heads(), 2)
    program.validate()
    for span in program.spans[:-1]:
        assert [program.values[value].width for value in span.live_out] == [8]
    assert [span.kind for span in program.spans] == ["embed", "layer", "layer", "head"]


def test_all_ranks_together_compute_what_one_would() -> None:
    program, shape = llama_program(LLAMA_8B), step((100, 1), (0, 64))
    for kind in ("Linear", "Attend", "Rope", "Glu"):
        alone = sum(c.count * c.flops for c in program.cost(shape) if c.kind == kind)
        part = sum(c.count * c.flops for c in program.cost(shape, parallel=Parallel(tensor=8)) if c.kind == kind)
        assert 8 * part == alone


def test_a_rank_of_eight_holds_an_eighth_of_the_cache() -> None:
    program = shard(llama_program(LLAMA_8B), 8)
    assert program.cache_groups[0].bytes_per_token(2) == 131_072 / 8


def test_communication_of_a_step_is_that_of_its_sums() -> None:
    program, rows = llama_program(LLAMA_8B), 16
    costs = program.cost(step((0, rows)), Formats(activation_bytes=2.0), Parallel(tensor=8))
    sent = sum(cost.count * cost.comm_bytes for cost in costs)
    assert sent == (2 * 32 + 1) * 2 * 7 / 8 * rows * 4096 * 2
    assert all(cost.comm_bytes == 0 for cost in costs if cost.kind != "AllReduce")


def test_a_program_on_one_device_communicates_nothing() -> None:
    costs = llama_program(LLAMA_8B).cost(step((0, 16)), parallel=Parallel(tensor=1))
    assert sum(cost.comm_bytes for cost in costs) == 0


def test_norms_of_single_heads_are_divided_with_the_heads() -> None:
    def build(b: ProgramBuilder) -> None:
        x = b.linear(b.embed("embed", 32, 8), "q", 8, shard_axis=0)
        x = b.norm(x, "q_norm", 1e-5, parts=4)
        b.sample(b.linear(b.linear(b.select(x), "o", 8, shard_axis=1), "head", 32, shard_axis=0))

    program = shard(one_span(build), 2)
    assert first_of(program, Norm).parts == 2
    assert program.weights["q_norm"].shape == (2,)


def test_experts_are_divided_by_columns() -> None:
    def build(b: ProgramBuilder) -> None:
        b.pool(b.select(expert_span(b, "layers.0", b.embed("embed", 32, 8))), PoolKind.MEAN)

    program = shard(one_span(build), 2)
    assert first_of(program, Experts).ffn_hidden == 3
    assert program.weights["layers.0.experts.3.up"].shape == (3, 8)
    assert program.weights["layers.0.experts.3.down"].shape == (8, 3)
    assert program.weights["layers.0.router"].shape == (4, 8)


def test_cross_attention_is_divided_though_another_program_writes_its_keys() -> None:
    def build(b: ProgramBuilder) -> None:
        cross = b.group(CacheGroup(GroupId(0), "cross", GroupKind.CROSS, 1, 2, 4, 4, max_rows=6))
        q = b.linear(b.embed("embed", 32, 8), "q", 16, shard_axis=0)
        y = b.linear(b.attend(q, cross, 0, 4, visibility=ALL), "o", 8, shard_axis=1)
        b.sample(b.linear(b.select(y), "head", 32, shard_axis=0))

    program = shard(one_span(build), 2)
    assert program.cache_groups[0].num_kv_heads == 1
    assert first_of(program, Attend).heads == 2


def test_attention_among_the_rows_of_an_image_is_divided_too() -> None:
    def build(b: ProgramBuilder) -> None:
        x = b.input(Space.ENCODER, 8, "patches")
        q, k, v = (b.linear(x, name, 8, shard_axis=0) for name in "qkv")
        b.tap(b.linear(b.attend_values(q, k, v, 4, 4, ALL), "o", 8, shard_axis=1), "image")

    program = shard(one_span(build), 2)
    attend = first_of(program, Attend)
    assert (attend.heads, attend.kv_heads) == (2, 2)
    assert [op_name(op) for op in program.ops[-2:]] == ["AllReduce", "Tap"]


def refusal(program: Program, ranks: int) -> str:
    with pytest.raises(ModelError) as caught:
        shard(program, ranks)
    text = str(caught.value)
    assert text.startswith(f"model {program.name} cannot run on {ranks} ranks: ")
    assert text.endswith("; choose another number of ranks")
    return text


def test_sizes_that_do_not_divide_are_named() -> None:
    assert "1 heads do not divide evenly" in refusal(tiny_program(), 2)
    assert "4 heads do not divide evenly" in refusal(four_heads(), 3)


def test_states_are_not_divided_yet() -> None:
    assert "Conv cannot be cut among ranks" in refusal(hybrid_program(), 2)


def test_a_bias_that_every_rank_would_add_is_refused() -> None:
    program = llama_program(replace(tiny(), num_kv_heads=2, out_bias=True))
    assert "bias layers.0.o_bias would be added once by every rank" in refusal(program, 2)


def test_whole_rows_are_not_normed_in_parts() -> None:
    def build(b: ProgramBuilder) -> None:
        x = b.linear(b.embed("embed", 32, 8), "q", 8, shard_axis=0)
        b.sample(b.select(b.norm(x, "norm", 1e-5)))

    assert "Norm cannot be cut among ranks" in refusal(one_span(build), 2)


def test_cut_rows_are_not_mixed_with_whole_ones() -> None:
    def build(b: ProgramBuilder) -> None:
        x = b.embed("embed", 32, 8)
        b.sample(b.select(b.add(x, b.linear(x, "up", 8, shard_axis=0))))

    assert "Add mixes rows that are cut among ranks with rows that are not" in refusal(one_span(build), 2)


def test_a_product_over_cut_rows_needs_a_weight_cut_along_its_inputs() -> None:
    def build(b: ProgramBuilder) -> None:
        x = b.linear(b.embed("embed", 32, 8), "up", 8, shard_axis=0)
        b.sample(b.linear(b.select(b.act(x, Activation.SILU)), "head", 32))

    assert "weight head is cut along axis None but its rows are cut" in refusal(one_span(build), 2)


def test_padding_lets_a_vocabulary_be_cut_that_would_not_divide() -> None:
    odd = replace(tiny(), num_kv_heads=2, vocab_size=33)
    assert "33 columns of embed do not divide evenly" in refusal(llama_program(odd), 2)
    program = shard(llama_program(replace(odd, padding_rows=3)), 2)
    assert linears(program)["embed"] == (8, 18)
    assert program.vocab_size == 33


def test_a_view_of_cut_rows_is_refused() -> None:
    def build(b: ProgramBuilder) -> None:
        x = b.linear(b.embed("embed", 32, 8), "up", 8, shard_axis=0)
        b.sample(b.select(b.act(b.view(x, 0, 4, "half"), Activation.SILU)))

    assert "half is a view of rows that are cut among ranks" in refusal(one_span(build), 2)
