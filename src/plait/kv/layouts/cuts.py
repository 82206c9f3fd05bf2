"""Cuts: how a layout divides one group into blocks, and what the blocks of a load hold, byte by byte.

Owns the causes of waste and the count of blocks; a layout is a set of cuts and pages around them.
Invariant: reserved bytes == needed bytes + the sum of all waste, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from plait.kv.layouts.groups import Load, MemoryGroup, SequenceSize
from plait.model.parts import GroupKind


class Cause(StrEnum):
    """Why bytes are reserved that nothing needs."""

    OUT_OF_WINDOW = "out_of_window"
    """Tokens that the layer will not look at again."""
    OTHER_ROWS = "other_rows"
    """Places for text in layers that read images only, or the other way round."""
    LAST_BLOCK = "last_block"
    """Places behind the last token, in blocks of the size asked for."""
    BLOCK_INFLATION = "block_inflation"
    """More of both, because the layout's blocks are larger than asked for."""
    LAYER_PADDING = "layer_padding"
    """Layers that do not exist, to make groups of layers equal."""
    BLOCK_PADDING = "block_padding"
    """Bytes behind a block's content, to make blocks equal."""
    PAGE_ROUNDING = "page_rounding"
    """Blocks of a group's pages that no sequence uses."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Blocks of one group. `block_bytes` is a block of one of its `num_tables` block tables, padding included."""

    group: MemoryGroup
    asked_tokens: int
    """Tokens per block that were asked for."""
    tokens_per_block: int
    """0 for states: a block is one state."""
    block_bytes: int
    num_tables: int = 1
    layer_padding_bytes: int = 0
    """In one block of every table together."""
    block_padding_bytes: int = 0
    """In one block of every table together."""
    blocks_per_page: int = 1
    keeps_all: bool = False
    """Whether all rows of a sequence are kept in this group, those that it never reads too."""

    def blocks(self, size: SequenceSize, *, peak: bool = False) -> int:
        """Blocks of one table."""
        if self.group.is_state:
            return 1 if size.tokens else 0
        return self._count(size, self.tokens_per_block, peak)

    def _rows(self, size: SequenceSize) -> int:
        return size.total if self.keeps_all else self.group.rows(size)

    def _count(self, size: SequenceSize, tokens: int, peak: bool) -> int:
        rows, window = self._rows(size), self.group.window
        whole = -(-rows // tokens)
        if self.keeps_all or window == 0 or rows <= window:
            return whole
        touched = (window - 2) // tokens + 2 if window > 1 else 1
        if self.group.kind is GroupKind.CHUNKED:
            return min(whole, touched if window % tokens else window // tokens)
        return min(whole, touched) if peak else whole - (rows - window) // tokens

    def usage(self, load: Load) -> GroupUsage:
        """What the blocks of a load hold. Pages around them are the layout's business."""
        waste = dict.fromkeys(Cause, 0)
        needed = blocks = 0
        for count, size in load.sequences:
            used = self.blocks(size, peak=load.peak)
            blocks += count * used * self.num_tables
            needed += count * self.group.needed_bytes(size)
            waste[Cause.LAYER_PADDING] += count * used * self.layer_padding_bytes
            waste[Cause.BLOCK_PADDING] += count * used * self.block_padding_bytes
            if not self.group.is_state:
                for cause, slots in self._idle_slots(size, load.peak).items():
                    waste[cause] += count * slots * self.group.bytes_per_token
        return GroupUsage(self.group.name, blocks, needed, {cause: size for cause, size in waste.items() if size})

    def _idle_slots(self, size: SequenceSize, peak: bool) -> dict[Cause, int]:
        """Slots of one sequence's blocks that hold nothing needed."""
        rows, own, needed = self._rows(size), self.group.rows(size), self.group.needed_tokens(size)
        asked = self._count(size, self.asked_tokens, peak) * self.asked_tokens
        if self.group.kind is GroupKind.CHUNKED and not self.keeps_all:
            unfilled = asked - needed
        else:
            unfilled = -rows % self.asked_tokens
        return {
            Cause.OTHER_ROWS: rows - own,
            Cause.OUT_OF_WINDOW: asked - unfilled - needed - (rows - own),
            Cause.LAST_BLOCK: unfilled,
            Cause.BLOCK_INFLATION: self.blocks(size, peak=peak) * self.tokens_per_block - asked,
        }


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """Memory of one group under one load."""

    name: str
    blocks: int
    needed_bytes: int
    waste: Mapping[Cause, int]
    """Bytes by cause; causes without any are left out."""

    def times(self, copies: int) -> GroupUsage:
        waste = {cause: size * copies for cause, size in self.waste.items()}
        return GroupUsage(self.name, self.blocks * copies, self.needed_bytes * copies, waste)

    @property
    def waste_bytes(self) -> int:
        return sum(self.waste.values())

    @property
    def reserved_bytes(self) -> int:
        return self.needed_bytes + self.waste_bytes


def plain_cut(group: MemoryGroup, tokens_per_block: int, *, keeps_all: bool = False) -> Cut:
    """Blocks of so many tokens of all layers, or of one state, with nothing around them."""
    if group.is_state:
        return Cut(group, 0, 0, group.num_layers * group.state_bytes)
    size = tokens_per_block * group.bytes_per_token
    return Cut(group, tokens_per_block, tokens_per_block, size, keeps_all=keeps_all)
