"""Groups of several kinds in one pool: what windows give up, what states need, who goes first, and a kind from outside.

Four tokens per block. A window of 5 tokens sees two blocks behind a full one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from tests.unit.kv.kit import ROOT, Stage, make_layout, mixed_groups, words

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import BlockGrant, Chunk, Move, Snapshot, StepPlan
from plait.kv.blocks import BlockState
from plait.kv.cache import KVCache
from plait.kv.hit import NO_BLOCK
from plait.kv.keeps import Keeps, KeepsTokens
from plait.kv.nodes import Node
from plait.kv.rules import ALL_RULES, MemoryRules

FULL, OTHER = GroupId(0), GroupId(1)


def make(
    num_pages: int,
    other: tuple[str, int],
    *,
    blocks_per_page: tuple[int, int] = (1, 1),
    enable_prefix: bool = True,
    keeps: dict[GroupId, Keeps] | None = None,
    rules: MemoryRules = ALL_RULES,
) -> Stage:
    groups = mixed_groups(blocks_per_page, [("full", 0), other], 4)
    layout = make_layout(num_pages, groups, blocks_per_page[0] * blocks_per_page[1], 4)
    return Stage(KVCache(layout, groups, enable_prefix, keeps, rules=rules))


def test_what_leaves_the_window_is_free_once_it_is_accepted() -> None:
    """H3: not when it is planned, and not behind rejected tokens."""
    stage = make(8, ("window", 5), enable_prefix=False)
    seq = stage.admit("aaaabbbbccccdddd")
    step = stage.submit(stage.chunk(seq, 12))
    assert NO_BLOCK not in stage.table(seq, OTHER)
    stage.finish(step, accepted=9)
    assert [block == NO_BLOCK for block in stage.table(seq, OTHER)] == [True, False, False, False]
    assert NO_BLOCK not in stage.table(seq)
    stage.kv.check()
    stage.finish(stage.submit(stage.chunk(seq)))
    assert [block == NO_BLOCK for block in stage.table(seq, OTHER)] == [True, True, True, False]
    stage.kv.check()


def test_a_stretch_is_free_when_the_next_one_begins() -> None:
    stage = make(8, ("chunked", 8), enable_prefix=False)
    seq = stage.admit("aaaabbbbccccdddd")
    stage.finish(stage.submit(stage.chunk(seq, 7)))
    assert NO_BLOCK not in stage.table(seq, OTHER)
    stage.finish(stage.submit(stage.chunk(seq, 1)))
    assert [block == NO_BLOCK for block in stage.table(seq, OTHER)] == [True, True, False, False]


def test_a_window_follows_only_as_far_as_it_is_told() -> None:
    stage = make(20, ("window", 5))
    seq = stage.open("a" * 40)
    assert stage.kv.reserve(seq, 40, 0.0, up_to=8) is not None
    assert (len(stage.table(seq)), len(stage.table(seq, OTHER))) == (10, 2)
    with pytest.raises(InvariantError, match="has 8 slots"):
        stage.submit(stage.chunk(seq, 9))


def test_a_step_that_names_the_table_keeps_what_left_the_window() -> None:
    """H1: the block is not granted to others while a step in flight may read it."""
    stage = make(8, ("window", 5), enable_prefix=False)
    seq, other = stage.admit("aaaabbbbcccc"), stage.admit("xxxx")
    first = stage.submit(stage.chunk(seq))
    grants = stage.kv.reserve(seq, 12, 0.0)
    assert grants is not None
    named = stage.kv.table(seq, OTHER)
    second = stage.submit(stage.chunk(other), blocks=[BlockGrant(seq, OTHER, 0, named)])
    stage.finish(first)
    assert NO_BLOCK not in stage.table(seq, OTHER)
    stage.finish(second)
    stage.kv.check()


def test_a_hit_needs_the_window_s_last_tokens_only() -> None:
    stage = make(12, ("window", 5))
    stage.cache("aaaabbbbccccdd")
    hit = stage.hit("aaaabbbbccccdddd")
    assert hit.num_tokens == 12
    assert [block == NO_BLOCK for block in hit.blocks[OTHER]] == [True, True, False]
    seq = stage.open("aaaabbbbccccdddd")
    grants = stage.reserve(seq, 16)
    assert grants is not None
    assert [(grant.group, grant.first, len(grant.blocks)) for grant in grants.blocks] == [(FULL, 0, 4), (OTHER, 2, 2)]
    stage.kv.check()


def test_a_window_s_block_that_went_cuts_the_hit_and_is_named_as_the_loss() -> None:
    stage = make(12, ("window", 5))
    stage.cache("aaaabbbbcccc")
    index = stage.kv._index
    node = index.root(ROOT)
    while node is not None and node.children:
        node = next(iter(node.children.values()))
    assert node is not None
    index.drop(node.pieces[OTHER])
    hit = stage.hit("aaaabbbbccccd")
    assert (hit.num_tokens, hit.losses) == (8, (0, 4))
    stage.open("aaaabbbbccccd")
    assert [group.lost_tokens for group in stage.kv.explain().groups] == [0, 4]


def test_what_left_the_window_goes_first_then_the_older_tail_and_the_shared_head_last() -> None:
    """Jenga's order (SOSP'25): both kinds pairwise, the longest prefix first."""
    stage = make(40, ("window", 5))
    head = "hhhhiiii"
    stage.now_s = 1.0
    old, new = stage.run(head + "aaaabbbb"), stage.run(head + "ccccdddd")
    stage.now_s = 2.0
    stage.release(old)
    stage.now_s = 3.0
    stage.release(new)
    gone = []
    while victims := stage.kv._index.evict():
        for victim in victims:
            node = victim if isinstance(victim, Node) else victim.node
            gone.append(("full" if node is victim else "window", node.length, chr(node.tokens[0])))
    out_of_window = [("window", 12, "a"), ("window", 12, "c"), ("window", 8, "i"), ("window", 4, "h")]
    # What is still in a window goes with its node: the same token in both kinds at once.
    tails = [("full", 16, "b"), ("full", 12, "a"), ("full", 16, "d"), ("full", 12, "c")]
    assert gone == [*out_of_window, *tails, ("full", 8, "i"), ("full", 4, "h")]
    assert stage.kv._index.num_pieces == 0


def test_a_whole_page_goes_to_another_group_only_if_all_on_it_is_older() -> None:
    """Two blocks of the window on a page. The full group is short: its own oldest is younger than that page."""
    stage = make(4, ("window", 5), blocks_per_page=(1, 2), rules=MemoryRules(own_pages=0))
    stage.cache("aaaabbbb")
    assert stage.kv.usage().free_pages == 1
    stage.cache("cccc")
    assert stage.kv.usage().free_pages == 0
    before = stage.cached_tokens("cccc")
    stage.admit("d")
    assert (before, stage.cached_tokens("cccc")) == (4, 4)
    assert stage.cached_tokens("aaaabbbb") < 8


def state_stage(num_pages: int = 12) -> Stage:
    return make(num_pages, ("state", 0))


def with_snapshot(stage: Stage, seq: SeqId, length: int, num_tokens: int) -> tuple[StepId, int]:
    """A chunk that leaves a copy of the state behind `length` tokens. Returns its step and the copy's block."""
    given = stage.kv.checkpoint(seq, length, stage.now_s)
    assert given is not None
    chunk = stage.chunk(seq, num_tokens)
    snapshots = tuple(Snapshot(length - 1 - chunk.start, group, block) for group, block in given)
    step = StepId(stage._next_step)
    stage._next_step += 1
    chunk = Chunk(chunk.seq, chunk.start, chunk.num_tokens, chunk.tokens, snapshots=snapshots)
    stage.kv.submitted(StepPlan(step, LaneId(0), (), (), (), (chunk,)))
    stage._chunks[step] = (chunk,)
    return step, given[0][1]


def test_a_prefix_without_a_checkpoint_is_not_hit() -> None:
    stage = state_stage()
    stage.cache("aaaabbbb")
    hit = stage.hit("aaaabbbbc")
    assert (hit.num_tokens, hit.tail, hit.losses) == (0, None, (0, 8))


def test_a_checkpoint_inside_a_chunk_is_hit_exactly_there() -> None:
    stage = state_stage()
    seq = stage.admit("aaaabbbbccccd")
    step, block = with_snapshot(stage, seq, 8, 13)
    assert stage.hit("aaaabbbbccccd").num_tokens == 0, "H2: not before it is committed"
    stage.finish(step)
    stage.kv.check()
    hit = stage.hit("aaaabbbbccccd")
    assert (hit.num_tokens, hit.blocks[OTHER]) == (8, (block,))
    stage.release(seq)
    follower = stage.open("aaaabbbbccccd")
    grants = stage.reserve(follower, 13)
    assert grants is not None
    own = stage.table(follower, OTHER)[0]
    assert grants.moves == (Move(OTHER, block, 0, own, 0, 1),)
    stage.finish(stage.submit(stage.chunk(follower), moves=grants.moves))
    stage.kv.check()


def test_a_checkpoint_of_a_step_that_was_cancelled_is_never_hit() -> None:
    stage = state_stage()
    seq = stage.admit("aaaabbbbcc")
    step, _ = with_snapshot(stage, seq, 8, 10)
    stage.cancel(step)
    stage.finish(stage.submit(stage.chunk(seq)))
    assert stage.hit("aaaabbbbcc").num_tokens == 0
    stage.kv.check()
    stage.release(seq)
    assert stage.kv.usage().used_bytes == 0


def test_a_checkpoint_that_nobody_asked_for_is_refused() -> None:
    stage = state_stage()
    seq = stage.admit("aaaabbbb")
    assert stage.kv.checkpoint(seq, 6, 0.0) is not None
    with pytest.raises(InvariantError, match="asks for a checkpoint behind 6 tokens, not behind 6"):
        stage.kv.checkpoint(seq, 6, 0.0)
    chunk = stage.chunk(seq)
    free = next(b for b in range(stage.kv._pools[OTHER].layout.num_blocks) if b not in stage.table(seq, OTHER))
    wrong = Chunk(seq, 0, 8, chunk.tokens, snapshots=(Snapshot(3, OTHER, stage.table(seq, OTHER)[0]),))
    assert free >= 0
    with pytest.raises(InvariantError, match="writes snapshots"):
        stage.kv.submitted(StepPlan(StepId(5), LaneId(0), (), (), (), (wrong,)))


def test_of_the_checkpoints_of_somebody_who_left_the_newest_goes_last() -> None:
    """B5: of states only the newest checkpoint counts as used. None is pinned: its sequence has a state of its own."""
    stage = state_stage()
    seq = stage.admit("aaaabbbbccccdddd")
    blocks = []
    for length in (4, 8):
        step, block = with_snapshot(stage, seq, length, 4)
        stage.finish(step)
        blocks.append(block)
    pool = stage.kv._pools[OTHER]
    assert [pool.state(block) for block in blocks] == [BlockState.EVICTABLE, BlockState.EVICTABLE]
    stage.now_s = 1.0
    stage.cache("xxxx")
    stage.now_s = 2.0
    stage.release(seq)
    first, second = (stage.kv._index.piece(OTHER, BlockId(block)) for block in blocks)
    assert first is not None
    assert second is not None
    assert (first.last_access_s, second.last_access_s) == (0.0, 2.0)
    assert stage.kv._index.evict([OTHER]) == [first]
    stage.kv.check()


def test_a_checkpoint_takes_no_memory_that_a_prompt_was_promised() -> None:
    stage = make(6, ("state", 0))
    seq = stage.open("a" * 20)
    assert stage.reserve(seq, 16) is not None
    assert stage.kv.usage().free_pages == 1
    assert stage.kv.checkpoint(seq, 8, 0.0) is not None
    assert stage.kv.checkpoint(seq, 12, 0.0) is None, "nothing is left"
    stage.kv.check()


def test_beyond_their_part_of_the_memory_the_oldest_checkpoints_go() -> None:
    groups = mixed_groups((1, 1), [("full", 0), ("state", 0)], 4)
    stage = Stage(KVCache(make_layout(20, groups, 1, 4), groups, checkpoint_fraction=0.1))
    for number, text in enumerate(("aaaab", "ccccd", "eeeef")):
        stage.now_s = float(number)
        seq = stage.admit(text)
        step, _ = with_snapshot(stage, seq, 4, 5)
        stage.finish(step)
        stage.release(seq)
    stage.kv.check()
    assert [stage.hit(text).num_tokens for text in ("aaaab", "ccccd", "eeeef")] == [0, 4, 4]
    assert stage.hit("aaaab").num_matched == 4, "what could be hit, were there a checkpoint"


@dataclass(frozen=True, slots=True)
class SinkAndWindow:
    """A kind of layer that the memory has never heard of: rows see the first block and the last `size` tokens."""

    tokens_per_block: int
    size: int

    @property
    def is_state(self) -> bool:
        return False

    @property
    def keeps_all(self) -> bool:
        return False

    def dead(self, num_tokens: int) -> range:
        return range(1, max(1, (num_tokens - self.size + 1) // self.tokens_per_block))

    def possible(self, has: Sequence[bool]) -> list[range]:
        def is_possible(end: int) -> bool:
            return all(has[place] for place in range(end) if place not in self.dead(end * self.tokens_per_block))

        return [range(end, end + 1) for end in range(len(has) + 1) if is_possible(end)]

    def priority(self, num_tokens: int) -> int:
        return 0 if num_tokens == self.tokens_per_block else num_tokens

    def most_blocks(self, num_tokens: int, num_ahead: int) -> int:
        return KeepsTokens(self.tokens_per_block).most_blocks(min(num_tokens, self.size + num_ahead + 8), num_ahead)


def test_a_new_kind_of_layer_comes_from_outside() -> None:
    """The four questions of Jenga's interface are all that the memory asks."""
    stage = make(12, ("window", 5), keeps={OTHER: SinkAndWindow(4, 5)})
    seq = stage.run("aaaabbbbccccdddd")
    assert [block == NO_BLOCK for block in stage.table(seq, OTHER)] == [False, True, True, False]
    stage.kv.check()
    stage.release(seq)
    hit = stage.hit("aaaabbbbccccddddx")
    assert hit.num_tokens == 16
    assert [block == NO_BLOCK for block in hit.blocks[OTHER]] == [False, True, True, False]
    again = stage.admit("aaaabbbbccccddddx")
    stage.finish(stage.submit(stage.chunk(again)))
    stage.kv.check()
    sink = stage.kv._index.piece(OTHER, hit.blocks[OTHER][0])
    assert sink is not None
    stage.release(again)
    while stage.kv._index.evict([OTHER]):
        if stage.kv._index.piece(OTHER, sink.block) is sink:
            assert words("aaaa") == list(sink.node.tokens)
    assert stage.kv._index.num_pieces == 0
