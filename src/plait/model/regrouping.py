"""Regrouping: a program whose layers keep what they kept in other cache groups.

Owns the rewriting of group and slot in every op. What is computed is not touched.
Invariant: two layers that shared a place share one afterwards, and no others do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from plait.core.errors import InvariantError
from plait.core.ids import GroupId
from plait.model.checks import groups_of
from plait.model.ops import Attend, CacheWrite, Conv, Op, Scan
from plait.model.program import CacheGroup, Program, Span

Place = tuple[GroupId, int]
"""A layer of a cache group."""


def regrouped(program: Program, groups: tuple[CacheGroup, ...], places: Mapping[Place, Place]) -> Program:
    """`places`: the new place of every layer that is written."""
    ops = tuple(_moved(op, places) for op in program.ops)
    spans = tuple(_spans(program.spans, ops))
    return program.rebuilt(ops, program.values, spans, program.weights, groups)


def in_tables(program: Program, num_tables: Mapping[GroupId, int]) -> Program:
    """Every group's layers in so many groups of equally many, in order; a program that needs none is returned as it is.
    Each has a block table of its own, and blocks of fewer layers.
    """
    layers = {}
    for group in program.cache_groups:
        count = num_tables.get(group.id, 1)
        if group.num_layers % count:
            raise InvariantError(f"{group.num_layers} layers of group {group.name} do not divide into {count} tables")
        layers[group.id] = group.num_layers // count
    return in_parts(program, layers)


def in_parts(program: Program, most_layers: Mapping[GroupId, int]) -> Program:
    """Every group's layers in groups of so many, in order, the last of what is left."""
    if all(most_layers[group.id] >= group.num_layers for group in program.cache_groups):
        return program
    groups: list[CacheGroup] = []
    places: dict[Place, Place] = {}
    for group in program.cache_groups:
        layers = most_layers[group.id]
        first = len(groups)
        for part, start in enumerate(range(0, group.num_layers, layers), start=1):
            name = group.name if part == 1 else f"{group.name}, part {part}"
            count = min(layers, group.num_layers - start)
            groups.append(replace(group, id=GroupId(len(groups)), name=name, num_layers=count))
        for slot in range(group.num_layers):
            places[group.id, slot] = (GroupId(first + slot // layers), slot % layers)
    return regrouped(program, tuple(groups), places)


def _spans(spans: Sequence[Span], ops: Sequence[Op]) -> Iterator[Span]:
    """Spans of one kind that come to use different groups are of different kinds."""
    known: dict[str, list[tuple[GroupId, ...]]] = {}
    for span in spans:
        groups = groups_of(tuple(ops[span.first : span.last + 1]))
        seen = known.setdefault(span.kind, [])
        if groups not in seen:
            seen.append(groups)
        part = seen.index(groups) + 1
        yield replace(span, groups=groups, kind=span.kind if part == 1 else f"{span.kind}, part {part}")


def _moved(op: Op, places: Mapping[Place, Place]) -> Op:
    match op:
        case CacheWrite() | Conv() | Scan():
            group, slot = places[op.group, op.slot]
            return replace(op, group=group, slot=slot)
        case Attend() if op.group is not None:
            group, slot = places[op.group, op.slot]
            return replace(op, group=group, slot=slot)
        case _:
            return op
