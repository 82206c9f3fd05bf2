"""Serving: the chosen geometry, made real for a program that is about to be served.

Owns the way from a program's cache groups to the layouts' words and back. Knows no executor.
Invariant: the program computes the same; its layers only lie in as many block tables as were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.kv.layouts.geometry import Geometry, choose
from plait.kv.layouts.groups import MemoryGroup, StatePart
from plait.model.cache_layout import head_token_bytes
from plait.model.cache_type import CacheType
from plait.model.parts import CacheGroup
from plait.model.program import Program
from plait.model.regrouping import in_tables


def groups_of(groups: Sequence[CacheGroup], cache_type: CacheType, state_type: CacheType) -> list[MemoryGroup]:
    return [
        MemoryGroup(
            group.name,
            group.kind,
            group.num_layers,
            0 if group.is_state else group.num_kv_heads * head_token_bytes(group, cache_type),
            group.window,
            tuple(StatePart(str(n), size * state_type.number_bytes) for n, size in enumerate(group.state_parts)),
        )
        for group in groups
    ]


def cut(
    program: Program, tokens_per_block: int, cache_type: CacheType, *, equal_blocks: bool = False
) -> tuple[Program, Geometry | None]:
    """The program with its layers in the tables that waste least; None where there is nothing to choose: for a single
    group, or where all blocks are made equal.
    """
    if len(program.cache_groups) < 2 or equal_blocks:
        return program, None
    groups = groups_of(program.cache_groups, cache_type, CacheType.F32)
    geometry = choose(groups, tokens_per_block, pads=False)
    tables = {group.id: one.num_tables for group, one in zip(program.cache_groups, geometry.cuts, strict=True)}
    return in_tables(program, tables), geometry


def described(geometry: Geometry) -> str:
    """One line for whoever starts it."""
    parts = ", ".join(
        f"{one.group.name}: {one.blocks_per_page} x {one.group.num_layers // one.num_tables} layers"
        + (f" in {one.num_tables} tables" if one.num_tables > 1 else "")
        for one in geometry.cuts
    )
    raw = "" if geometry.is_raw else f", whole groups would waste {geometry.raw_waste_fraction:.1%}"
    return (
        f"cache pages of {geometry.page_bytes / 1024:,.0f} KiB ({parts}); predicted waste "
        f"{geometry.waste_fraction:.1%} of 32 sequences of 500 tokens or 8 of 16,384, whichever is more{raw}"
    )
