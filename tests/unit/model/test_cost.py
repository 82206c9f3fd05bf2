"""Costs: every formula against loops over rows and keys, and against the numbers that others have published."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.model.programs import (
    LLAMA_8B,
    SMOLLM2,
    cross_program,
    encoder_program,
    first_of,
    hybrid_program,
    one_span,
    step,
    tiny_program,
)

from plait.core.ids import GroupId
from plait.core.step import ChunkShape, StepShape
from plait.model.builder import ProgramBuilder
from plait.model.cost import ACTIVATION_FLOPS, CostSheet, Formats, OpCost, cost_sheet, held_bytes, read_bytes
from plait.model.llama import llama_program
from plait.model.ops import Activation, Attend, Linear, PoolKind
from plait.model.program import CacheGroup, GroupKind, Program, WeightRole
from plait.model.visibility import CAUSAL, Visibility, chunk, window

SUMS = ("flops", "weight_bytes", "cache_read", "cache_write", "activation_bytes", "comm_bytes")

chunks = st.tuples(st.integers(0, 30), st.integers(1, 12)).flatmap(
    lambda c: st.tuples(st.just(c[0]), st.just(c[1]), st.integers(0, c[1]))
)
shapes = st.lists(chunks, min_size=1, max_size=4).map(lambda all_chunks: step(*all_chunks))


def total(costs: Iterable[OpCost], what: str) -> float:
    return sum(cost.count * float(getattr(cost, what)) for cost in costs)


def of_kind(costs: Iterable[OpCost], kind: str) -> list[OpCost]:
    return [cost for cost in costs if cost.kind == kind]


def decode(contexts: Iterable[int]) -> StepShape:
    return step(*((ctx - 1, 1) for ctx in contexts))


def brute_linear_flops(program: Program, shape: StepShape) -> int:
    """Two operations for each row, input and output column of each product."""
    flops = 0
    for op in program.ops:
        if isinstance(op, Linear):
            outputs = program.values[op.output].space == "outputs"
            rows = shape.num_outputs if outputs else shape.num_tokens
            flops += 2 * rows * program.values[op.inputs[0]].width * program.values[op.output].width
    return flops


def brute_attention(program: Program, shape: StepShape, cache_bytes: float) -> tuple[float, float]:
    """(flops, bytes read): row by row, key by key."""
    flops, read = 0.0, 0.0
    for op in program.ops:
        if not isinstance(op, Attend):
            continue
        for part in shape.chunks:
            seen: set[int] = set()
            for slot in range(part.start, part.start + part.num_tokens):
                keys = range(op.visibility.first(slot), slot + 1)
                flops += sum(2 * op.heads * (op.head_dim_k + op.head_dim_v) for _ in keys)
                seen.update(keys)
            read += len(seen) * op.kv_heads * (op.head_dim_k + op.head_dim_v) * cache_bytes
    return flops, read


@pytest.mark.parametrize("rules", [(CAUSAL, CAUSAL), (window(5), window(5), CAUSAL), (chunk(4), CAUSAL)])
@given(shape=shapes)
def test_products_and_attention_equal_loops_over_rows_and_keys(rules: tuple[Visibility, ...], shape: StepShape) -> None:
    program = tiny_program(*rules)
    costs = program.cost(shape, Formats(default_cache_bytes=2.0))
    flops, read = brute_attention(program, shape, cache_bytes=2.0)
    assert total(of_kind(costs, "Linear"), "flops") == brute_linear_flops(program, shape)
    assert total(of_kind(costs, "Attend"), "flops") == flops
    assert total(of_kind(costs, "Attend"), "cache_read") == read
    written = sum(group.bytes_per_token(2.0) for group in program.cache_groups) * shape.num_tokens
    assert total(costs, "cache_write") == written


@given(shape=shapes)
def test_a_kind_priced_once_costs_what_its_spans_cost_apart(shape: StepShape) -> None:
    for program in (tiny_program(window(5), window(5), CAUSAL, CAUSAL), hybrid_program()):
        apart = replace(program, spans=tuple(replace(span, kind=span.name) for span in program.spans))
        for what in SUMS:
            once, each = total(program.cost(shape), what), total(apart.cost(shape), what)
            assert once == pytest.approx(each, rel=1e-12)


def test_spans_of_one_kind_give_one_set_of_records() -> None:
    costs = llama_program(SMOLLM2).cost(decode([100]))
    kinds = list(dict.fromkeys(cost.span_kind for cost in costs))
    assert kinds == ["embed", "layer", "head"]
    assert [len([c for c in costs if c.span_kind == kind]) for kind in kinds] == [1, 16, 4]
    assert {cost.count for cost in costs if cost.span_kind == "layer"} == {30}


@given(shape=shapes, extra=st.integers(1, 5))
def test_splitting_a_chunk_between_steps_changes_no_flops(shape: StepShape, extra: int) -> None:
    program = tiny_program(window(5), CAUSAL)
    first = shape.chunks[0]
    whole = step((first.start, first.num_tokens + extra))
    parts = step((first.start, first.num_tokens), (first.start + first.num_tokens, extra))
    flops = [total(of_kind(program.cost(part), "Attend"), "flops") for part in (whole, parts)]
    assert flops[0] == flops[1]


def test_a_billion_rows_are_priced_without_a_loop() -> None:
    costs = tiny_program(window(5), chunk(7), CAUSAL).cost(step((10**6, 10**9)))
    assert total(costs, "flops") > 1e18


@pytest.mark.parametrize(
    ("layer_bytes", "head_bytes", "megabytes"),
    [(4.0, 4.0, 538), (2.0, 2.0, 269), (1.0625, 1.0625, 143), (0.625, 1.0625, 96)],
    ids=["f32", "f16", "int8 g32", "Q4_1 + Q8_0 head"],
)
def test_bytes_of_a_decode_step_of_smollm2(layer_bytes: float, head_bytes: float, megabytes: int) -> None:
    program = llama_program(SMOLLM2)
    formats = Formats({"embed": head_bytes}, default_weight_bytes=layer_bytes, default_cache_bytes=2.0)
    costs = program.cost(decode([1]), formats)
    assert total(costs, "weight_bytes") / 1e6 == pytest.approx(megabytes, abs=0.6)


def test_a_step_reads_every_weight_once_and_a_row_of_the_table() -> None:
    program = llama_program(SMOLLM2)
    costs = program.cost(decode([10, 20, 30]))
    assert total(costs, "weight_bytes") == 4 * (program.num_parameters + 3 * 576)


def test_products_of_a_step_are_two_flops_per_weight_and_row() -> None:
    program = llama_program(LLAMA_8B)
    matrices = sum(spec.num_elements for spec in program.weights.values() if len(spec.shape) == 2)
    costs = program.cost(decode(range(100, 116)))
    assert total(of_kind(costs, "Linear"), "flops") == 2 * 16 * (matrices - 128_256 * 4096)


def test_smollm2_reads_23_kilobytes_of_cache_per_token() -> None:
    program, formats = llama_program(SMOLLM2), Formats(default_cache_bytes=2.0)
    assert total(program.cost(decode([512]), formats), "cache_read") == 512 * 23_040
    assert read_bytes(program, 512, formats) == held_bytes(program, 512, formats) == (512 * 23_040,)


def test_record_of_a_product_has_its_sizes() -> None:
    costs = of_kind(tiny_program().cost(step((0, 5))), "Linear")
    assert [(cost.m, cost.n, cost.k) for cost in costs] == [
        (5, 8, 8),
        (5, 4, 8),
        (5, 4, 8),
        (5, 8, 8),
        (5, 12, 8),
        (5, 12, 8),
        (5, 8, 12),
        (1, 32, 8),
    ]


def test_each_record_of_a_layer_follows_its_formula() -> None:
    """5 rows of width 8, 2 heads and 1 KV head of 4, 12 columns between; a = 2, b = 1, c = 0.5 bytes."""
    formats = Formats(default_weight_bytes=1.0, default_cache_bytes=0.5, activation_bytes=2.0)
    costs = tiny_program().cost(step((3, 5)), formats)
    columns = ("flops", "weight_bytes", "cache_read", "cache_write", "activation_bytes")
    seen = {cost.kind: tuple(getattr(cost, column) for column in columns) for cost in costs[1:17]}
    visible = 4 + 5 + 6 + 7 + 8
    assert seen["Norm"] == (5 * 5 * 8, 8 * 2, 0, 0, 2 * 5 * 8 * 2)
    assert seen["Linear"] == (2 * 5 * 12 * 8, 12 * 8, 0, 0, 5 * (12 + 8) * 2)
    assert seen["Rope"] == (3 * 5 * 4, 0, 0, 0, 2 * 5 * 4 * 2)
    assert seen["CacheWrite"] == (0, 0, 0, 5 * 8 * 0.5, 5 * 8 * 2)
    assert seen["Attend"] == (2 * 2 * 8 * visible, 0, 8 * 8 * 0.5, 0, 5 * 2 * 8 * 2)
    assert seen["Glu"] == (5 * 5 * 12, 0, 0, 0, 3 * 5 * 12 * 2)
    assert seen["Add"] == (5 * 8, 0, 0, 0, 3 * 5 * 8 * 2)
    embed, (select, norm, head, sample) = costs[0], costs[-4:]
    assert (embed.flops, embed.weight_bytes, embed.activation_bytes) == (0, 5 * 8 * 1, 5 * 8 * 2)
    assert (select.flops, select.activation_bytes) == (0, 2 * 1 * 8 * 2)
    assert (norm.m, norm.flops) == (1, 5 * 8)
    assert (head.flops, head.weight_bytes) == (2 * 8 * 32, 32 * 8)
    assert (sample.flops, sample.activation_bytes) == (4 * 32, 32 * 4)


def test_a_step_without_outputs_does_not_read_the_head() -> None:
    costs = tiny_program(tied=False).cost(step((0, 5, 0)))
    head = [cost for cost in costs if cost.span_kind == "head"]
    assert [getattr(cost, what) for cost in head for what in SUMS] == [0] * 24
    assert [cost.m for cost in head] == [0] * 4


def test_an_empty_step_costs_nothing() -> None:
    for program in (tiny_program(), hybrid_program()):
        costs = program.cost(StepShape(()))
        assert [total(costs, what) for what in SUMS] == [0] * 6
        assert {cost.worst_factor for cost in costs} == {1.0}


def test_layers_with_different_formats_are_priced_with_their_mean() -> None:
    program = tiny_program()
    formats = Formats({"layers.0.down": 1.0, "layers.1.down": 3.0}, default_weight_bytes=0.0)
    down = [cost for cost in program.cost(step((0, 5)), formats) if (cost.kind, cost.k) == ("Linear", 12)]
    assert [(cost.weight_bytes, cost.count) for cost in down] == [(12 * 8 * 2.0, 2)]


def test_rows_that_exceed_a_tile_read_the_keys_again() -> None:
    """100 tokens with 2 query heads for each KV head are 200 rows."""
    program, shape = tiny_program(), step((0, 100))

    def read(tile_rows: int, reuse: float = 1.0) -> float:
        formats = Formats(attention_tile_rows=tile_rows, attention_reuse=reuse)
        return total(program.cost(shape, formats), "cache_read")

    once = read(200)
    assert read(1000) == once
    assert read(199) == read(100) == 2 * once
    assert read(10) == 20 * once
    assert read(10, reuse=4.0) == 5 * once
    assert read(10, reuse=100.0) == once


@given(ctx=st.integers(1, 60))
def test_what_a_decode_row_reads_is_what_a_decode_step_is_priced_for(ctx: int) -> None:
    formats = Formats(cache_bytes={GroupId(0): 2.0, GroupId(1): 4.0, GroupId(2): 1.0})
    for program in (tiny_program(window(5), chunk(7), CAUSAL, window(5)), cross_program(), hybrid_program()):
        assert sum(read_bytes(program, ctx, formats)) == total(program.cost(decode([ctx]), formats), "cache_read")


@given(ctx=st.integers(1, 60))
def test_attention_layers_hold_what_their_newest_row_reads(ctx: int) -> None:
    program = tiny_program(window(5), chunk(7), CAUSAL, window(5))
    assert held_bytes(program, ctx) == read_bytes(program, ctx)


def test_nothing_is_read_before_the_first_token() -> None:
    assert read_bytes(tiny_program(window(5), CAUSAL), 0) == (0.0, 0.0)
    assert held_bytes(tiny_program(window(5), CAUSAL), 0) == (0.0, 0.0)


def test_layers_that_share_keys_read_them_twice_and_hold_them_once() -> None:
    def build(b: ProgramBuilder) -> None:
        group = b.kv_group("full", 1, 1, 4)
        x = b.embed("embed", 32, 8)
        b.cache_write(b.linear(x, "k", 4), b.linear(x, "v", 4), group, 0)
        b.sample(b.select(b.attend(b.attend(x, group, 0, 2), group, 0, 2)))

    program = one_span(build)
    assert read_bytes(program, 10) == (2 * 10 * 8 * 4,)
    assert held_bytes(program, 10) == (10 * 8 * 4,)


def test_blendserves_memory_term_is_the_sum_of_what_decode_rows_read() -> None:
    """Mem = (p d + d^2 / 2) * Hkv * layers * 4; summed token by token, d^2 / 2 becomes d (d + 1) / 2."""
    program, formats = llama_program(LLAMA_8B), Formats(default_cache_bytes=2.0)
    p, d = 496, 510
    read = sum(read_bytes(program, ctx, formats)[0] for ctx in range(p + 1, p + d + 1))
    assert read == (p * d + d * (d + 1) / 2) * 1024 * 32 * 4
    assert read == pytest.approx((p * d + d**2 / 2) * 1024 * 32 * 4, rel=1e-3)


def test_blendserves_density_of_wildchat_follows_from_the_program() -> None:
    """rho(496, 510) = 2.103 with 312 TFLOP/s and 2.039 TB/s: compute over memory seconds, attention flops left out."""
    program, formats = llama_program(LLAMA_8B), Formats(default_cache_bytes=2.0)
    p, d = 496, 510
    compute_s = 2 * (p + d) * program.num_parameters / 312e12
    memory_s = sum(read_bytes(program, ctx, formats)[0] for ctx in range(p, p + d)) / 2.039e12
    assert compute_s / memory_s == pytest.approx(2.103, rel=5e-3)


def pattern(full: int, near: int, size: int) -> Program:
    """A model of `full` causal and `near` window layers."""
    return tiny_program(*[CAUSAL] * full, *(window(size) for _ in range(near)))


@pytest.mark.parametrize(
    ("full", "near", "size", "ratio"),
    [(10, 52, 1024, 3.8), (12, 12, 128, 2.0)],
    ids=["gemma-3-27b", "gpt-oss-20b"],
)
def test_windows_save_what_was_calculated_for_a_long_output(full: int, near: int, size: int, ratio: float) -> None:
    uniform, typed = pattern(full + near, 0, 0), pattern(full, near, size)
    contexts = range(121, 121 + 16_384, 16)
    read = [sum(sum(read_bytes(program, ctx)) for ctx in contexts) for program in (uniform, typed)]
    assert read[0] / read[1] == pytest.approx(ratio, rel=0.03)


@pytest.mark.parametrize("length", [100, 512, 513, 4096])
def test_windows_hold_the_closed_form_of_gemma_3_270m(length: int) -> None:
    uniform, typed = pattern(18, 0, 0), pattern(3, 15, 512)
    saved = sum(held_bytes(uniform, length)) / sum(held_bytes(typed, length))
    assert saved == pytest.approx(18 * length / (3 * length + 15 * min(length, 512)), rel=1e-12)


def expert_costs(rows: int, experts: int = 4, top_k: int = 2) -> OpCost:
    def build(b: ProgramBuilder) -> None:
        x = b.embed("embed", 32, 8)
        routing = b.route(b.linear(x, "router", experts, role=WeightRole.ROUTER), top_k)
        b.pool(b.select(b.experts(x, routing, "experts", experts, 6, Activation.SILU)), PoolKind.MEAN)

    (cost,) = of_kind(one_span(build).cost(step((0, rows))), "Experts")
    return cost


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_experts_read_are_the_mean_and_the_most_over_all_routings(rows: int) -> None:
    choices = list(combinations(range(4), 2))
    touched = [len(set().union(*routing)) for routing in product(choices, repeat=rows)]
    cost, one_expert = expert_costs(rows), 3 * 6 * 8 * 4
    assert cost.weight_bytes == pytest.approx(one_expert * sum(touched) / len(touched), rel=1e-12)
    assert cost.weight_bytes * cost.worst_factor == pytest.approx(one_expert * max(touched), rel=1e-12)


def test_a_row_computes_its_experts_and_no_others() -> None:
    cost = expert_costs(rows=5, experts=8, top_k=2)
    assert (cost.m, cost.n, cost.k) == (10, 6, 8)
    assert cost.flops == 6 * 5 * 2 * 8 * 6
    assert cost.activation_bytes == 5 * 2 * (8 + 2 * 6) * 4


def test_many_rows_read_every_expert_and_one_row_its_own() -> None:
    assert expert_costs(1000).weight_bytes == pytest.approx(4 * 3 * 6 * 8 * 4, rel=1e-12)
    assert expert_costs(1000).worst_factor == 1.0
    assert expert_costs(1).worst_factor == pytest.approx(1.0, rel=1e-12)
    assert expert_costs(1).weight_bytes == pytest.approx(2 * 3 * 6 * 8 * 4, rel=1e-12)


def test_states_are_read_and_written_once_for_each_chunk() -> None:
    costs = hybrid_program().cost(step((0, 7), (5, 1)))
    (conv,), (scan,) = of_kind(costs, "Conv"), of_kind(costs, "Scan")
    assert conv.cache_read == conv.cache_write == 2 * 14 * 3 * 4
    assert scan.cache_read == scan.cache_write == 2 * 2 * 3 * 4 * 4
    assert conv.flops == 2 * 8 * 14 * 4
    assert scan.flops == 5 * 8 * 2 * 3 * 4
    assert conv.weight_bytes == 14 * 4 * 4


def test_a_snapshot_writes_the_state_once_more() -> None:
    plain = StepShape((ChunkShape(0, 7, 0), ChunkShape(5, 1, 0)))
    kept = StepShape((ChunkShape(0, 7, 0, num_snapshots=3), ChunkShape(5, 1, 0)))
    (before,), (after,) = (of_kind(hybrid_program().cost(shape), "Scan") for shape in (plain, kept))
    state_bytes = 2 * 3 * 4 * 4
    assert after.cache_write == before.cache_write + 3 * state_bytes
    assert after.cache_read == before.cache_read


def test_routing_images_taps_and_pools_follow_their_formulas() -> None:
    costs = hybrid_program().cost(step((0, 7, 2)))
    by_kind = {cost.kind: cost for cost in costs}
    assert (by_kind["Route"].flops, by_kind["Route"].weight_bytes) == (5 * 7 * 4, 0)
    assert (by_kind["Route"].m, by_kind["Route"].n, by_kind["Route"].k) == (7, 4, 0)
    assert (by_kind["Place"].flops, by_kind["Place"].activation_bytes) == (0, 2 * 7 * 8 * 4)
    assert (by_kind["Tap"].flops, by_kind["Tap"].activation_bytes) == (7 * 8, 7 * 8 * 4)
    assert (by_kind["Pool"].flops, by_kind["Pool"].activation_bytes) == (2 * 8, 2 * 8 * 4)
    assert (by_kind["Scale"].flops, by_kind["Scale"].activation_bytes) == (7 * 8, 2 * 7 * 8 * 4)
    assert (by_kind["Act"].flops, by_kind["Act"].activation_bytes) == (5 * 7 * 6, 2 * 7 * 6 * 4)
    assert (by_kind["Mul"].flops, by_kind["Mul"].activation_bytes) == (7 * 6, 3 * 7 * 6 * 4)


def test_encoder_rows_see_each_other_and_read_no_cache() -> None:
    costs = encoder_program().cost(step((0, 4), (0, 3)))
    (attend,), (write,) = of_kind(costs, "Attend"), of_kind(costs, "CacheWrite")
    assert attend.flops == 2 * 2 * (4 + 4) * (4 * 4 + 3 * 3)
    assert attend.cache_read == 0
    assert write.cache_write == 7 * 8 * 4


def test_cross_attention_reads_all_encoder_rows_for_each_chunk() -> None:
    (attend,) = of_kind(cross_program().cost(step((0, 4), (9, 1))), "Attend")
    assert attend.flops == 2 * 2 * (4 + 4) * 6 * 5
    assert attend.cache_read == 2 * 6 * 8 * 4


@pytest.mark.parametrize("activation", list(Activation))
def test_every_activation_has_a_price_in_the_agreed_range(activation: Activation) -> None:
    assert 4 <= ACTIVATION_FLOPS[activation] <= 10


def test_a_sheet_prices_many_shapes_without_the_program() -> None:
    program = tiny_program()
    sheet = cost_sheet(program, Formats(default_cache_bytes=2.0))
    assert isinstance(sheet, CostSheet)
    for shape in (step((0, 5)), decode([3, 9]), step((4, 2), (0, 1))):
        assert sheet.costs(shape) == program.cost(shape, Formats(default_cache_bytes=2.0))


def test_records_have_the_fields_of_the_contract() -> None:
    assert [field.name for field in fields(OpCost)] == [
        *("span_kind", "count", "kind", "m", "n", "k", "flops", "weight_bytes", "cache_read", "cache_write"),
        *("activation_bytes", "comm_bytes", "worst_factor", "numbers"),
    ]


def test_a_group_may_keep_its_numbers_in_a_type_of_its_own() -> None:
    program = tiny_program(window(5), CAUSAL)
    formats = Formats(cache_bytes={GroupId(0): 1.0}, default_cache_bytes=2.0)
    assert held_bytes(program, 3, formats) == (3 * 8 * 1.0, 3 * 8 * 2.0)


def test_an_embedding_group_is_free_once_the_prompt_is_read() -> None:
    images = CacheGroup(GroupId(0), "images", GroupKind.EMBEDDING, 1, 1, 8, 0, max_rows=5)
    assert images.bytes_per_token(4) == 32
    assert held_bytes(hybrid_program(), 100)[1] == 0
    assert first_of(cross_program(), Attend).group == 0
