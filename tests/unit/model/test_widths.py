"""Widths and spaces: every operation refuses what it cannot compute, and says what it expected."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.model.programs import one_span

from plait.core.errors import InvariantError
from plait.core.ids import GroupId
from plait.model import ops
from plait.model.builder import ProgramBuilder
from plait.model.ops import Activation, Op, PoolKind, ScanKind, Space, Value, ValueId
from plait.model.program import CacheGroup, GroupKind, Program, WeightRole, WeightSpec
from plait.model.rope import RopeSpec
from plait.model.visibility import ALL, CAUSAL, Visibility, chunk, window
from plait.model.widths import op_fault

SILU = Activation.SILU


class Fixture:
    """Values of several widths and spaces, weights of any shape, and groups of every kind, to ask about single ops."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.weights: dict[str, WeightSpec] = {}
        self.groups: list[CacheGroup] = []
        self.x8, self.x4, self.x1 = (self.value(width) for width in (8, 4, 1))
        self.out8 = self.value(8, Space.OUTPUTS)
        self.image8 = self.value(8, Space.ENCODER)
        self.kv = self.kv_group(GroupKind.FULL)
        self.near = self.kv_group(GroupKind.WINDOW, window=6)
        self.stretch = self.kv_group(GroupKind.CHUNKED, window=6)
        self.cross = self.kv_group(GroupKind.CROSS)
        self.images = self.group(CacheGroup(GroupId(4), "images", GroupKind.EMBEDDING, 1, 1, 8, 0))
        self.states = self.group(CacheGroup(GroupId(5), "states", GroupKind.STATE, 2, state_parts=(24, 32)))

    def value(self, width: int, space: Space = Space.TOKENS) -> ValueId:
        value = Value(ValueId(len(self.values)), space, width, f"{space} {width}")
        self.values.append(value)
        return value.id

    def weight(self, *shape: int) -> str:
        name = "x".join(map(str, shape))
        self.weights[name] = WeightSpec(name, shape, WeightRole.LINEAR)
        return name

    def group(self, group: CacheGroup) -> GroupId:
        self.groups.append(group)
        return group.id

    def kv_group(self, kind: GroupKind, window: int = 0) -> GroupId:
        return self.group(CacheGroup(GroupId(len(self.groups)), kind, kind, 2, 1, 4, 4, window, max_rows=5))

    def fault(self, op: Op) -> str | None:
        return op_fault(Program("test", (op,), tuple(self.values), (), self.weights, tuple(self.groups)), op)


@pytest.fixture
def f() -> Fixture:
    return Fixture()


def test_embed_gives_rows_as_wide_as_its_table(f: Fixture) -> None:
    assert f.fault(ops.Embed((), f.x8, f.weight(32, 8))) is None
    assert f.fault(ops.Embed((), f.x4, "32x8")) == "weight 32x8 has shape [32, 8], expected [32, 4]"
    assert f.fault(ops.Embed((), f.out8, "32x8")) == "cannot turn rows of nothing into rows of outputs"


def test_linear_fits_its_weight_and_bias(f: Fixture) -> None:
    assert f.fault(ops.Linear((f.x8,), f.x4, f.weight(4, 8), f.weight(4))) is None
    assert f.fault(ops.Linear((f.x8,), f.x4, f.weight(8, 4))) == "weight 8x4 has shape [8, 4], expected [4, 8]"
    assert f.fault(ops.Linear((f.x8,), f.x4, f.weight(4, 8), f.weight(8))) == "weight 8 has shape [8], expected [4]"
    assert f.fault(ops.Linear((f.x8,), f.out8, f.weight(8, 8))) == "cannot turn rows of tokens into rows of outputs"


def test_norm_weights_are_whole_rows_or_one_part(f: Fixture) -> None:
    assert f.fault(ops.Norm((f.x8,), f.x8, f.weight(8), 1e-5)) is None
    assert f.fault(ops.Norm((f.x8,), f.x8, f.weight(4), 1e-5, parts=2)) is None
    assert f.fault(ops.Norm((f.x8,), f.x8, f.weight(8), 1e-5, parts=2)) is None
    assert f.fault(ops.Norm((f.x8,), f.x8, None, 1e-5)) is None
    wrong = f.fault(ops.Norm((f.x8,), f.x8, f.weight(2), 1e-5, parts=2))
    assert wrong == "weight 2 has shape [2], expected [8] or [4]"
    assert f.fault(ops.Norm((f.x8,), f.x8, None, 1e-5, parts=3)) == "8 columns do not divide into 3 parts"
    assert f.fault(ops.Norm((f.x8,), f.x8, None, 0.0)) == "eps is 0.0"
    assert f.fault(ops.Norm((f.x8,), f.x4, None, 1e-5)) == "width is 8, expected 4"


def test_rope_rotates_an_even_part_of_each_head(f: Fixture) -> None:
    assert f.fault(ops.Rope((f.x8,), f.x8, RopeSpec(1e4, 4, 64), 2, 4)) is None
    assert f.fault(ops.Rope((f.x8,), f.x8, RopeSpec(1e4, 2, 64), 2, 4)) is None
    assert f.fault(ops.Rope((f.x8,), f.x8, RopeSpec(1e4, 6, 64), 2, 4)) == "rotary_dim 6 of head_dim 4"
    assert f.fault(ops.Rope((f.x8,), f.x8, RopeSpec(1e4, 3, 64), 2, 4)) == "rotary_dim 3 of head_dim 4"
    assert f.fault(ops.Rope((f.x8,), f.x8, RopeSpec(1e4, 4, 64), 3, 4)) == "width is 8, expected 12"


def test_rows_of_one_width_go_through_elementwise_ops(f: Fixture) -> None:
    for op in (
        ops.Add((f.x8, f.x8), f.x8),
        ops.Glu((f.x8, f.x8), f.x8, SILU),
        ops.Act((f.x8,), f.x8, SILU),
        ops.Scale((f.x8,), f.x8, 2.0),
        ops.AllReduce((f.x8,), f.x8, 2),
    ):
        assert f.fault(op) is None
    assert f.fault(ops.Add((f.x8, f.x4), f.x8)) == "width is 4, expected 8"
    assert f.fault(ops.Glu((f.x4, f.x8), f.x8, SILU)) == "width is 4, expected 8"
    assert f.fault(ops.Act((f.x8,), f.x4, SILU)) == "width is 8, expected 4"
    assert f.fault(ops.Add((f.x8, f.out8), f.x8)) == "cannot turn rows of tokens, outputs into rows of tokens"


def test_mul_takes_one_factor_per_number_or_per_row(f: Fixture) -> None:
    assert f.fault(ops.Mul((f.x8, f.x8), f.x8)) is None
    assert f.fault(ops.Mul((f.x8, f.x1), f.x8)) is None
    assert f.fault(ops.Mul((f.x8, f.x4), f.x8)) == "factor of width 4 on rows of width 8"


def test_select_alone_leads_from_tokens_to_outputs(f: Fixture) -> None:
    assert f.fault(ops.Select((f.x8,), f.out8)) is None
    assert f.fault(ops.Select((f.out8,), f.out8)) == "cannot turn rows of outputs into rows of outputs"
    assert f.fault(ops.Select((f.x8,), f.x8)) == "cannot turn rows of tokens into rows of tokens"
    assert f.fault(ops.Select((f.x4,), f.out8)) == "width is 4, expected 8"


def test_results_come_from_output_rows(f: Fixture) -> None:
    assert f.fault(ops.Sample((f.out8,), 8)) is None
    assert f.fault(ops.Pool((f.out8,), PoolKind.MEAN)) is None
    assert f.fault(ops.Tap((f.x8,), "hidden")) is None
    assert f.fault(ops.Sample((f.x8,), 8)) == "cannot turn rows of tokens into rows of nothing"
    assert f.fault(ops.Pool((f.image8,), PoolKind.MEAN)) == "cannot turn rows of encoder into rows of nothing"


def test_at_least_one_token_can_be_sampled(f: Fixture) -> None:
    assert f.fault(ops.Sample((f.out8,), 1)) is None
    assert f.fault(ops.Sample((f.out8,), 0)) == "vocab_size is 0"


def test_cache_writes_fit_their_group(f: Fixture) -> None:
    assert f.fault(ops.CacheWrite((f.x4, f.x4), f.kv, 1)) is None
    assert f.fault(ops.CacheWrite((f.x4, f.x4), f.kv, 2)) == "slot 2 of group full, which has 2"
    assert f.fault(ops.CacheWrite((f.x4, f.x4), f.kv, -1)) == "slot -1 of group full, which has 2"
    wrong = f.fault(ops.CacheWrite((f.x8, f.x4), f.kv, 0))
    assert wrong == "writes rows of [8, 4] into group full, which holds [4, 4] per token and layer"
    assert f.fault(ops.CacheWrite((f.x8,), f.images, 0)) is None
    assert f.fault(ops.CacheWrite((f.x8, f.x8), f.images, 0)) is not None
    assert "group states" in (f.fault(ops.CacheWrite((f.x4, f.x4), f.states, 0)) or "")
    assert f.fault(ops.CacheWrite((f.value(4, Space.OUTPUTS),) * 2, f.kv, 0)) is not None


def attend(
    f: Fixture, group: GroupId, rule: Visibility, heads: int = 2, kv_heads: int = 1, head_dim_v: int = 4, slot: int = 0
) -> Op:
    return ops.Attend((f.x8,), f.x8, group, slot, heads, kv_heads, 4, head_dim_v, 0.5, rule)


@pytest.mark.parametrize(
    ("group", "allowed", "refused"),
    [
        ("kv", [CAUSAL, window(3), chunk(3)], [ALL]),
        ("near", [window(6), window(3)], [CAUSAL, window(7), chunk(6), ALL]),
        ("stretch", [chunk(6)], [CAUSAL, chunk(3), window(6), ALL]),
        ("cross", [ALL], [CAUSAL, window(3)]),
    ],
)
def test_attention_sees_no_key_that_its_group_drops(
    f: Fixture, group: str, allowed: list[Visibility], refused: list[Visibility]
) -> None:
    place = getattr(f, group)
    for rule in allowed:
        assert f.fault(attend(f, place, rule)) is None
    for rule in refused:
        assert f"{rule.reach} attention needs keys that group" in (f.fault(attend(f, place, rule)) or "")


def test_attention_fits_its_query_and_its_group(f: Fixture) -> None:
    assert f.fault(attend(f, f.kv, CAUSAL, heads=3)) == "width of the query is 8, expected 12"
    assert f.fault(attend(f, f.kv, CAUSAL, kv_heads=3)) == "2 heads share 3 KV heads"
    assert f.fault(attend(f, f.kv, CAUSAL, kv_heads=2)) == (
        "reads KV heads and dims (2, 4, 4) from group full, which holds (1, 4, 4)"
    )
    assert f.fault(attend(f, f.kv, CAUSAL, head_dim_v=8)) == "output width is 8, expected 16"
    assert f.fault(attend(f, f.kv, CAUSAL, slot=5)) == "slot 5 of group full, which has 2"
    assert "group states" in (f.fault(attend(f, f.states, CAUSAL)) or "")
    sinks = ops.Attend((f.x8,), f.x8, f.kv, 0, 2, 1, 4, 4, 0.5, CAUSAL, sinks=f.weight(3))
    assert f.fault(sinks) == "weight 3 has shape [3], expected [2]"


def test_attention_over_values_takes_three_inputs(f: Fixture) -> None:
    x4 = f.value(4, Space.ENCODER)
    assert f.fault(ops.Attend((f.image8, x4, x4), f.image8, None, 0, 2, 1, 4, 4, 0.5, ALL)) is None
    wrong = f.fault(ops.Attend((f.image8, f.image8, x4), f.image8, None, 0, 2, 1, 4, 4, 0.5, ALL))
    assert wrong == "inputs are [8, 8, 4] wide, expected [8, 4, 4]"


def test_place_takes_rows_of_an_image_group(f: Fixture) -> None:
    assert f.fault(ops.Place((f.x8,), f.x8, f.images)) is None
    assert f.fault(ops.Place((f.x4,), f.x4, f.images)) == (
        "places rows of group images (embedding) into rows of width 4"
    )
    assert f.fault(ops.Place((f.x4,), f.x4, f.kv)) == "places rows of group full (full) into rows of width 4"


def test_convolution_fits_its_weight_and_its_state(f: Fixture) -> None:
    assert f.fault(ops.Conv((f.x8,), f.x8, f.weight(8, 4), 4, f.states, 1, part=0)) is None
    assert f.fault(ops.Conv((f.x8,), f.x8, f.weight(8, 3), 3, f.states, 1)) == "state elements is 24, expected 16"
    assert f.fault(ops.Conv((f.x8,), f.x8, f.weight(8, 3), 4, f.states, 0)) == (
        "weight 8x3 has shape [8, 3], expected [8, 4]"
    )
    assert f.fault(ops.Conv((f.x8,), f.x8, f.weight(8, 4), 4, f.kv, 0)) == (
        "part 0 of group full (full), which has 0 state parts"
    )
    assert f.fault(ops.Conv((f.x8,), f.x8, f.weight(8, 4), 4, f.states, 0, part=2)) is not None
    assert f.fault(ops.Conv((f.x8,), f.x8, f.weight(8, 4), 4, f.states, 2)) == "slot 2 of group states, which has 2"


SCANS: list[tuple[ScanKind, list[int], list[tuple[int, ...]], tuple[int, int, int], int]] = [
    (ScanKind.MAMBA1, [8, 8, 4, 4], [(8, 4), (8,), (8,)], (8, 1, 4), 1),
    (ScanKind.MAMBA2, [8, 2, 4, 4], [(2,), (2,), (2,)], (2, 4, 4), 1),
    (ScanKind.MAMBA2, [8, 2, 8, 8], [(2,), (2,), (2,)], (2, 4, 4), 2),
    (ScanKind.GATED_DELTA, [4, 4, 8, 2, 2], [(2,), (2,)], (2, 4, 4), 1),
    (ScanKind.RWKV7, [8, 8, 8, 8, 8, 8], [], (2, 4, 4), 1),
]


@pytest.mark.parametrize(("kind", "widths", "shapes", "dims", "groups"), SCANS)
def test_scans_take_the_inputs_and_weights_of_their_kind(
    f: Fixture,
    kind: ScanKind,
    widths: list[int],
    shapes: list[tuple[int, ...]],
    dims: tuple[int, int, int],
    groups: int,
) -> None:
    inputs = tuple(f.value(width) for width in widths)
    weights = tuple(f.weight(*shape) for shape in shapes)
    op = ops.Scan(inputs, f.x8, kind, weights, *dims, f.states, 0, part=1, groups=groups)
    assert f.fault(op) is None
    assert "wide, expected" in (f.fault(replace(op, inputs=inputs[1:])) or "")
    assert (
        f.fault(replace(op, weights=(*weights, f.weight(32, 8))))
        == f"{len(shapes) + 1} weights, expected {len(shapes)}"
    )
    assert f.fault(replace(op, part=0)) == "state elements is 24, expected 32"
    assert f.fault(replace(op, output=f.x4)) == "output width is 4, expected 8"
    if weights:
        assert "has shape" in (f.fault(replace(op, weights=(f.weight(32, 8), *weights[1:]))) or "")


def test_scans_with_impossible_dimensions(f: Fixture) -> None:
    six = (f.x8,) * 6
    odd = ops.Scan(six, f.x8, ScanKind.RWKV7, (), 4, 2, 4, f.states, 0, part=1)
    assert f.fault(odd) == "state_dim is 4, expected head_dim 2"
    small = ops.Scan((f.x4, f.x4, f.x4, f.x4), f.x4, ScanKind.MAMBA1, ("a", "b", "c"), 2, 2, 4, f.states, 0)
    assert "wide, expected" in (f.fault(replace(small, weights=(f.weight(2, 4), f.weight(2), f.weight(2)))) or "")
    shared = ops.Scan(
        (f.x8, f.value(2), f.value(12), f.value(12)),
        f.x8,
        ScanKind.MAMBA2,
        (f.weight(2),) * 3,
        2,
        4,
        4,
        f.states,
        0,
        part=1,
        groups=3,
    )
    assert f.fault(shared) == "2 heads share 3 groups"


def test_routing_fits_its_experts(f: Fixture) -> None:
    route = ops.Route((f.x4,), f.value(4), experts=4, top_k=2)
    assert f.fault(route) is None
    assert f.fault(replace(route, inputs=(f.x8,))) == "width of the logits is 8, expected 4"
    assert f.fault(replace(route, bias=f.weight(8))) == "weight 8 has shape [8], expected [4]"
    assert f.fault(replace(route, top_k=3)) == "output width is 4, expected 6"
    assert f.fault(replace(route, output=f.value(10), top_k=5)) == "top_k 5 of 4 experts"
    assert f.fault(replace(route, groups=3)) == "1 of 3 groups of 4 experts"
    assert f.fault(replace(route, groups=2, top_groups=3)) == "3 of 2 groups of 4 experts"


def test_experts_fit_their_weights_and_routing(f: Fixture) -> None:
    wide, tall = (f.weight(6, 8),) * 4, (f.weight(8, 6),) * 4
    experts = ops.Experts((f.x8, f.x4), f.x8, wide, wide, tall, 2, 6, SILU)
    assert f.fault(experts) is None
    assert f.fault(replace(experts, inputs=(f.x8, f.x8))) == "routing width is 8, expected 4"
    assert f.fault(replace(experts, down=wide)) == "weight 6x8 has shape [6, 8], expected [8, 6]"
    assert f.fault(replace(experts, up=wide[:3])) == "4, 3 and 4 matrices, 2 experts for a row"
    biases = (f.weight(4, 6), f.weight(4, 6), f.weight(4, 8))
    assert f.fault(replace(experts, biases=biases)) is None
    assert f.fault(replace(experts, biases=biases[:2] + biases[:1])) == "weight 4x6 has shape [4, 6], expected [4, 8]"
    assert f.fault(replace(experts, up=tall)) == "weight 8x6 has shape [8, 6], expected [6, 8]"


def test_validation_names_the_op_that_does_not_fit() -> None:
    def build(b: ProgramBuilder) -> None:
        x = b.embed("embed", 32, 8)
        b.sample(b.select(b.rope(x, RopeSpec(1e4, 16, 64), 2)))

    with pytest.raises(InvariantError, match=r"program test: op 1 \(Rope\): rotary_dim 16 of head_dim 4"):
        one_span(build)
