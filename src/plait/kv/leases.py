"""Leases: prefixes that somebody who waits is going to use, so that all others are evicted before them.

Owns who has a lease, on what and until when. Pins nothing: what is leased is evictable as before and merely goes last,
so a lease keeps no memory from anybody who needs it, whatever the load.
Invariant: what is under leases takes at most its part of the memory; an index node or piece counts as leased exactly as
long as a lease that has not ended names it or something behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plait.core.errors import InvariantError
from plait.core.ids import SeqId
from plait.kv.hit import Hit
from plait.kv.index import PrefixIndex
from plait.kv.nodes import Node, Piece

LEASED_FRACTION = 0.2
"""Of the memory, for all leases together."""

FindPieces = Callable[[Hit, Node], list[Piece] | None]
"""What a hit takes from groups that do not keep everything; None: it is stale."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A sequence will begin with the prefix of `node`, and look at `pieces`."""

    node: Node
    pieces: tuple[Piece, ...]
    until_s: float


class Leases:
    """At most one for each sequence. Taking and ending one cost a walk up its prefix."""

    def __init__(self, index: PrefixIndex, pieces_of: FindPieces, pool_bytes: int) -> None:
        self._index = index
        self._pieces_of = pieces_of
        self._most_bytes = int(LEASED_FRACTION * pool_bytes)
        self._by_seq: dict[SeqId, Lease] = {}

    def __len__(self) -> int:
        return len(self._by_seq)

    @property
    def leased_bytes(self) -> int:
        """Of all that is under leases, used by others or not."""
        return self._index.leased_bytes

    def take(self, seq: SeqId, hit: Hit, now_s: float, until_s: float) -> bool:
        """Lease the full blocks of a hit that was just looked up, until then at the latest. False: it has none, or
        leases would take more than their part; nothing has changed.
        """
        self.expire(now_s)
        node = None if hit.node is None else self._index.node(hit.node)
        if node is None or until_s <= now_s:
            return False
        pieces = self._pieces_of(hit, node)
        if seq in self._by_seq or pieces is None:
            raise InvariantError(f"sequence {seq} leases a second hit, or a stale one of {hit.num_tokens} tokens")
        if self._index.leased_bytes + self._index.unleased_bytes(node, pieces) > self._most_bytes:
            return False
        self._by_seq[seq] = Lease(node, tuple(pieces), until_s)
        self._index.lease(node, pieces)
        return True

    def end(self, seq: SeqId) -> None:
        """Whoever has none is ignored."""
        lease = self._by_seq.pop(seq, None)
        if lease is not None:
            self._index.unlease(lease.node, lease.pieces)

    def expire(self, now_s: float) -> None:
        """End those whose time has come."""
        if self._by_seq:
            for seq in [seq for seq, lease in self._by_seq.items() if lease.until_s <= now_s]:
                self.end(seq)

    def check(self) -> None:
        """Raise `InvariantError` unless exactly what leases name is leased, within their part of the memory."""
        self._index.check_leases([(one.node, one.pieces) for one in self._by_seq.values()])
        if self.leased_bytes > self._most_bytes:
            raise InvariantError(f"leases: {self.leased_bytes} bytes are leased; at most {self._most_bytes} may be")
