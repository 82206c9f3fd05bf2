"""Layout: a way of cutting memory, as a value, and what it reserves for a load.

Owns the packing of blocks into pages. Each way has a file beside this one that makes a `Layout` out of groups.
Invariant: what is reserved for a load that fits never exceeds the memory it was to fit into.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from plait.kv.layouts.cuts import Cause, Cut, GroupUsage
from plait.kv.layouts.groups import Load


@dataclass(frozen=True, slots=True)
class Refused:
    """A layout that cannot hold the model, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Layout:
    """One way of cutting memory for one model."""

    name: str
    cuts: tuple[Cut, ...]
    page_bytes: int
    """What is lent to a group at once; 0: single blocks."""
    spare_bytes: int = 0
    """Set aside whatever runs."""
    shares: tuple[Fraction, ...] = ()
    """Part of the memory that belongs to each cut for good; empty: all of it belongs to whoever needs it."""
    hit_tokens: int | None = None
    """Lengths at which a cached prefix can be taken up are multiples of this; None: no prefix is cached."""

    def usage(self, load: Load, copies: int = 1) -> Usage:
        """Copies of a load, which share pages."""
        return Usage(tuple(_in_pages(cut, cut.usage(load).times(copies)) for cut in self.cuts))

    def fits(self, load: Load, memory_bytes: int) -> bool:
        return self.holds([cut.usage(load).blocks for cut in self.cuts], memory_bytes)

    def holds(self, blocks: Sequence[int], memory_bytes: int) -> bool:
        """Whether so many blocks of each cut fit, in their pages."""
        reserved = [_whole_pages(cut, count) * cut.block_bytes for cut, count in zip(self.cuts, blocks, strict=True)]
        if sum(reserved) + self.spare_bytes > memory_bytes:
            return False
        return all(size <= share * memory_bytes for size, share in zip(reserved, self.shares, strict=False))

    def repeated_tokens(self, tokens: int) -> int:
        """Tokens of a prompt that need not be computed when the same prompt comes again: one is always left."""
        return 0 if self.hit_tokens is None else max(0, tokens - 1) // self.hit_tokens * self.hit_tokens


def _whole_pages(cut: Cut, blocks: int) -> int:
    """The blocks of as many pages as so many blocks need."""
    unit = cut.num_tables * cut.blocks_per_page
    return -(-blocks // unit) * unit


def _in_pages(cut: Cut, counted: GroupUsage) -> GroupUsage:
    idle = _whole_pages(cut, counted.blocks) - counted.blocks
    if not idle:
        return counted
    return replace(counted, waste={**counted.waste, Cause.PAGE_ROUNDING: idle * cut.block_bytes})


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of all groups under one load, in the order of the layout's cuts."""

    groups: tuple[GroupUsage, ...]

    @property
    def needed_bytes(self) -> int:
        return sum(group.needed_bytes for group in self.groups)

    @property
    def reserved_bytes(self) -> int:
        return sum(group.reserved_bytes for group in self.groups)

    @property
    def waste_bytes(self) -> int:
        return self.reserved_bytes - self.needed_bytes

    @property
    def waste(self) -> dict[Cause, int]:
        """Bytes by cause, causes without any left out."""
        total = {cause: sum(group.waste.get(cause, 0) for group in self.groups) for cause in Cause}
        return {cause: size for cause, size in total.items() if size}


def checkpoint_unit(cuts: tuple[Cut, ...], tokens: int, interval: int) -> int:
    """Multiples at which a prefix can be taken up: whole blocks, and where there are states a checkpoint of them."""
    has_state = any(cut.group.is_state for cut in cuts)
    return -(-interval // tokens) * tokens if has_state else tokens
