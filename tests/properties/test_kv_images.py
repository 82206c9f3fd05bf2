"""Random lives of sequences with images in a memory of all kinds of groups, each operation followed by `check()`.

What the naive model of `kv_world` says of tokens is not said again here; this is about images: who has to encode, who
shares rows, and that nothing is left in the end.
"""

from __future__ import annotations

import random
from math import prod

import pytest
from tests.unit.kv.kit import make_layout, mixed_groups

from plait.core.ids import GroupId, LaneId, SeqId, StepId
from plait.core.step import Chunk, Encode, StepPlan
from plait.kv.blocks import BlockState
from plait.kv.cache import Grants, KVCache, Root
from plait.kv.hit import NO_BLOCK, ImageSpan

SIZE = 2
KINDS = [("full", 0), ("window", 5), ("state", 0), ("cross", 0), ("embedding", 0)]
BLOCKS_PER_PAGE = (2, 1, 2, 3, 1)
CROSS, EMBEDDING = GroupId(3), GroupId(4)
SPANS = [ImageSpan(bytes([name]), num_rows=1 + name % 5, end=2 + name) for name in range(12)]


class Visitors:
    """Sequences of two words that begin with up to two images."""

    def __init__(self, seed: int, num_pages: int = 40) -> None:
        groups = mixed_groups(BLOCKS_PER_PAGE, KINDS, SIZE)
        self.kv = KVCache(make_layout(num_pages, groups, prod(BLOCKS_PER_PAGE), SIZE), groups, node_tokens=SIZE)
        self.dice = random.Random(seed)
        self.tokens: dict[SeqId, list[int]] = {}
        self.spans: dict[SeqId, tuple[ImageSpan, ...]] = {}
        self.encodes: dict[SeqId, tuple[Encode, ...]] = {}
        self.moves: dict[SeqId, Grants] = {}
        self.done: dict[SeqId, int] = {}
        self.flights: list[tuple[StepId, list[Chunk]]] = []
        self.num_steps = self.num_seqs = 0
        self.now_s = 0.0
        self.seen: dict[str, int] = {}

    def arrive(self) -> None:
        tokens = [self.dice.randint(0, 1) for _ in range(self.dice.randint(2, 14))]
        spans = tuple(self.dice.sample(SPANS, self.dice.randint(0, 2)))
        root = Root("f", "", None, tuple(span.content_hash for span in spans))
        hit = self.kv.with_images(self.kv.lookup(tokens, root), root, spans)
        fits = self.kv.fits(hit, len(tokens), 0)
        seq = SeqId(self.num_seqs)
        self.num_seqs += 1
        self.kv.open(seq, root, hit, self.now_s)
        grants = self.kv.reserve(seq, len(tokens), self.now_s)
        if grants is None:
            self.kv.release(seq, self.now_s)
            self.count("short")
            return
        self.count("fits" if fits else "fits with windows alone")
        missing = {(one.group, one.content_hash) for one in grants.encodes}
        cross = {span.content_hash for span in spans if (CROSS, span.content_hash) not in missing}
        if cross:
            self.count("shared")
        if missing:
            self.count("encoded")
        for one in grants.encodes:
            assert len(one.blocks) == -(-one.num_rows // SIZE)
        self.tokens[seq], self.spans[seq], self.encodes[seq] = tokens, spans, grants.encodes
        self.moves[seq], self.done[seq] = grants, hit.num_reused

    def go_on(self) -> None:
        ready = [seq for seq, tokens in self.tokens.items() if self.done[seq] < len(tokens)]
        ready = [seq for seq in ready if all(chunk.seq != seq for _, chunks in self.flights for chunk in chunks)]
        if not ready:
            return
        chosen = self.dice.sample(ready, min(len(ready), 2))
        step, chunks, moves, encodes = StepId(self.num_steps), [], [], []
        self.num_steps += 1
        for seq in chosen:
            start = self.done[seq]
            end = self.dice.randint(start + 1, len(self.tokens[seq]))
            chunks.append(Chunk(seq, start, end - start, tuple(self.tokens[seq][start:end])))
            encodes += self.encodes.pop(seq, ())
            moves += self.moves.pop(seq).moves if seq in self.moves else ()
        plan = StepPlan(step, LaneId(0), (), (), tuple(moves), tuple(chunks), tuple(encodes))
        self.kv.submitted(plan)
        self.flights.append((step, chunks))

    def come_back(self) -> None:
        if not self.flights:
            return
        step, chunks = self.flights.pop(0)
        for chunk in chunks:
            if chunk.seq in self.tokens:
                tokens = self.tokens[chunk.seq]
                start = self.kv._tables[chunk.seq].num_committed
                self.kv.commit(step, chunk.seq, tokens[start : chunk.end], self.now_s)
                self.done[chunk.seq] = chunk.end
                self.look_at(chunk.seq, chunk.end)
        self.kv.collected(step)

    def look_at(self, seq: SeqId, num_tokens: int) -> None:
        """Rows of cross attention stay, embeddings go with the last token of their image."""
        cross = self.kv.table(seq, CROSS)
        assert NO_BLOCK not in cross
        assert len(cross) == sum(-(-span.num_rows // SIZE) for span in self.spans[seq])
        alive = sum(block != NO_BLOCK for block in self.kv.table(seq, EMBEDDING))
        read = sum(-(-span.num_rows // SIZE) for span in self.spans[seq] if span.end > num_tokens)
        assert alive == read
        if alive < len(cross):
            self.count("consumed")

    def leave(self) -> None:
        if self.tokens:
            seq = self.dice.choice(list(self.tokens))
            for kept in (self.tokens, self.spans, self.done):
                del kept[seq]
            self.encodes.pop(seq, None)
            self.moves.pop(seq, None)
            self.kv.release(seq, self.now_s)

    def act(self) -> None:
        self.now_s += self.dice.choice((0.0, 1.0))
        self.dice.choices((self.arrive, self.go_on, self.come_back, self.leave), (3, 4, 4, 2))[0]()
        self.kv.check()

    def end(self) -> None:
        while self.flights:
            self.come_back()
        while self.tokens:
            self.leave()
        self.kv.check()
        assert self.kv.usage().used_bytes == 0
        self.kv.reset_prefix_index()
        assert self.kv.usage().free_pages == 40
        for pool in self.kv._pools:
            assert pool.counts == [0] * len(BlockState)
            assert not pool._owned

    def count(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1


def play(seed: int, num_operations: int) -> Visitors:
    visitors = Visitors(seed)
    for _ in range(num_operations):
        visitors.act()
    visitors.end()
    return visitors


def test_images_and_all_other_kinds_share_a_memory() -> None:
    seen = play(0, 2_000).seen
    rare = {what: seen.get(what, 0) for what in ("short", "fits", "shared", "encoded", "consumed")}
    assert min(rare.values()) >= 10, rare


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(1, 11))
def test_images_and_all_other_kinds_share_a_memory_for_long(seed: int) -> None:
    play(seed, 10_000)
