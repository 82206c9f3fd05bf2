"""Sights: the images in the tables of sequences, from open to release.

Owns which pictures a sequence uses, makes and gives up. What is cached of an image is `plait.kv.images`'s.
Invariant: a table's entries of a group of images are the blocks of its pictures, image after image; `NO_BLOCK` where
nobody will look any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait.core.errors import InvariantError
from plait.core.ids import GroupId
from plait.core.step import Encode
from plait.kv.blocks import BlockPool
from plait.kv.hit import NO_BLOCK, Hit, ImageSpan, Root
from plait.kv.images import Images
from plait.kv.tables import SeqTable


class Sights:
    """Over the images of one memory."""

    def __init__(self, images: Images, pools: Sequence[BlockPool]) -> None:
        self._images = images
        self._pools = tuple(pools)

    def blocks_for(self, spans: Sequence[ImageSpan]) -> list[int]:
        """Blocks of every group that a prompt's images take alone."""
        rows = sum(self._images.num_blocks(span) for span in spans)
        return [rows * (g in self._images.groups) for g in range(len(self._pools))]

    def with_images(self, hit: Hit, root: Root, spans: Sequence[ImageSpan]) -> Hit:
        """See `KVCache.with_images`."""
        if not spans or not self._images.groups:
            return hit
        blocks, missing = list(hit.blocks), [0] * len(self._pools)
        for g in self._images.groups:
            blocks[g] = ()
            for span in self._needed(g, spans, hit.num_reused):
                picture = self._images.cached(g, root, span)
                if picture is None:
                    missing[g] += self._images.num_blocks(span)
                else:
                    blocks[g] = (*blocks[g], *picture.blocks)
        shorter = None if hit.shorter is None else self.with_images(hit.shorter, root, spans)
        return replace(hit, blocks=tuple(blocks), images=tuple(spans), missing=tuple(missing), shorter=shorter)

    def open(self, table: SeqTable, root: Root, hit: Hit) -> None:
        """Use what the hit found. Raises if it is not as it was."""
        if not hit.images:
            return
        again = self.with_images(hit, root, hit.images)
        if (again.blocks, again.missing) != (hit.blocks, hit.missing):
            raise InvariantError(f"sequence {table.seq} opens a stale hit of images; look up again")
        table.root, table.images, table.missing = root, hit.images, hit.missing
        for g in self._images.groups:
            table.pictures[g] = []
            for span in self._needed(g, hit.images, hit.num_reused):
                picture = self._images.cached(g, root, span)
                table.pictures[g].append(picture)
                if picture is not None:
                    self._images.take(picture)

    def make(self, table: SeqTable, at_s: float, frugal: bool) -> tuple[Encode, ...]:
        """Blocks for the images that are missing, for which there is room."""
        encodes: list[Encode] = []
        if table.root is None:
            return ()
        for g, pictures in table.pictures.items():
            needed = table.images[len(table.images) - len(pictures) :]
            for place, span in enumerate(needed):
                picture = pictures[place]
                if picture is None:
                    picture = self._images.make(g, table.root, span, table.seq, at_s, frugal)
                    pictures[place] = picture
                    blocks = tuple(picture.blocks)
                    encodes.append(Encode(table.seq, span.content_hash, span.num_rows, GroupId(g), blocks))
                table.blocks[g].extend(picture.blocks)
        return tuple(encodes)

    def in_own_pages(self, table: SeqTable, demand: Sequence[int]) -> list[int]:
        """A demand with every image that is still to be made rounded up to whole pages, as they are where there is
        room: each image has pages of its own.
        """
        wanted = list(demand)
        for g, pictures in table.pictures.items():
            per_page = self._pools[g].blocks_per_page
            spans = table.images[len(table.images) - len(pictures) :]
            counts = [self._images.num_blocks(s) for s, one in zip(spans, pictures, strict=True) if one is None]
            wanted[g] += sum(-count % per_page for count in counts)
        return wanted

    def committed(self, table: SeqTable, at_s: float) -> None:
        """A step of the sequence was accepted: what it encoded is there, what it consumed is not needed any more."""
        for g, pictures in table.pictures.items():
            for place, picture in enumerate(pictures):
                if picture is None:
                    continue
                self._images.filled(picture)
                span = table.images[len(table.images) - len(pictures) + place]
                if self._is_consumed(g, span, table.num_committed) and not table.num_readers:
                    self._consume(table, g, place, at_s)

    def left(self, table: SeqTable, at_s: float) -> None:
        """The sequence is gone, and its own blocks are free."""
        for pictures in table.pictures.values():
            for picture in pictures:
                if picture is not None:
                    self._images.give(picture, at_s)

    def _consume(self, table: SeqTable, group: int, place: int, at_s: float) -> None:
        picture = table.pictures[group][place]
        if picture is None:
            return
        table.pictures[group][place] = None
        table.num_dead[group] += len(picture.blocks)
        gone = frozenset(picture.blocks)
        table.blocks[group][:] = [NO_BLOCK if block in gone else block for block in table.blocks[group]]
        self._pools[group].free_own(picture.blocks)
        self._images.give(picture, at_s)

    def _needed(self, group: int, spans: Sequence[ImageSpan], num_tokens: int) -> list[ImageSpan]:
        """Images whose rows somebody behind `num_tokens` tokens reads: the last ones."""
        return [span for span in spans if not self._is_consumed(group, span, num_tokens)]

    def _is_consumed(self, group: int, span: ImageSpan, num_tokens: int) -> bool:
        return group in self._images.transient and span.end <= num_tokens
