"""Geometry: how the layers of every group are cut into blocks, chosen so that little is wasted in the pages around
them.

Owns the search. A page must hold whole blocks of every group, so it is the least common multiple of their bytes; for
odd pairs of sizes that is hundreds of blocks. Two things make it smaller: a group's layers in several block tables of
equally many layers, and up to 1 % of padding behind a block that makes it a multiple of the others' unit.
Invariant: the least common multiple of whole, unpadded blocks is a candidate, so nothing chosen wastes more than it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, lcm

from plait.kv.layouts.cuts import Cut, plain_cut
from plait.kv.layouts.groups import Load, MemoryGroup, SequenceSize
from plait.kv.layouts.layout import Layout

MOST_PADDING = 0.01
"""Part of a block's content that padding may be."""
MOST_TABLES = 8
"""Block tables of one group: each costs its part of every step."""
WORTH = 0.002
"""A smaller part of the memory is no reason for more tables or for padding."""
MIX = (Load(((32, SequenceSize(500)),)), Load(((8, SequenceSize(16_384)),)))
"""What memory is cut for: many short sequences, and some long ones. Judged by the worse of the two."""


SHOWN = 5
"""Candidates that a report names."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of cutting, and the waste predicted for it, of what is reserved, for each load of the mix."""

    cuts: tuple[Cut, ...]
    wastes: tuple[float, ...]

    @property
    def page_bytes(self) -> int:
        return _page_of(self.cuts)

    @property
    def waste_fraction(self) -> float:
        """For the worse load."""
        return max(self.wastes, default=0.0)

    @property
    def num_tables(self) -> int:
        return sum(cut.num_tables for cut in self.cuts)


@dataclass(frozen=True, slots=True)
class Geometry:
    cuts: tuple[Cut, ...]
    page_bytes: int
    waste_fraction: float
    """Predicted, of what is reserved, for the worse load of the mix."""
    raw_page_bytes: int
    raw_waste_fraction: float
    """The same for whole blocks without padding."""
    num_candidates: int = 1
    shown: tuple[Candidate, ...] = ()
    """The chosen one first; then, for other numbers of tables, the one of least waste, and whole blocks without padding
    last.
    """

    @property
    def is_raw(self) -> bool:
        return all(cut.num_tables == 1 and not cut.block_padding_bytes for cut in self.cuts)


def choose(
    groups: Sequence[MemoryGroup], tokens_per_block: int, mix: Sequence[Load] = MIX, *, pads: bool = True
) -> Geometry:
    """The geometry with the least waste; within `WORTH` of it, the one of fewest tables, least padding and smallest
    pages. `pads=False`: only tables are tried.
    """
    plain = [plain_cut(group, tokens_per_block) for group in groups]
    raw = _candidate(plain, mix)
    found = [raw]
    for cuts in product(*(tuple(_in_tables(cut)) for cut in plain)):
        for unit in _units(cuts) if pads else (1,):
            padded = [_padded(cut, unit) for cut in cuts]
            if all(cut is not None for cut in padded):
                found.append(_candidate([cut for cut in padded if cut is not None], mix))
    least = min(one.waste_fraction for one in found)
    good = [one for one in found if one.waste_fraction <= least + WORTH]
    best = min(good, key=lambda one: (_cost(one.cuts), one.waste_fraction))
    return Geometry(
        best.cuts,
        best.page_bytes,
        best.waste_fraction,
        raw.page_bytes,
        raw.waste_fraction,
        len({one.cuts for one in found}),
        _shown(best, raw, found),
    )


def _shown(best: Candidate, raw: Candidate, found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    by_tables: dict[int, Candidate] = {}
    for one in sorted(found, key=lambda one: (one.waste_fraction, _cost(one.cuts))):
        by_tables.setdefault(one.num_tables, one)
    others = [one for _, one in sorted(by_tables.items()) if one.cuts not in (best.cuts, raw.cuts)]
    others.sort(key=lambda one: one.waste_fraction)
    last = [raw] if raw.cuts != best.cuts else []
    return (best, *others[: SHOWN - 1 - len(last)], *last)


def _cost(cuts: Sequence[Cut]) -> tuple[int, int, int]:
    return sum(cut.num_tables for cut in cuts), sum(cut.block_padding_bytes for cut in cuts), _page_of(cuts)


def _in_tables(cut: Cut) -> Iterator[Cut]:
    """A group's layers in as many tables as divide them."""
    layers = cut.group.num_layers
    for tables in range(1, min(layers, MOST_TABLES) + 1):
        if layers % tables == 0:
            yield replace(cut, num_tables=tables, block_bytes=cut.block_bytes // tables)


def _units(cuts: Sequence[Cut]) -> set[int]:
    """What blocks might be multiples of: 1, and the blocks themselves and simple parts of them."""
    sizes = {cut.block_bytes for cut in cuts}
    return {1, *sizes, *(size // part for size in sizes for part in (2, 3, 4) if size % part == 0)}


def _padded(cut: Cut, unit: int) -> Cut | None:
    """With the padding that makes the block a multiple of `unit`; None: that is too much."""
    padding = -cut.block_bytes % unit
    if padding > MOST_PADDING * cut.block_bytes:
        # It may still divide the unit; then others are multiples of it.
        return cut if gcd(cut.block_bytes, unit) == cut.block_bytes else None
    return replace(cut, block_bytes=cut.block_bytes + padding, block_padding_bytes=padding * cut.num_tables)


def _page_of(cuts: Sequence[Cut]) -> int:
    return lcm(*(cut.block_bytes for cut in cuts))


def _paged(cuts: Sequence[Cut]) -> tuple[Cut, ...]:
    page = _page_of(cuts)
    return tuple(replace(cut, blocks_per_page=page // cut.block_bytes) for cut in cuts)


def _candidate(plain: Sequence[Cut], mix: Sequence[Load]) -> Candidate:
    """With pages that the tables of a group share."""
    cuts = _paged(plain)
    layout = Layout("geometry", cuts, _page_of(cuts))
    usages = [layout.usage(load) for load in mix]
    return Candidate(cuts, tuple(one.waste_bytes / one.reserved_bytes for one in usages if one.reserved_bytes))
