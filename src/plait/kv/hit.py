"""Hits: what a prompt finds in the prefix index, as values.

Owns `Root`, the key under which prefixes may be shared, and `Hit`. Knows nothing about where blocks come from.
Invariant: two sequences share KV only if their roots are equal; a hit holds no references, so it is stale after the
next eviction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from plait.core.ids import BlockId, SeqId, StepId

NO_BLOCK: Final = BlockId(-1)
"""A table entry without a block: no row will look at its tokens any more."""


@dataclass(frozen=True, slots=True)
class Root:
    """Everything besides the token ids that KV depends on, or that must not be shared."""

    fingerprint: str
    """Numerics fingerprint of the executor."""
    tenant: str = ""
    adapter: str | None = None
    images: tuple[bytes, ...] = ()
    """Content hashes of the prompt's images, in order."""


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image of a prompt."""

    content_hash: bytes
    num_rows: int
    """Of the encoder."""
    end: int
    """Tokens of the prompt behind which nobody reads its embeddings."""


@dataclass(frozen=True, slots=True)
class Tail:
    """A published block, or one that a living sequence is filling (one per group), whose first `num_tokens` tokens,
    fewer than it holds or than may be used, match too.

    It cannot enter a table as it is, because the rest of it will differ: those slots are copied into a private block by
    a `Move`.
    """

    blocks: tuple[BlockId, ...]
    num_tokens: int
    node: int | None = field(compare=False)
    """The block's node in the index; None: it is private, or there are states alone and nothing is copied but them."""
    seq: SeqId | None = None
    """Who fills a private block."""
    tokens: tuple[int, ...] = ()
    """Where there are states, those that match: behind them the states in `blocks` were copied."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The longest published prefix of a prompt: full blocks, and perhaps the beginning of one more."""

    num_tokens: int
    """In full blocks."""
    blocks: tuple[tuple[BlockId, ...], ...]
    """Per group, in token order; `NO_BLOCK` where no row behind the hit looks. Of a state, the checkpoint to copy."""
    tail: Tail | None
    """A partly matched block behind the full ones."""
    pending: StepId | None
    """The step in flight that will publish the next block of this prompt; it may be worth waiting for."""
    num_asked: int
    """Tokens of the prompt that was looked up."""
    node: int | None
    """The last full block's node in the index; None: no full block."""
    num_matched: int = 0
    """Tokens of published full blocks that match, whether or not every group can take them up: here prompts part."""
    losses: tuple[int, ...] = ()
    """Per group, the tokens of full blocks that it alone kept from being hit."""
    allowed: tuple[int, ...] = ()
    """Per group, the tokens of full blocks that could be hit if there were no other group that gives some up; nothing
    where none does.
    """
    branch: int | None = None
    """The last node that others had as well; the hit's, or one behind it."""
    images: tuple[ImageSpan, ...] = ()
    missing: tuple[int, ...] = ()
    """Per group, blocks for rows of images that nobody has computed; nothing: none."""
    shorter: Hit | None = None
    """What there is without the tail. Where there are states it may end earlier: before the tail is no checkpoint."""

    @property
    def num_reused(self) -> int:
        """Tokens that need not be computed: those of full blocks, and those that can be copied."""
        return self.num_tokens + (self.tail.num_tokens if self.tail is not None else 0)

    def without_tail(self) -> Hit:
        """The full blocks alone: no copy, and no block kept for it."""
        return self if self.tail is None else replace(self, tail=None) if self.shorter is None else self.shorter
