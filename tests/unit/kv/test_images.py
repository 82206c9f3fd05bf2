"""Rows of images: found by content, encoded once, given up whole, in a pool with everything else.

Four rows per block. Group 0 keeps every token.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.unit.kv.kit import Stage, make_layout, mixed_groups, words

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import Encode, StepPlan
from plait.kv.blocks import BlockState
from plait.kv.cache import KVCache, Root
from plait.kv.hit import NO_BLOCK, ImageSpan

ROWS = GroupId(1)
CAT, DOG = (ImageSpan(name, num_rows=6, end=4) for name in (b"cat", b"dog"))


class Gallery(Stage):
    """Sequences that begin with images."""

    def __init__(self, kind: str, num_pages: int = 16, blocks_per_page: tuple[int, int] = (1, 1)) -> None:
        groups = mixed_groups(blocks_per_page, [("full", 0), (kind, 0)], 4)
        layout = make_layout(num_pages, groups, blocks_per_page[0] * blocks_per_page[1], 4)
        super().__init__(KVCache(layout, groups))
        self.encodes: dict[SeqId, tuple[Encode, ...]] = {}

    def see(self, text: str, *images: ImageSpan, tenant: str = "") -> SeqId:
        """Open and reserve a sequence."""
        tokens, seq = words(text), SeqId(self._next_seq)
        self._next_seq += 1
        root = Root("fingerprint", tenant, None, tuple(image.content_hash for image in images))
        hit = self.kv.with_images(self.kv.lookup(tokens, root), root, images)
        self.kv.open(seq, root, hit, self.now_s)
        self.texts[seq], self.done[seq] = tokens, hit.num_tokens
        grants = self.kv.reserve(seq, len(tokens), self.now_s)
        assert grants is not None
        self.encodes[seq] = grants.encodes
        return seq

    def start(self, seq: SeqId, num_tokens: int | None = None) -> StepId:
        step = StepId(self._next_step)
        self._next_step += 1
        chunk = self.chunk(seq, num_tokens)
        self.kv.submitted(StepPlan(step, LaneId(0), (), (), (), (chunk,), self.encodes.pop(seq, ())))
        self._chunks[step] = (chunk,)
        return step

    def show(self, text: str, *images: ImageSpan) -> SeqId:
        """See, and compute all of it."""
        seq = self.see(text, *images)
        self.finish(self.start(seq))
        self.kv.check()
        return seq

    def num_encoded(self, text: str, *images: ImageSpan) -> int:
        """Images that a sequence would have to encode."""
        seq = self.see(text, *images)
        found = len(self.encodes.pop(seq))
        self.release(seq)
        self.kv.check()
        return found

    def rows_of(self, seq: SeqId) -> Sequence[BlockId]:
        return self.kv.table(seq, ROWS)


def test_an_image_is_encoded_once_and_found_by_its_content_alone() -> None:
    stage = Gallery("cross")
    first = stage.see("abcdefgh", CAT)
    assert [(one.content_hash, one.num_rows, len(one.blocks)) for one in stage.encodes[first]] == [(b"cat", 6, 2)]
    stage.finish(stage.start(first))
    second = stage.see("another text", CAT)
    assert stage.encodes[second] == ()
    assert stage.rows_of(second) == stage.rows_of(first)
    stage.kv.check()


def test_tenants_share_no_images() -> None:
    stage = Gallery("cross")
    stage.show("abcdefgh", CAT)
    assert len(stage.encodes[stage.see("abcdefgh", CAT, tenant="other")]) == 1


def test_rows_that_no_step_has_computed_are_nobody_else_s() -> None:
    stage = Gallery("cross")
    first, second = stage.see("abcdefgh", CAT), stage.see("ijklmnop", CAT)
    assert len(stage.encodes[second]) == 1
    assert not set(stage.rows_of(first)) & set(stage.rows_of(second))
    stage.kv.check()
    stage.finish(stage.start(second))
    assert stage.num_encoded("q", CAT) == 1, "the second was made beside the first, and is its sequence's alone"
    stage.finish(stage.start(first))
    assert stage.num_encoded("q", CAT) == 0
    stage.release(first)
    stage.release(second)
    stage.kv.check()
    assert stage.kv.usage().used_bytes == 0


def test_a_step_in_flight_keeps_the_rows_that_it_writes() -> None:
    """H1: not granted again before it is collected; and what was cancelled is not cached."""
    stage = Gallery("cross", num_pages=4)
    seq = stage.see("abcdefgh", CAT)
    rows = stage.rows_of(seq)
    step = stage.start(seq)
    stage.release(seq)
    assert [stage.kv._pools[1].state(block) for block in rows] == [BlockState.QUARANTINED] * 2
    stage.kv.check()
    stage.kv.collected(step)
    assert stage.kv.usage().used_bytes == 0
    assert stage.num_encoded("q", CAT) == 1


def test_embeddings_are_given_up_when_the_prompt_has_consumed_them() -> None:
    stage = Gallery("embedding")
    seq = stage.see("abcdefgh", CAT)
    stage.finish(stage.start(seq, 3))
    assert NO_BLOCK not in stage.rows_of(seq)
    stage.finish(stage.start(seq, 3))
    assert list(stage.rows_of(seq)) == [NO_BLOCK, NO_BLOCK]
    stage.kv.check()
    assert stage.num_encoded("x", CAT) == 0, "they stay cached as long as there is memory"


def test_who_hits_the_tokens_of_an_image_needs_no_embeddings() -> None:
    stage = Gallery("embedding")
    stage.release(stage.show("abcdefgh", CAT, DOG))
    root = Root("fingerprint", "", None, (b"cat", b"dog"))
    hit = stage.kv.with_images(stage.kv.lookup(words("abcdefghi"), root), root, (CAT, DOG))
    assert (hit.num_tokens, hit.blocks[ROWS], hit.missing) == (8, (), (0, 0))


def test_images_go_whole_and_by_chance_among_equally_old_ones() -> None:
    stage = Gallery("cross", num_pages=14)
    spans = [ImageSpan(bytes([number]), 6, 1) for number in range(6)]
    for span in spans:
        stage.release(stage.show("a", span))
    order = []
    while gone := stage.kv._index.evict([ROWS]):
        (picture,) = gone
        order.append(picture.key[2][0])  # type: ignore[union-attr, index]
        assert len(picture.blocks) == 2
        stage.kv.check()
    assert sorted(order) == list(range(6))
    assert order not in (list(range(6)), list(range(5, -1, -1)))
    assert stage.kv.usage().free_pages == 14


def test_an_older_image_goes_before_a_younger_prefix_and_the_other_way_round() -> None:
    stage = Gallery("cross", num_pages=6)
    stage.release(stage.show("abcd", CAT))
    stage.now_s = 1.0
    stage.cache("ijklmnop")
    assert stage.kv.usage().free_pages == 1
    stage.now_s = 2.0
    stage.admit("qrstuvwx")
    assert stage.cached_tokens("ijklmnop") == 8
    assert stage.num_encoded("q", CAT) == 1
    stage.kv.check()


def test_rows_have_pages_of_their_own() -> None:
    """Three blocks of rows on a page. When an image goes, its pages do, whatever other images there are."""
    stage = Gallery("cross", num_pages=8, blocks_per_page=(1, 3))
    first, second = stage.see("ab", CAT), stage.see("cd", DOG)
    pages = [{stage.kv._pools[1].page_of(block) for block in stage.rows_of(seq)} for seq in (first, second)]
    assert not pages[0] & pages[1]


def test_where_pages_are_short_images_share_them() -> None:
    """Three blocks of rows on a page, two images of one block each, and one page beside the text's."""
    stage = Gallery("cross", num_pages=2, blocks_per_page=(1, 3))
    small = [ImageSpan(name, num_rows=3, end=1) for name in (b"a", b"b")]
    assert len(stage.rows_of(stage.show("ab", *small))) == 2


def test_a_stale_hit_of_images_is_refused() -> None:
    stage = Gallery("cross")
    stage.release(stage.show("a", CAT))
    root = Root("fingerprint", "", None, (b"cat",))
    hit = stage.kv.with_images(stage.kv.no_hit(), root, (CAT,))
    stage.kv.reset_prefix_index()
    with pytest.raises(InvariantError, match="stale hit of images"):
        stage.kv.open(SeqId(9), root, hit, 0.0)


def test_rows_are_encoded_into_blocks_of_one_s_own() -> None:
    stage = Gallery("cross")
    stage.show("a", CAT)
    rows = tuple(stage.rows_of(SeqId(0)))
    seq = stage.see("b", CAT)
    stage.encodes[seq] = (Encode(seq, b"cat", 6, ROWS, rows),)
    with pytest.raises(InvariantError, match="encodes into blocks"):
        stage.start(seq)


def test_what_can_never_be_held_is_known_before() -> None:
    stage = Gallery("cross", num_pages=4)
    assert stage.kv.can_hold(8, (CAT,))
    assert not stage.kv.can_hold(8, (CAT, DOG))
