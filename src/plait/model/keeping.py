"""Keeping: a program whose attention layers keep every token, for memory that knows no other kind of layer.

Owns the rewriting of cache groups. What a row sees is not touched: a layer with a window still looks at its window
alone, so answers are the same; it only keeps what no row will look at again.
Invariant: groups of equally wide heads become one, layers in the order in which they write.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.errors import UsageError
from plait.core.ids import GroupId
from plait.model.ops import CacheWrite
from plait.model.program import CacheGroup, GroupKind, Program
from plait.model.regrouping import Place, regrouped

_SHORT = (GroupKind.WINDOW, GroupKind.CHUNKED)


def keeps_all_tokens(program: Program) -> bool:
    return not any(group.kind in _SHORT for group in program.cache_groups)


def keep_all_tokens(program: Program) -> Program:
    """The same answers from memory without windows; a program that needs none is returned as it is.

    `UsageError` for windows beside layers that keep states or the rows of images.
    """
    if keeps_all_tokens(program):
        return program
    others = [group.name for group in program.cache_groups if group.kind not in (GroupKind.FULL, *_SHORT)]
    if others:
        raise UsageError(
            f"--kv-layout uniform: this model has windows beside {others[0]}, which hold no tokens of a sequence, and "
            "one block table for all layers cannot hold both; serve it with --kv-layout paged"
        )
    return regrouped(program, *_merged(program))


def _merged(program: Program) -> tuple[tuple[CacheGroup, ...], Mapping[Place, Place]]:
    """The new groups, and the new place of every layer that is written."""
    of_shape: dict[tuple[int, int, int], GroupId] = {}
    counts: dict[GroupId, int] = {}
    places: dict[Place, Place] = {}
    for op in program.ops:
        if not isinstance(op, CacheWrite):
            continue
        old = program.cache_groups[op.group]
        shape = (old.num_kv_heads, old.head_dim_k, old.head_dim_v)
        group = of_shape.setdefault(shape, GroupId(len(of_shape)))
        places[op.group, op.slot] = (group, counts.get(group, 0))
        counts[group] = counts.get(group, 0) + 1
    groups = tuple(
        CacheGroup(group, "full" if group == 0 else f"full {group}", GroupKind.FULL, counts[group], *shape)
        for shape, group in of_shape.items()
    )
    return groups, places
