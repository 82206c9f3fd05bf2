"""A tiny memory to draw pictures with: real layouts, a clock moved by hand, steps that compute what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import FROM_DEVICE, BlockGrant, Chunk, Drafts, Move, StepPlan
from plait.kv.cache import Grants, Hit, KVCache, Root
from plait.model.cache_layout import CacheLayout, GroupLayout
from plait.model.cache_type import CacheType
from plait.model.program import CacheGroup, GroupKind

ROOT = Root("fingerprint")
FULL = GroupId(0)


def make_group(group: int = 0, num_layers: int = 1, kind: GroupKind = GroupKind.FULL) -> CacheGroup:
    """One KV head with one number per key and value, or a state of as many numbers as four tokens have."""
    parts = (8,) if kind is GroupKind.STATE else ()
    return CacheGroup(GroupId(group), f"{kind.value}{group}", kind, num_layers, 1, 1, 1, window=8, state_parts=parts)


def full_groups(*blocks_per_page: int) -> list[CacheGroup]:
    """Groups with so many layers that a page of prod(blocks_per_page) layers holds `blocks_per_page[g]` blocks of g."""
    return [make_group(g, prod(blocks_per_page) // count) for g, count in enumerate(blocks_per_page)]


def mixed_groups(
    blocks_per_page: Sequence[int], kinds: Sequence[tuple[str, int]], tokens_per_block: int
) -> list[CacheGroup]:
    """The same with groups of (kind, window); a layer's state is as large as a layer's block of tokens."""
    parts = (2 * tokens_per_block,)
    return [
        CacheGroup(
            GroupId(g),
            f"{kind}{g}",
            GroupKind(kind),
            prod(blocks_per_page) // count,
            *((0, 0, 0) if kind == "state" else (1, 1, 1)),
            window=window,
            state_parts=parts if kind == "state" else (),
        )
        for g, (count, (kind, window)) in enumerate(zip(blocks_per_page, kinds, strict=True))
    ]


def make_layout(num_pages: int, groups: Sequence[CacheGroup], page_layers: int, tokens_per_block: int) -> CacheLayout:
    """Pages of `page_layers` layers of `tokens_per_block` tokens each."""
    sized = [GroupLayout(group, 0 if group.is_state else tokens_per_block, CacheType.F32, 0) for group in groups]
    page_bytes = page_layers * sized[0].layer_bytes
    placed = [replace(size, num_blocks=num_pages * (page_bytes // size.block_bytes)) for size in sized]
    return CacheLayout(page_bytes, num_pages, tuple(placed))


def make_kv(num_pages: int, *blocks_per_page: int, tokens_per_block: int = 4, enable_prefix: bool = True) -> KVCache:
    """One full-attention group with one block per page, unless `blocks_per_page` says otherwise, group by group."""
    groups = full_groups(*(blocks_per_page or (1,)))
    layout = make_layout(num_pages, groups, prod(blocks_per_page), tokens_per_block)
    return KVCache(layout, groups, enable_prefix)


def words(text: str) -> list[int]:
    """Tokens spelled as letters: "abca" is 97, 98, 99, 97. Blanks are for the reader."""
    return [ord(letter) for letter in text if letter != " "]


class Stage:
    """Plays the scheduler: numbers sequences and steps, keeps what every sequence will say, and moves time by hand."""

    def __init__(self, kv: KVCache) -> None:
        self.kv = kv
        self.now_s = 0.0
        self.texts: dict[SeqId, list[int]] = {}
        self.done: dict[SeqId, int] = {}
        self._chunks: dict[StepId, tuple[Chunk, ...]] = {}
        self._next_seq = 0
        self._next_step = 0

    def open(self, text: str, *, root: Root = ROOT, publish: bool = True) -> SeqId:
        """Look up and open a sequence that will consist of `text`; nothing is reserved."""
        tokens = words(text)
        seq = SeqId(self._next_seq)
        self._next_seq += 1
        hit = self.kv.lookup(tokens, root) if publish else self.kv.no_hit()
        self.kv.open(seq, root, hit, self.now_s, publish=publish)
        self.texts[seq] = tokens
        self.done[seq] = hit.num_tokens
        return seq

    def admit(self, text: str, *, root: Root = ROOT, publish: bool = True) -> SeqId:
        """Open a sequence and reserve all of it."""
        seq = self.open(text, root=root, publish=publish)
        assert self.reserve(seq, len(self.texts[seq])) is not None, "the picture needs more pages"
        return seq

    def reserve(self, seq: SeqId, num_tokens: int) -> Grants | None:
        return self.kv.reserve(seq, num_tokens, self.now_s)

    def chunk(self, seq: SeqId, num_tokens: int | None = None, *, known: bool = True, num_drafts: int = 0) -> Chunk:
        """The next `num_tokens` tokens of a sequence (all that is left), the last `num_drafts` of them guessed."""
        start = self.done[seq]
        end = len(self.texts[seq]) if num_tokens is None else start + num_tokens
        tokens = self.texts[seq][start : end - num_drafts]
        self.done[seq] = end
        guesses = tuple(self.texts[seq][end - num_drafts : end])
        drafts = Drafts(guesses, tuple(range(-1, num_drafts - 1))) if num_drafts else None
        return Chunk(seq, start, end - start, tuple(tokens) if known else FROM_DEVICE, drafts)

    def submit(
        self,
        *chunks: Chunk,
        lane: int = 0,
        moves: Sequence[Move] = (),
        blocks: Sequence[BlockGrant] = (),
    ) -> StepId:
        step = StepId(self._next_step)
        self._next_step += 1
        self.kv.submitted(StepPlan(step, LaneId(lane), (), tuple(blocks), tuple(moves), chunks))
        self._chunks[step] = chunks
        return step

    def commit(self, step: StepId, accepted: int | None = None) -> None:
        """Commit every sequence of the step that still has a table; only `accepted` tokens of each, if given."""
        for chunk in self._chunks[step]:
            if chunk.seq in self.texts:
                end = chunk.end if accepted is None else chunk.start + accepted
                self.kv.commit(step, chunk.seq, self.texts[chunk.seq][chunk.start : end], self.now_s)
                self.done[chunk.seq] = end

    def finish(self, step: StepId, accepted: int | None = None) -> None:
        """The step is computed: commit, then collect."""
        self.commit(step, accepted)
        self.kv.collected(step)

    def cancel(self, step: StepId) -> None:
        """The step ends without results."""
        for chunk in self._chunks[step]:
            if chunk.seq in self.done:
                self.done[chunk.seq] = chunk.start
        self.kv.collected(step)

    def run(self, text: str, *, root: Root = ROOT, publish: bool = True) -> SeqId:
        """Admit a sequence and compute all of it in one step."""
        seq = self.admit(text, root=root, publish=publish)
        self.finish(self.submit(self.chunk(seq)))
        return seq

    def release(self, *seqs: SeqId) -> None:
        for seq in seqs:
            self.kv.release(seq, self.now_s)
            del self.texts[seq], self.done[seq]

    def cache(self, text: str, *, root: Root = ROOT) -> list[BlockId]:
        """Compute and release a sequence a second later: its full blocks are cached. Returns its table."""
        self.now_s += 1.0
        seq = self.run(text, root=root)
        table = self.table(seq)
        self.release(seq)
        return table

    def table(self, seq: SeqId, group: GroupId = FULL) -> list[BlockId]:
        return list(self.kv.table(seq, group))

    def hit(self, text: str, *, root: Root = ROOT, limit: int | None = None) -> Hit:
        return self.kv.lookup(words(text), root, limit)

    def cached_tokens(self, text: str, *, root: Root = ROOT) -> int:
        """How many tokens of `text` the index holds in full blocks, all of it if need be."""
        return self.hit(text + "!", root=root).num_tokens
