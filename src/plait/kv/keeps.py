"""Keeps: what each kind of layer needs of a sequence. A new kind of layer is one class here, or anywhere else.

Owns the rules of the kinds, in tokens and table entries. Knows nothing of blocks, nodes or sequences.
Invariant: what is dead behind n tokens is dead behind more; a length is a possible hit only if everything alive behind
it is there.

The four questions are those of Jenga (SOSP'25), section 5: bytes of a block (the layout's `block_bytes`), what the next
token needs (`dead`, its complement), which prefixes can be taken up (`possible`), and what goes first among equally old
(`priority`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from plait.core.errors import InvariantError, ModelError
from plait.model.cache_layout import CacheLayout, GroupLayout
from plait.model.parts import CacheGroup, GroupKind
from plait.model.visibility import CAUSAL, Visibility, chunk, window


class Keeps(Protocol):
    """What the memory asks about a cache group."""

    @property
    def is_state(self) -> bool:
        """Whether a sequence has one running state instead of a table of tokens."""

    @property
    def keeps_all(self) -> bool:
        """Whether `dead` is empty whatever its argument."""

    def dead(self, num_tokens: int) -> range:
        """Table entries that no row behind `num_tokens` tokens will look at. Neither end ever decreases."""

    def possible(self, has: Sequence[bool]) -> list[range]:
        """Lengths, in blocks, of prefixes that can be taken up: ascending, disjoint, 0 among them. `has`: which blocks
        of a prompt are cached; of a state, behind which blocks it is.
        """

    def priority(self, num_tokens: int) -> int:
        """Of the block that ends a prefix of `num_tokens`: among equally old ones the larger goes first."""

    def most_blocks(self, num_tokens: int, num_ahead: int) -> int:
        """Blocks held at once at most on the way to `num_tokens` tokens, of which `num_ahead` are not committed yet."""


@dataclass(frozen=True, slots=True)
class KeepsTokens:
    """Keys and values of the tokens that rows see: all, a window, or the row's own stretch."""

    tokens_per_block: int
    visibility: Visibility = CAUSAL
    hit_blocks: int | None = None
    """Blocks before a hit's end that a window asks for; None: as many as its next row sees, ceil((W - 1) / B)."""

    @property
    def is_state(self) -> bool:
        return False

    @property
    def keeps_all(self) -> bool:
        return self.visibility == CAUSAL

    def dead(self, num_tokens: int) -> range:
        return range(self.visibility.first(num_tokens) // self.tokens_per_block)

    def possible(self, has: Sequence[bool]) -> list[range]:
        found = [range(1)]
        start = 0
        """Of the run of cached blocks that `end` ends."""
        for end, is_there in enumerate(has, start=1):
            start = start if is_there else end
            if start <= self._first_asked(end):
                if found[-1].stop == end:
                    found[-1] = range(found[-1].start, end + 1)
                else:
                    found.append(range(end, end + 1))
            elif self.keeps_all:
                break
        return found

    def _first_asked(self, end: int) -> int:
        if self.hit_blocks is not None:
            return max(0, end - self.hit_blocks)
        return self.visibility.first(end * self.tokens_per_block) // self.tokens_per_block

    def priority(self, num_tokens: int) -> int:
        return num_tokens

    def most_blocks(self, num_tokens: int, num_ahead: int) -> int:
        whole = -(-num_tokens // self.tokens_per_block)
        if self.keeps_all:
            return whole
        return min(whole, (self.visibility.size + num_ahead - 3) // self.tokens_per_block + 2)


@dataclass(frozen=True, slots=True)
class KeepsState:
    """One running state, and checkpoints of it: a prefix can be taken up exactly where there is one."""

    @property
    def is_state(self) -> bool:
        return True

    @property
    def keeps_all(self) -> bool:
        return False

    def dead(self, num_tokens: int) -> range:
        return range(0)

    def possible(self, has: Sequence[bool]) -> list[range]:
        return [range(1), *(range(end, end + 1) for end, is_there in enumerate(has, start=1) if is_there)]

    def priority(self, num_tokens: int) -> int:
        return num_tokens

    def most_blocks(self, num_tokens: int, num_ahead: int) -> int:
        return 1 if num_tokens else 0


@dataclass(frozen=True, slots=True)
class KeepsRows:
    """Rows of images, which are no tokens of the sequence: `plait.kv.images` has them."""

    is_transient: bool = False
    """Nobody looks at an image's rows once its tokens are computed."""

    @property
    def is_state(self) -> bool:
        return False

    @property
    def keeps_all(self) -> bool:
        return False

    def dead(self, num_tokens: int) -> range:
        return range(0)

    def possible(self, has: Sequence[bool]) -> list[range]:
        """Whatever is missing is encoded again, and no token with it."""
        return [range(len(has) + 1)]

    def priority(self, num_tokens: int) -> int:
        return 0

    def most_blocks(self, num_tokens: int, num_ahead: int) -> int:
        return 0


def keeps_of(layout: GroupLayout) -> Keeps:
    """The rules of a group's kind."""
    group, size = layout.group, layout.tokens_per_block
    match group.kind:
        case GroupKind.FULL:
            return KeepsTokens(size)
        case GroupKind.WINDOW:
            return KeepsTokens(size, window(group.window))
        case GroupKind.CHUNKED:
            return KeepsTokens(size, chunk(group.window))
        case GroupKind.STATE:
            return KeepsState()
        case GroupKind.CROSS | GroupKind.EMBEDDING:
            return KeepsRows(is_transient=group.kind is GroupKind.EMBEDDING)


def windows_of(keeps: Sequence[Keeps]) -> list[int]:
    """Groups of tokens that give some up."""
    return [
        g for g, one in enumerate(keeps) if not one.is_state and not one.keeps_all and not isinstance(one, KeepsRows)
    ]


def longest_possible(of_groups: Sequence[list[range]]) -> int:
    """The longest length, in blocks, that is possible in every group (Jenga, section 5.2)."""
    length = min(lengths[-1].stop - 1 for lengths in of_groups)
    places = [len(lengths) - 1 for lengths in of_groups]
    before = -1
    while length != before:
        before = length
        for g, lengths in enumerate(of_groups):
            while lengths[places[g]].start > length:
                places[g] -= 1
            length = min(length, lengths[places[g]].stop - 1)
    return length


def refuse_unsupported(layout: CacheLayout, groups: Sequence[CacheGroup]) -> None:
    """Layouts that the memory cannot serve."""
    if tuple(groups) != tuple(one.group for one in layout.groups):
        raise InvariantError(
            f"the layout is of groups {[one.group.name for one in layout.groups]}, not {[g.name for g in groups]}"
        )
    if not groups:
        raise ModelError("the model has no cache group, so there is nothing to serve; choose a model with attention")
    sizes = [one.tokens_per_block for one in layout.groups if not one.group.is_state]
    if len(set(sizes)) > 1:
        raise ModelError(
            f"cache groups with {sizes} tokens per block cannot share an index yet; give all groups the same"
        )
