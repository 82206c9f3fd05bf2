"""Checks: a program with one thing wrong is refused, and the message says which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.model.programs import cross_program, encoder_program, hybrid_program, one_span, tiny_program

from plait.core.errors import InvariantError
from plait.core.ids import GroupId
from plait.model.builder import ProgramBuilder
from plait.model.checks import canonical_form, groups_of, live_after, root_of
from plait.model.ops import Act, Activation, Add, Attend, CacheWrite, Linear, Norm, Op, Scale, Space, Value, ValueId
from plait.model.program import CacheGroup, GroupKind, Program, Span, WeightRole, WeightSpec
from plait.model.visibility import CAUSAL, window

Change = Callable[[Program], Program]


def with_op(place: int, change: Callable[[Op], Op]) -> Change:
    def apply(program: Program) -> Program:
        ops = list(program.ops)
        ops[place] = change(ops[place])
        return replace(program, ops=tuple(ops))

    return apply


def with_span(place: int, **fields: object) -> Change:
    def apply(program: Program) -> Program:
        spans = list(program.spans)
        old = spans[place]
        values = {name: fields.get(name, getattr(old, name)) for name in Span.__dataclass_fields__}
        spans[place] = Span(**values)  # type: ignore[arg-type]
        return replace(program, spans=tuple(spans))

    return apply


def with_value(place: int, value: Value) -> Change:
    def apply(program: Program) -> Program:
        values = list(program.values)
        values[place] = value
        return replace(program, values=tuple(values))

    return apply


def swapped(a: int, b: int) -> Change:
    def apply(program: Program) -> Program:
        ops = list(program.ops)
        ops[a], ops[b] = ops[b], ops[a]
        return replace(program, ops=tuple(ops))

    return apply


def place_of(kind: type[Op], nth: int = 0) -> int:
    places = [place for place, op in enumerate(tiny_program().ops) if isinstance(op, kind)]
    return places[nth]


ORDER_FAULTS: list[tuple[Change, str]] = [
    (swapped(1, 2), r"op 1 \(Linear\) uses layers.0.attn_norm before it is defined"),
    (with_op(1, lambda op: Norm((ValueId(0),), ValueId(0), "layers.0.attn_norm", 1e-5)), "defines embed a second time"),
    (with_op(1, lambda op: Norm((ValueId(99),), ValueId(1), "layers.0.attn_norm", 1e-5)), "names unknown value 99"),
    (with_op(1, lambda op: Norm((ValueId(0),), ValueId(-1), "layers.0.attn_norm", 1e-5)), "names unknown value -1"),
    (
        with_op(2, lambda op: Linear((ValueId(1),), ValueId(2), "layers.0.other")),
        "names unknown weight layers.0.other",
    ),
    (
        with_op(place_of(CacheWrite), lambda op: CacheWrite((ValueId(6), ValueId(4)), GroupId(7), 0)),
        "names unknown cache group 7",
    ),
]


@pytest.mark.parametrize(("change", "message"), ORDER_FAULTS)
def test_ops_out_of_order_or_with_unknown_names(change: Change, message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        change(tiny_program()).validate()


def test_a_value_that_no_op_defines() -> None:
    program = tiny_program()
    orphan = Value(ValueId(len(program.values)), Space.TOKENS, 8, "orphan")
    with pytest.raises(InvariantError, match="value orphan is defined by no op"):
        replace(program, values=(*program.values, orphan)).validate()


NAMING_FAULTS: list[tuple[Change, str]] = [
    (with_value(3, Value(ValueId(4), Space.TOKENS, 4, "k")), "value k has id 4 but stands at 3"),
    (with_value(3, Value(ValueId(3), Space.TOKENS, 0, "k")), "value k has width 0"),
    (with_value(3, Value(ValueId(3), Space.TOKENS, 4, "k", ValueId(99))), "view k names unknown value 99"),
    (with_value(3, Value(ValueId(3), Space.TOKENS, 4, "k", ValueId(0), 5)), "view k covers columns 5 to 9 of 8"),
    (with_value(3, Value(ValueId(3), Space.TOKENS, 4, "k", ValueId(0), -1)), "view k covers columns -1 to 3 of 8"),
    (with_value(3, Value(ValueId(3), Space.OUTPUTS, 4, "k", ValueId(0))), "view k is in outputs but embed in tokens"),
    (with_value(3, Value(ValueId(3), Space.TOKENS, 4, "k", ValueId(0))), "writes the view k"),
    (
        lambda program: replace(program, cache_groups=(replace(program.cache_groups[0], id=GroupId(1)),)),
        "cache group full has id 1 but stands at 0",
    ),
    (
        lambda program: replace(program, weights={**program.weights, "x": WeightSpec("y", (1,), WeightRole.NORM)}),
        "weight y is filed under x",
    ),
    (
        lambda program: replace(program, weights={**program.weights, "x": WeightSpec("x", (1,), WeightRole.NORM)}),
        "weight x is used by no op",
    ),
]


@pytest.mark.parametrize(("change", "message"), NAMING_FAULTS)
def test_values_groups_and_weights_that_are_not_what_they_say(change: Change, message: str) -> None:
    program = replace(tiny_program(), weights=dict(tiny_program().weights))
    with pytest.raises(InvariantError, match=message):
        change(program).validate()


def test_a_view_of_a_view_has_no_root() -> None:
    program = one_span(lambda b: b.sample(b.select(b.view(b.embed("embed", 32, 8), 0, 4, "half"))))
    nested = Value(ValueId(3), Space.TOKENS, 2, "quarter", ValueId(1))
    with pytest.raises(InvariantError, match="view quarter is a view of the view half"):
        replace(program, values=(*program.values, nested)).validate()


SPAN_FAULTS: list[tuple[Change, str]] = [
    (with_span(0, first=1), "span embed covers ops 1 to 0; it must start at 0"),
    (with_span(1, first=2), "span layers.0 covers ops 2 to 16; it must start at 1"),
    (with_span(1, last=15), "span layers.1 covers ops 17 to 32; it must start at 16"),
    (with_span(1, last=17), "span layers.1 covers ops 17 to 32; it must start at 18"),
    (with_span(3, last=35), "spans cover 36 of 37 ops"),
    (lambda program: replace(program, spans=program.spans[:-1]), "spans cover 33 of 37 ops"),
    (with_span(0, live_out=()), r"span embed has live_out \(\); liveness gives \(0,\)"),
    (with_span(1, live_out=(ValueId(0),)), r"span layers.0 has live_out \(0,\); liveness gives \(15,\)"),
    (with_span(3, live_out=(ValueId(0),)), r"span head has live_out \(0,\); liveness gives \(\)"),
    (with_span(2, groups=()), r"span layers.1 lists groups \(\); its ops use \(0,\)"),
    (with_span(3, kind="layer"), "spans layers.0 and head are both of kind layer but their ops differ"),
]


@pytest.mark.parametrize(("change", "message"), SPAN_FAULTS)
def test_spans_that_do_not_fit_their_ops(change: Change, message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        change(tiny_program()).validate()


DIFFERENCES: list[tuple[str, Callable[[Op], Op]]] = [
    ("an attribute", lambda op: Norm(op.inputs, ValueId(16), "layers.1.attn_norm", 1e-6)),  # type: ignore[arg-type]
    ("an op", lambda op: Scale(op.inputs, ValueId(16), 2.0)),  # type: ignore[arg-type]
    ("a weight", lambda op: Norm(op.inputs, ValueId(16), None, 1e-5)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("what", "change"), DIFFERENCES)
def test_layers_of_one_kind_may_differ_in_nothing_but_names(what: str, change: Callable[[Op], Op]) -> None:
    program = with_op(17, change)(tiny_program())
    kept = what == "an attribute"
    used = {name: spec for name, spec in program.weights.items() if kept or name != "layers.1.attn_norm"}
    with pytest.raises(InvariantError, match="of kind layer but their ops differ"):
        replace(program, weights=MappingProxyType(used)).validate()


def test_layers_of_two_cache_groups_are_of_two_kinds() -> None:
    program = tiny_program(window(8), CAUSAL)
    assert [span.kind for span in program.spans[1:3]] == ["layer window 8", "layer"]
    alike = [replace(span, kind="layer") if span.name.startswith("layers") else span for span in program.spans]
    with pytest.raises(InvariantError, match="their ops differ"):
        replace(program, spans=tuple(alike)).validate()


def test_a_layer_that_reuses_a_weight_differs_from_one_that_does_not() -> None:
    b = ProgramBuilder("test")
    b.span("embed", "embed")
    x = b.embed("embed", 32, 8)
    for name, second in (("first", "w1"), ("second", "w2")):
        b.span(name, "layer")
        x = b.linear(b.linear(x, f"{name}.w1", 8), f"{name}.{second}", 8)
    b.span("head", "head")
    b.sample(b.select(x))
    with pytest.raises(InvariantError, match="spans first and second are both of kind layer"):
        b.finish()


def cached(b: ProgramBuilder, kind: GroupKind = GroupKind.FULL) -> tuple[ValueId, ValueId, ValueId, GroupId]:
    """q, k, v and a group of two layers."""
    group = b.group(CacheGroup(GroupId(0), "kv", kind, 2, 1, 4, 4, max_rows=5))
    x = b.embed("embed", 32, 8)
    return b.linear(x, "q", 8), b.linear(x, "k", 4), b.linear(x, "v", 4), group


def test_keys_are_written_before_they_are_read() -> None:
    def build(b: ProgramBuilder) -> None:
        q, k, v, group = cached(b)
        y = b.attend(q, group, 1, 2)
        b.cache_write(k, v, group, 1)
        b.sample(b.select(y))

    with pytest.raises(InvariantError, match=r"op 4 \(Attend\) reads slot 1 of group 0 before it is written"):
        one_span(build)


def test_keys_that_nobody_writes_are_not_read() -> None:
    def build(b: ProgramBuilder) -> None:
        q, k, v, group = cached(b)
        b.cache_write(k, v, group, 0)
        b.sample(b.select(b.attend(q, group, 1, 2)))

    with pytest.raises(InvariantError, match="reads slot 1 of group 0, which no op writes"):
        one_span(build)


def test_a_slot_is_written_once() -> None:
    def build(b: ProgramBuilder) -> None:
        q, k, v, group = cached(b)
        b.cache_write(k, v, group, 0)
        b.cache_write(k, v, group, 0)
        b.sample(b.select(b.attend(q, group, 0, 2)))

    with pytest.raises(InvariantError, match=r"op 5 \(CacheWrite\) writes slot 0 of group 0 a second time"):
        one_span(build)


def test_a_later_layer_may_read_the_keys_of_an_earlier_one() -> None:
    def build(b: ProgramBuilder) -> None:
        q, k, v, group = cached(b)
        b.cache_write(k, v, group, 0)
        y = b.attend(q, group, 0, 2)
        b.sample(b.select(b.attend(y, group, 0, 2)))

    assert sum(isinstance(op, Attend) for op in one_span(build).ops) == 2


def test_cross_attention_may_read_what_another_program_wrote() -> None:
    cross_program().validate()
    encoder_program().validate()


def test_a_states_parts_are_written_separately() -> None:
    hybrid_program().validate()


def brute_live(ops: Sequence[Op], values: Sequence[Value], at: int) -> tuple[ValueId, ...]:
    """Defined at or before `at` (or given), and read behind it."""
    defined = {op.output for op in ops[: at + 1]} | ({value.id for value in values} - {op.output for op in ops})
    read = {root_of(values, value) for op in ops[at + 1 :] for value in op.inputs}
    return tuple(sorted(value for value in read if value in defined))


@given(choices=st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=12))
def test_liveness_equals_its_definition_on_random_graphs(choices: list[tuple[int, int]]) -> None:
    values = [Value(ValueId(i), Space.TOKENS, 1, f"v{i}") for i in range(len(choices) + 1)]
    ops: list[Op] = [
        Add((ValueId(a % (i + 1)), ValueId(b % (i + 1))), ValueId(i + 1)) for i, (a, b) in enumerate(choices)
    ]
    everywhere = list(range(len(ops)))
    assert live_after(ops, values, everywhere) == [brute_live(ops, values, at) for at in everywhere]


def test_groups_of_ops_are_listed_once_and_ascending() -> None:
    ops = [CacheWrite((ValueId(0), ValueId(1)), GroupId(group), 0) for group in (3, 1, 3)]
    assert groups_of(ops) == (1, 3)
    assert groups_of([Act((ValueId(0),), ValueId(1), Activation.SILU)]) == ()


def test_the_form_of_a_layer_does_not_depend_on_its_place() -> None:
    program = tiny_program()
    first, second = (canonical_form(program, program.ops_of(span)) for span in program.spans[1:3])
    assert first == second
    head = canonical_form(program, program.ops_of(program.spans[3]))
    assert head != first


def test_operands_in_another_order_are_another_form() -> None:
    program = tiny_program()
    add = program.ops[16]
    assert isinstance(add, Add)
    turned = [*program.ops[1:16], replace(add, inputs=add.inputs[::-1])]
    assert canonical_form(program, turned) != canonical_form(program, program.ops[1:17])
