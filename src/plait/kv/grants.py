"""Grants: what a sequence is given when it asks the memory for room.

Owns the answer of `KVCache.reserve`, and the one that says that there is nothing new, made once: nearly every step has
it. Knows no pool.
Invariant: over the life of a table every entry is granted once.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.step import BlockGrant, Move


@dataclass(frozen=True, slots=True)
class Grants:
    """New table entries for the executor, and copies to make before they are used. Every entry is granted once."""

    blocks: tuple[BlockGrant, ...]
    moves: tuple[Move, ...]


NO_GRANTS = Grants((), ())
"""Returned itself where there is nothing new."""
