"""Images: rows of an encoder that groups of images keep, whole images at a time.

Owns what is cached of which image: keys and values of cross attention, or embeddings until the prompt has consumed
them. Who goes first among groups is decided in `plait.kv.victims`.
Invariant: of an image a group has all rows or none; what is cached was computed by a step that was committed.

An image depends on nothing before it, so it is found by its content alone, beside whatever prefix is hit. Its rows have
one owner, because they die together, and one random place among equally old ones, instead of a prefix length: images go
whole, and not always the same (Jenga, SOSP 2025, section 5.2).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, SeqId
from plait.kv.blocks import BlockPool
from plait.kv.hit import ImageSpan, Root
from plait.kv.keeps import Keeps, KeepsRows
from plait.kv.nodes import Key
from plait.kv.owners import embedding_of

_PRIORITIES = 1 << 17
"""About as many as prefixes have lengths, so that images do not go before or behind all of them."""

PictureKey = tuple[str, str, bytes]
"""Numerics, tenant and content."""


@dataclass(slots=True, eq=False)
class Picture:
    """The rows of one image in one group. Without a key it is its sequence's alone, because another is being made."""

    id: int
    group: int
    key: PictureKey | None
    blocks: list[BlockId]
    priority: int
    last_access_s: float
    num_refs: int = 1
    is_filled: bool = False

    @property
    def order(self) -> Key:
        """When it goes: the smallest first."""
        return self.last_access_s, -self.priority, self.id


class Images:
    """Pictures of the groups that keep rows."""

    def __init__(self, pools: Sequence[BlockPool], keeps: Sequence[Keeps], rows_per_block: int) -> None:
        of_rows = [(g, one) for g, one in enumerate(keeps) if isinstance(one, KeepsRows)]
        self.groups = tuple(g for g, _ in of_rows)
        self.transient = tuple(g for g, one in of_rows if one.is_transient)
        """Groups whose rows are given up when the prompt has consumed them."""
        self.num_evictions = 0
        self._pools = tuple(pools)
        self._size = rows_per_block
        self._dice = random.Random(0)
        self._ids = count(1)
        self._known: dict[tuple[int, PictureKey], Picture] = {}
        """Filled ones, and those that a sequence is making."""
        self._owners: dict[tuple[int, BlockId], Picture] = {}
        """Of filled ones."""
        self._idle: dict[int, list[tuple[Key, PictureKey]]] = {g: [] for g in self.groups}
        """Heaps; entries that no longer fit are skipped."""

    def num_blocks(self, span: ImageSpan) -> int:
        return -(-span.num_rows // self._size)

    def cached(self, group: int, root: Root, span: ImageSpan) -> Picture | None:
        found = self._known.get((group, _key(root, span)))
        return found if found is not None and found.is_filled else None

    def owner(self, group: int, block: BlockId) -> Picture | None:
        """Of a block that holds rows which were computed."""
        return self._owners.get((group, block))

    def pictures(self) -> Iterable[Picture]:
        """Those that were computed."""
        return dict.fromkeys(self._owners.values())

    def take(self, picture: Picture) -> None:
        if picture.num_refs == 0:
            for block in picture.blocks:
                self._pools[picture.group].reference(block)
        picture.num_refs += 1

    def give(self, picture: Picture, at_s: float) -> None:
        """One user less. What nobody computed is gone with its last user; its blocks are the caller's to free."""
        picture.num_refs -= 1
        if not picture.is_filled:
            self._forget(picture)
            return
        picture.last_access_s = max(picture.last_access_s, at_s)
        if picture.num_refs == 0:
            for block in picture.blocks:
                self._pools[picture.group].unreference(block)
            if picture.key is not None:
                self._push(picture, picture.key)

    def make(self, group: int, root: Root, span: ImageSpan, seq: SeqId, at_s: float, frugal: bool) -> Picture:
        """Blocks for an image that a sequence is going to encode; there is room for them."""
        key: PictureKey | None = _key(root, span)
        number = next(self._ids)
        blocks = self._pools[group].grant(embedding_of(number), self.num_blocks(span), frugal, seq)
        picture = Picture(number, group, key, blocks, self._dice.randrange(_PRIORITIES), at_s)
        if key is not None and self._known.setdefault((group, key), picture) is not picture:
            picture.key = None
        return picture

    def filled(self, picture: Picture) -> None:
        """Its rows were computed, and may be used by others if they are nobody's alone."""
        if picture.is_filled or picture.key is None:
            return
        picture.is_filled = True
        for block in picture.blocks:
            self._pools[picture.group].publish(block)
            self._owners[picture.group, block] = picture

    def first(self, group: int) -> Picture | None:
        """What would go first of a group."""
        heap = self._idle[group]
        while heap:
            order, key = heap[0]
            found = self._known.get((group, key))
            if found is not None and not found.num_refs and found.order == order:
                return found
            heapq.heappop(heap)
        return None

    def drop(self, picture: Picture) -> None:
        """Evict an unused picture."""
        if picture.num_refs or not picture.is_filled:
            raise InvariantError(f"images: picture {picture.id} is evicted while it is used")
        self.num_evictions += 1
        for block in picture.blocks:
            self._pools[picture.group].free(block)
            del self._owners[picture.group, block]
        self._forget(picture)

    def check(self, num_refs: dict[Picture, int]) -> None:
        """Raise `InvariantError` unless references are as given and whatever may be evicted is in its heap."""
        for (group, key), picture in self._known.items():
            refs = num_refs.pop(picture, 0)
            if picture.key != key or picture.group != group or picture.num_refs != refs:
                raise InvariantError(f"images: picture {picture.id} has {picture.num_refs} users, not {refs}")
            if picture.is_filled != all(self._owners.get((group, block)) is picture for block in picture.blocks):
                raise InvariantError(f"images: blocks of picture {picture.id} are not noted as they should")
            if not refs and (picture.order, key) not in self._idle[group]:
                raise InvariantError(f"images: picture {picture.id} is evictable but not in the heap")
        if any(picture.key is not None for picture in num_refs):
            raise InvariantError("images: a sequence has a picture that is not known")
        if len(self._owners) != sum(len(one.blocks) for one in self._known.values() if one.is_filled):
            raise InvariantError("images: a block belongs to a picture that is gone")

    def _push(self, picture: Picture, key: PictureKey) -> None:
        heap = self._idle[picture.group]
        heapq.heappush(heap, (picture.order, key))
        if len(heap) > 64 + 2 * len(self._known):
            kept = {(one.order, k) for (g, k), one in self._known.items() if g == picture.group and not one.num_refs}
            heap[:] = sorted(kept)

    def _forget(self, picture: Picture) -> None:
        if picture.key is not None:
            del self._known[picture.group, picture.key]
        self._pools[picture.group].disown(embedding_of(picture.id))


def _key(root: Root, span: ImageSpan) -> PictureKey:
    return root.fingerprint, root.tenant, span.content_hash
