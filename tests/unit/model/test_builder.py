"""ProgramBuilder: it numbers, declares and marks, and finishes with a valid program or not at all."""

from __future__ import annotations

import pytest
from tests.unit.model.programs import (
    cross_program,
    encoder_program,
    first_of,
    hybrid_program,
    one_span,
    tiny_program,
)

from plait.core.errors import InvariantError
from plait.core.ids import GroupId
from plait.model.builder import ProgramBuilder
from plait.model.ops import (
    OP_TYPES,
    Activation,
    AllReduce,
    Attend,
    Embed,
    EmbedSource,
    Linear,
    Norm,
    NormKind,
    Pairing,
    PoolKind,
    Rope,
    Route,
    RouteScore,
    Sample,
    Space,
)
from plait.model.program import CacheGroup, GroupKind, WeightRole, product_weights
from plait.model.rope import RopeSpec
from plait.model.visibility import window


def test_values_are_numbered_in_order_of_definition() -> None:
    program = tiny_program()
    assert [value.id for value in program.values] == list(range(len(program.values)))
    outputs = [op.output for op in program.ops if op.output is not None]
    assert outputs == list(range(len(program.values)))


def test_a_weight_is_declared_where_it_is_first_used() -> None:
    def build(b: ProgramBuilder) -> None:
        x = b.embed("embed", 32, 8)
        b.sample(b.linear(b.select(b.norm(x, "norm", 1e-5)), "head", 32, bias="head_bias", shard_axis=0))

    weights = one_span(build).weights
    assert list(weights) == ["embed", "norm", "head", "head_bias"]
    assert [spec.role for spec in weights.values()] == [
        WeightRole.EMBEDDING,
        WeightRole.NORM,
        WeightRole.LINEAR,
        WeightRole.BIAS,
    ]
    assert [spec.shape for spec in weights.values()] == [(32, 8), (8,), (32, 8), (32,)]
    assert [spec.shard_axis for spec in weights.values()] == [0, None, 0, 0]


def test_a_weight_used_twice_keeps_its_first_role_and_counts_once() -> None:
    def build(b: ProgramBuilder) -> None:
        b.sample(b.linear(b.select(b.embed("embed", 32, 8)), "embed", 32))

    program = one_span(build)
    assert program.num_parameters == 256
    assert program.weights["embed"].role is WeightRole.EMBEDDING


def test_every_column_of_the_logits_is_a_token_unless_said_otherwise() -> None:
    def sampled(**options: int) -> Sample:
        return first_of(one_span(lambda b: b.sample(b.select(b.embed("embed", 32, 8)), **options)), Sample)

    assert sampled().vocab_size == 8
    assert sampled(vocab_size=5).vocab_size == 5


@pytest.mark.parametrize("vocab_size", [0, 9])
def test_tokens_without_a_column_are_refused(vocab_size: int) -> None:
    b = ProgramBuilder("test")
    b.span("all", "all")
    x = b.select(b.embed("embed", 32, 8))
    with pytest.raises(InvariantError, match=f"{vocab_size} tokens for 8 columns of logits"):
        b.sample(x, vocab_size=vocab_size)


def test_one_name_cannot_have_two_shapes() -> None:
    b = ProgramBuilder("test")
    b.span("all", "all")
    x = b.embed("embed", 32, 8)
    with pytest.raises(InvariantError, match=r"weight embed has shape \(32, 8\) and \(16, 8\)"):
        b.linear(x, "embed", 16)


def test_ops_before_the_first_span_are_refused() -> None:
    b = ProgramBuilder("test")
    b.embed("embed", 32, 8)
    b.span("late", "late")
    b.sample(b.select(b.embed("more", 32, 8)))
    with pytest.raises(InvariantError, match="its first op belongs to no span"):
        b.finish()


def test_a_span_without_ops_is_refused() -> None:
    b = ProgramBuilder("test")
    b.span("empty", "empty")
    b.span("all", "all")
    b.sample(b.select(b.embed("embed", 32, 8)))
    with pytest.raises(InvariantError, match="span empty covers ops 0 to -1"):
        b.finish()


def test_a_program_without_spans_is_refused() -> None:
    with pytest.raises(InvariantError, match="belongs to no span"):
        ProgramBuilder("test").finish()


def test_select_changes_the_row_space_and_nothing_else_does() -> None:
    program = tiny_program()
    spaces = [program.values[op.output].space for op in program.ops if op.output is not None]
    border = spaces.index(Space.OUTPUTS)
    assert set(spaces[:border]) == {Space.TOKENS}
    assert set(spaces[border:]) == {Space.OUTPUTS}


def test_a_view_of_a_view_is_a_view_of_its_root() -> None:
    def build(b: ProgramBuilder) -> None:
        x = b.embed("embed", 32, 8)
        half = b.view(x, 4, 4, "half")
        b.sample(b.select(b.view(half, 1, 2, "middle")))

    values = one_span(build).values
    assert [(value.name, value.base, value.offset, value.width) for value in values if value.base is not None] == [
        ("half", 0, 4, 4),
        ("middle", 0, 5, 2),
    ]


def test_a_view_keeps_its_root_alive_across_spans() -> None:
    b = ProgramBuilder("test")
    b.span("first", "first")
    x = b.embed("embed", 32, 8)
    half = b.view(x, 4, 4, "half")
    b.span("second", "second")
    b.sample(b.select(half))
    assert b.finish().spans[0].live_out == (x,)


def test_two_values_are_alive_when_a_later_layer_reads_the_first() -> None:
    b = ProgramBuilder("test")
    b.span("embed", "embed")
    x = b.embed("embed", 32, 8)
    b.span("middle", "middle")
    y = b.scale(x, 2.0)
    b.span("head", "head")
    b.sample(b.select(b.add(y, x, factor=0.5)))
    assert [span.live_out for span in b.finish().spans] == [(x,), (x, y), ()]


def test_an_input_is_alive_from_the_start() -> None:
    program = encoder_program()
    assert program.inputs == (0,)
    assert program.values[0].space is Space.ENCODER


def test_groups_are_numbered_and_listed_by_span() -> None:
    program = hybrid_program()
    assert [(group.id, group.name) for group in program.cache_groups] == [(0, "states"), (1, "images")]
    assert [span.groups for span in program.spans] == [(1,), (0,), (0,), ()]


def test_attention_takes_its_shape_from_the_group() -> None:
    op = first_of(tiny_program(window(8)), Attend)
    assert (op.heads, op.kv_heads, op.head_dim_k, op.head_dim_v) == (2, 1, 4, 4)
    assert op.scale == 0.5
    assert op.visibility == window(8)


def test_attention_options_reach_the_op() -> None:
    def build(b: ProgramBuilder) -> None:
        group = b.kv_group("full", 1, 1, 4)
        x = b.embed("embed", 32, 8)
        q, k, v = b.linear(x, "q", 8), b.linear(x, "k", 4), b.linear(x, "v", 4)
        b.cache_write(k, v, group, 0)
        b.attend(q, group, 0, 2, scale=0.25, softcap=50.0, sinks="sinks")
        b.sample(b.select(x))

    program = one_span(build)
    op = first_of(program, Attend)
    assert (op.scale, op.softcap, op.sinks) == (0.25, 50.0, "sinks")
    assert program.weights["sinks"].shape == (2,)


def test_row_by_row_options_reach_their_ops() -> None:
    def build(b: ProgramBuilder) -> None:
        x = b.embed("embed", 32, 8, scale=3.0)
        x = b.add(x, b.embed("places", 64, 8, source=EmbedSource.POSITIONS))
        x = b.norm(x, "norm", 1e-6, kind=NormKind.LAYER, bias="norm_bias", offset=1.0, parts=2)
        x = b.rope(x, RopeSpec(1e4, 2, 64), 2, pairing=Pairing.INTERLEAVED, mscale=1.5)
        b.sample(b.linear(b.select(x), "head", 32, out_scale=0.125, adaptable=True), logit_scale=2.0, softcap=30.0)

    program = one_span(build)
    embed, places = [op for op in program.ops if isinstance(op, Embed)]
    assert (embed.scale, places.source) == (3.0, EmbedSource.POSITIONS)
    norm = first_of(program, Norm)
    assert (norm.kind, norm.bias, norm.offset, norm.parts) == (NormKind.LAYER, "norm_bias", 1.0, 2)
    assert program.weights["norm"].shape == program.weights["norm_bias"].shape == (4,)
    rope = first_of(program, Rope)
    assert (rope.pairing, rope.mscale, rope.head_dim) == (Pairing.INTERLEAVED, 1.5, 4)
    linear = first_of(program, Linear)
    assert (linear.out_scale, linear.adaptable) == (0.125, True)
    sample = first_of(program, Sample)
    assert (sample.logit_scale, sample.softcap) == (2.0, 30.0)


def test_routing_options_reach_the_op() -> None:
    def build(b: ProgramBuilder) -> None:
        x = b.embed("embed", 32, 8)
        logits = b.linear(x, "router", 4, role=WeightRole.ROUTER)
        routing = b.route(logits, 2, score=RouteScore.SIGMOID, bias="router_bias")
        b.pool(b.select(b.experts(x, routing, "experts", 4, 6, Activation.GELU, bias=True)), PoolKind.LAST)

    program = one_span(build)
    op = first_of(program, Route)
    assert (op.score, op.bias) == (RouteScore.SIGMOID, "router_bias")
    assert program.weights["router"].role is WeightRole.ROUTER
    assert [program.weights[f"experts.{expert}.down"].shape for expert in range(4)] == [(8, 6)] * 4
    assert [program.weights[f"experts.{part}_bias"].shape for part in ("gate", "up", "down")] == [(4, 6), (4, 6), (4, 8)]
    assert product_weights(program)[0] == "experts.0.gate", "routers are not rounded"


def test_biased_convolution_declares_both_weights() -> None:
    def build(b: ProgramBuilder) -> None:
        states = b.group(CacheGroup(GroupId(0), "states", GroupKind.STATE, 1, state_parts=(24,)))
        x = b.conv(b.embed("embed", 32, 8), "conv", 4, states, 0, bias="conv_bias", activation=Activation.SILU)
        b.sample(b.select(x))

    weights = one_span(build).weights
    assert weights["conv"].shape == (8, 4)
    assert weights["conv_bias"].shape == (8,)


def test_the_programs_of_this_room_use_every_operation_but_the_sum_over_ranks() -> None:
    programs = (tiny_program(), hybrid_program(), encoder_program(), cross_program())
    used = {type(op) for program in programs for op in program.ops}
    assert set(OP_TYPES) - used == {AllReduce}
