"""Checkpoints: behind which tokens copies of a sequence's states are kept, and how much memory they may take.

Owns the policies, each a small value without memory of its own, and the limit. Knows no step: the scheduler asks where,
takes the blocks from the facade and puts them into chunks.
Invariant: lengths are where a hit can end, and the newest checkpoints stay when the limit is reached.

A state can be taken up exactly where a copy of it was made, so where copies are made decides what is hit. Jenga (SOSP
2025, section 5.3) makes one every 512 tokens; a prompt of 400 tokens then hits nothing. `ByUse` puts them where
prefixes end in practice. Beside attention that is behind whole blocks: inside a block a copy is of use only once
somebody has filled it, so one is made there only of a prompt that is no longer than a block. States alone have no
blocks of tokens, so copies are made exactly where prompts end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from plait.kv.blocks import BlockPool, BlockState
from plait.kv.index import PrefixIndex
from plait.kv.tables import SeqTable
from plait.model.cache_layout import CacheLayout


@dataclass(frozen=True, slots=True)
class PromptMarks:
    """What is known of a prompt when it starts."""

    num_tokens: int
    num_matched: int = 0
    """Leading tokens, in whole blocks, that another prompt had as well: where this one branches off."""
    message_ends: tuple[int, ...] = ()
    """Lengths behind which a message ends, ascending."""


class CheckpointPolicy(Protocol):
    """Where copies are wanted."""

    def lengths(self, marks: PromptMarks, start: int, end: int, tokens_per_block: int) -> list[int]:
        """Lengths in (start, end], the tokens that one chunk computes: ascending. Those that are no multiples of
        `tokens_per_block` can be hit only behind a block that somebody filled; 1: there are no blocks of tokens.
        """


@dataclass(frozen=True, slots=True)
class EveryTokens:
    """At every multiple, in prompts and answers alike."""

    num_tokens: int = 512

    def lengths(self, marks: PromptMarks, start: int, end: int, tokens_per_block: int) -> list[int]:
        every = -(-self.num_tokens // tokens_per_block) * tokens_per_block
        return list(range(start // every * every + every, end + 1, every))


@dataclass(frozen=True, slots=True)
class ByUse:
    """Where a later prompt may end or branch off: the end of the prompt, its branch point, ends of messages; and now
    and then in long answers, because they begin the next turn.
    """

    num_messages: int = 2
    """Of the ends of messages, so many last ones, and the first: that of the instructions which many prompts share."""
    answer_tokens: int = 512
    """Between checkpoints of an answer."""

    def lengths(self, marks: PromptMarks, start: int, end: int, tokens_per_block: int) -> list[int]:
        ends = marks.message_ends
        # One token must be computed to go on from, so the same prompt again takes up one token less than all.
        last = marks.num_tokens - 1
        wanted = {last, marks.num_matched, *ends[:1], *ends[-self.num_messages :]}
        if tokens_per_block > 1:
            wanted.add(marks.num_tokens)
        if end > marks.num_tokens:
            every = -(-self.answer_tokens // tokens_per_block) * tokens_per_block
            first = max(start, marks.num_tokens)
            wanted |= set(range(first // every * every + every, end + 1, every))
        whole = {length // tokens_per_block * tokens_per_block for length in wanted}
        if last < tokens_per_block:
            whole.add(last)  # nothing else of it could be hit
        return sorted(length for length in whole if start < length <= end)


BY_USE = ByUse()
"""As long as nobody says otherwise."""


class CheckpointRoom:
    """The part of the memory that checkpoints may take: beyond it the oldest go first, those in use excepted."""

    def __init__(
        self,
        layout: CacheLayout,
        pools: Sequence[BlockPool],
        states: Sequence[int],
        index: PrefixIndex,
        fraction: float,
    ) -> None:
        self._pools = tuple(pools)
        self._states = tuple(states)
        self._index = index
        one = sum(pools[g].layout.block_bytes for g in states)
        self.most = int(layout.pool_bytes * fraction) // one if one else 0
        """Checkpoints of all states at once."""

    def make_room(self, tables: Iterable[SeqTable]) -> bool:
        """Whether one more may be made, after dropping older ones."""
        under_way = sum(len(table.checkpoints) for table in tables)
        for g in self._states:
            counts = self._pools[g].counts
            while counts[BlockState.SHARED] + counts[BlockState.EVICTABLE] + under_way >= self.most:
                oldest = self._index.oldest_piece(g)
                if oldest is None:
                    return False
                self._index.drop(oldest)
        return True
