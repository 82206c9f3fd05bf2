"""KVCache: hits, grants, publication, eviction, and what it says of itself.

Letters are tokens, four to a block; memories have one block per page unless they say otherwise.
"""

from __future__ import annotations

import pytest
from tests.unit.kv.kit import FULL, ROOT, Stage, full_groups, make_group, make_kv, make_layout, words

from plait.core.errors import InvariantError, ModelError
from plait.core.ids import GroupId, SeqId
from plait.core.step import BlockGrant
from plait.kv.cache import KVCache, Root, Tail
from plait.model.cache_layout import CacheLayout, GroupLayout
from plait.model.cache_type import CacheType

SECOND = GroupId(1)


def test_full_blocks_of_a_finished_sequence_are_hit() -> None:
    stage = Stage(make_kv(8))
    table = stage.cache("aaaabbbbcc")
    hit = stage.hit("aaaabbbbcccc")
    assert hit.num_tokens == 8
    assert hit.blocks == (tuple(table[:2]),)


def test_full_blocks_of_a_running_sequence_are_hit_as_soon_as_they_are_committed() -> None:
    stage = Stage(make_kv(8))
    running = stage.admit("aaaabbbb")
    stage.finish(stage.submit(stage.chunk(running, 5)))
    other = stage.admit("aaaacc")
    assert stage.table(other)[0] == stage.table(running)[0]
    stage.release(running)
    assert stage.cached_tokens("aaaa") == 4
    stage.kv.check()


def test_one_token_is_always_left_to_compute() -> None:
    stage = Stage(make_kv(8))
    table = stage.cache("aaaabbbb")
    hit = stage.hit("aaaabbbb")
    assert hit.num_tokens == 4
    assert hit.tail == Tail((table[1],), 3, node=0), "three of the second block's tokens could be copied"
    assert stage.hit("aaaabbbbc").num_tokens == 8


@pytest.mark.parametrize(("limit", "num_tokens"), [(0, 0), (3, 0), (4, 4), (7, 4), (8, 8), (100, 8), (None, 8)])
def test_a_limit_caps_the_hit(limit: int | None, num_tokens: int) -> None:
    stage = Stage(make_kv(8))
    stage.cache("aaaabbbbcc")
    hit = stage.hit("aaaabbbbccdd", limit=limit)
    assert hit.num_tokens == num_tokens
    assert hit.num_tokens + (hit.tail.num_tokens if hit.tail else 0) <= (11 if limit is None else limit)


@pytest.mark.parametrize(
    ("prompt", "tail"),
    [("aaaabbxx", ("aaaabbbb", 2)), ("aaaabcxx", ("aaaabccc", 2)), ("aaaaxbbb", None), ("aabb", ("aaaa", 2))],
)
def test_a_partly_matched_block_is_found_token_by_token(prompt: str, tail: tuple[str, int] | None) -> None:
    stage = Stage(make_kv(8))
    last = {text: stage.cache(text)[-1] for text in ("aaaa", "aaaabbbb", "aaaabccc")}
    found = stage.hit(prompt).tail
    assert found == (Tail((last[tail[0]],), tail[1], node=0) if tail else None)


@pytest.mark.parametrize(
    "other",
    [
        Root("another build"),
        Root("fingerprint", tenant="someone"),
        Root("fingerprint", adapter="poet"),
        Root("fingerprint", images=(b"cat",)),
    ],
)
def test_nothing_is_shared_across_roots(other: Root) -> None:
    stage = Stage(make_kv(8))
    mine = stage.cache("aaaa")
    assert stage.cached_tokens("aaaa", root=other) == 0
    theirs = stage.cache("aaaa", root=other)
    assert stage.cached_tokens("aaaa", root=other) == 4
    assert mine != theirs
    stage.kv.check()


def test_lookup_changes_nothing() -> None:
    stage = Stage(make_kv(8))
    stage.cache("aaaabbbb")
    before = stage.kv.explain()
    for text in ("aaaabbbbc", "aaaac", "zzzz", "a"):
        stage.hit(text)
        stage.hit(text, root=Root("nobody"))
    assert stage.kv.explain() == before


def test_a_prompt_without_tokens_hits_nothing() -> None:
    assert make_kv(2).lookup([], ROOT).num_tokens == 0


def test_a_hit_becomes_stale_when_its_blocks_are_evicted() -> None:
    stage = Stage(make_kv(1))
    stage.cache("aaaa")
    hit = stage.hit("aaaab")
    stage.cache("cccc")
    stage.cache("aaaa")
    with pytest.raises(InvariantError, match="sequence 9 opens a stale hit of 4 tokens; look up again"):
        stage.kv.open(SeqId(9), ROOT, hit, stage.now_s)


def test_a_hit_is_opened_under_the_root_it_was_looked_up_with() -> None:
    stage = Stage(make_kv(2))
    stage.cache("aaaa")
    with pytest.raises(InvariantError, match="stale hit"):
        stage.kv.open(SeqId(9), Root("another"), stage.hit("aaaab"), stage.now_s)


def test_a_block_being_computed_is_announced_until_it_is_published() -> None:
    stage = Stage(make_kv(8))
    seq = stage.admit("aaaabbbbcc")
    step = stage.submit(stage.chunk(seq))
    assert stage.hit("aaaax").pending == step
    assert stage.hit("aaaa").pending is None, "its last token must be computed, so the block is of no use"
    assert stage.hit("xaaaa").pending is None
    stage.finish(step)
    hit = stage.hit("aaaabbbbccc")
    assert (hit.num_tokens, hit.pending) == (8, None)


def test_an_announcement_goes_with_a_cancelled_step() -> None:
    stage = Stage(make_kv(8))
    seq = stage.admit("aaaabb")
    step = stage.submit(stage.chunk(seq))
    stage.cancel(step)
    assert stage.hit("aaaax").pending is None
    stage.kv.check()


def test_an_announcement_goes_with_a_released_sequence() -> None:
    stage = Stage(make_kv(8))
    seq = stage.admit("aaaabb")
    step = stage.submit(stage.chunk(seq))
    stage.release(seq)
    assert stage.hit("aaaax").pending is None
    stage.kv.collected(step)
    stage.kv.check()


def test_the_next_block_is_announced_when_the_one_before_is_published() -> None:
    stage = Stage(make_kv(8))
    seq = stage.admit("aaaabbbb")
    first, second = stage.submit(stage.chunk(seq, 6)), stage.submit(stage.chunk(seq))
    assert stage.hit("aaaabbbbc").pending == first
    stage.finish(first)
    hit = stage.hit("aaaabbbbc")
    assert (hit.num_tokens, hit.pending) == (4, second)
    stage.finish(second)
    stage.kv.check()


def test_tokens_that_only_the_device_knows_are_not_announced() -> None:
    stage = Stage(make_kv(8))
    seq = stage.admit("aaaa")
    first = stage.submit(stage.chunk(seq, 3))
    second = stage.submit(stage.chunk(seq, 1, known=False))
    assert stage.hit("aaaab").pending is None
    stage.finish(first)
    stage.finish(second)
    assert stage.cached_tokens("aaaa") == 4
    stage.kv.check()


def test_drafts_are_not_announced() -> None:
    stage = Stage(make_kv(8))
    seq = stage.admit("aaaa")
    stage.submit(stage.chunk(seq, num_drafts=2))
    assert stage.hit("aaaab").pending is None


def test_reserve_grants_every_entry_once_the_hit_s_with_the_first() -> None:
    stage = Stage(make_kv(8))
    table = stage.cache("aaaa")
    seq = stage.open("aaaabbbbcccc")
    first = stage.reserve(seq, 8)
    assert first is not None
    assert first.blocks == (BlockGrant(seq, FULL, 0, tuple(stage.table(seq))),)
    assert first.blocks[0].blocks[0] == table[0]
    second = stage.reserve(seq, 9)
    assert second is not None
    assert second.blocks == (BlockGrant(seq, FULL, 2, tuple(stage.table(seq)[2:])),)
    again = stage.reserve(seq, 12)
    assert again is not None
    assert (again.blocks, again.moves) == ((), ())


def test_the_hit_is_granted_even_if_nothing_more_is_needed() -> None:
    stage = Stage(make_kv(8))
    table = stage.cache("aaaa")
    seq = stage.open("aaaab")
    grants = stage.reserve(seq, 4)
    assert grants is not None
    assert grants.blocks == (BlockGrant(seq, FULL, 0, tuple(table[:1])),)


def test_shortage_changes_nothing() -> None:
    stage = Stage(make_kv(4))
    stage.cache("aaaa")
    running = stage.run("bbbb")
    seq = stage.open("cccc")
    before = stage.kv.explain()
    assert stage.reserve(seq, 16) is None
    assert stage.kv.explain() == before
    assert stage.cached_tokens("aaaa") == 4
    assert stage.reserve(seq, 12) is not None
    assert stage.cached_tokens("aaaa") == 0
    assert stage.cached_tokens("bbbb") == 4, "a running sequence's prefix is never evicted"
    stage.release(running)
    stage.kv.check()


def test_a_cached_block_is_evicted_only_if_no_free_one_is_left() -> None:
    stage = Stage(make_kv(2, 4))
    stage.cache("aaaabbbb")
    stage.admit("cccccccccccccccccccccccc")
    assert stage.cached_tokens("aaaabbbb") == 8, (
        "six blocks were free: four on the second page, two beside the cached ones"
    )
    stage.admit("dddd")
    assert stage.cached_tokens("aaaabbbb") == 4
    stage.kv.check()


def test_the_prefix_used_longest_ago_goes_first_and_its_tail_before_its_head() -> None:
    stage = Stage(make_kv(4))
    stage.cache("aaaabbbb")
    stage.cache("ccccdddd")
    stage.cache("aaaa")
    gone = []
    for extra in range(1, 5):
        seq = stage.open("z" * 4 * extra)
        assert stage.reserve(seq, 4 * extra) is not None
        cached = {text: stage.cached_tokens(text) for text in ("aaaabbbb", "ccccdddd")}
        gone.append(tuple(cached.values()))
        stage.kv.release(seq, stage.now_s)
        stage.kv.check()
    assert gone == [(4, 8), (4, 4), (4, 0), (0, 0)]


def test_a_preempted_sequence_finds_its_blocks_again() -> None:
    stage = Stage(make_kv(4))
    seq = stage.run("aaaabbbbcc")
    stage.release(seq)
    again = stage.open("aaaabbbbcc")
    assert stage.done[again] == 8
    stage.kv.check()


def test_a_sequence_may_open_again_under_its_id_while_its_old_table_is_in_quarantine() -> None:
    stage = Stage(make_kv(4, 2))
    seq = stage.admit("aaaabb")
    step = stage.submit(stage.chunk(seq))
    stage.kv.release(seq, 0.0)
    stage.kv.open(seq, ROOT, stage.hit("aaaabb"), 0.0)
    assert stage.kv.reserve(seq, 12, 0.0) is not None
    stage.kv.check()
    stage.kv.collected(step)
    stage.kv.check()
    stage.kv.release(seq, 0.0)
    assert stage.kv.usage().free_pages == 4


def test_of_two_sequences_that_computed_one_block_the_second_keeps_its_own_copy() -> None:
    stage = Stage(make_kv(8))
    first, second = stage.admit("aaaabb"), stage.admit("aaaacc")
    stage.finish(stage.submit(stage.chunk(first), stage.chunk(second)))
    table = stage.table(second)
    assert table[0] != stage.table(first)[0]
    assert stage.kv.explain().index.num_duplicates == 1
    assert stage.hit("aaaax").blocks == ((stage.table(first)[0],),)
    stage.release(second)
    assert stage.kv.usage().groups[0].used == 2, "the copy is free, the published block is the first one's"
    stage.kv.check()


def test_what_is_published_behind_a_duplicate_keeps_its_parent() -> None:
    stage = Stage(make_kv(4))
    first, second = stage.admit("aaaa"), stage.admit("aaaabbbb")
    stage.finish(stage.submit(stage.chunk(first), stage.chunk(second)))
    stage.release(first)
    assert stage.cached_tokens("aaaabbbb") == 8
    wanting = stage.open("cccccccc")
    assert stage.reserve(wanting, 8) is None, "the first block of the prefix is used by whoever stands on it"
    assert stage.reserve(wanting, 4) is not None
    assert stage.cached_tokens("aaaabbbb") == 8
    stage.kv.check()


def test_a_sequence_that_does_not_publish_leaves_nothing_behind() -> None:
    stage = Stage(make_kv(4))
    stage.cache("aaaa")
    seq = stage.run("aaaabbbb", publish=False)
    assert stage.cached_tokens("aaaabbbb") == 4, "the other one's block only"
    assert len(set(stage.table(seq))) == 2
    stage.release(seq)
    assert stage.kv.usage().free_pages == 3
    stage.kv.check()


def test_without_prefix_index_nothing_is_hit_published_or_kept() -> None:
    stage = Stage(make_kv(4, enable_prefix=False))
    seq = stage.admit("aaaabbbb")
    step = stage.submit(stage.chunk(seq))
    assert stage.hit("aaaab").pending is None
    stage.finish(step)
    assert stage.cached_tokens("aaaabbbb") == 0
    stage.release(seq)
    assert stage.kv.usage().free_pages == 4
    assert not stage.kv.explain().index.is_enabled


def test_decoding_publishes_a_block_at_each_boundary() -> None:
    stage = Stage(make_kv(4))
    seq = stage.admit("aaaabbbb")
    cached = []
    for _ in range(8):
        stage.finish(stage.submit(stage.chunk(seq, 1)))
        cached.append(stage.cached_tokens("aaaabbbb"))
        stage.kv.check()
    assert cached == [0, 0, 0, 4, 4, 4, 4, 8]


def test_reset_drops_what_nobody_uses() -> None:
    stage = Stage(make_kv(8))
    stage.cache("aaaabbbb")
    running = stage.admit("aaaacc")
    assert stage.kv.reset_prefix_index() == 1
    assert stage.cached_tokens("aaaabbbb") == 4
    stage.release(running)
    assert stage.kv.reset_prefix_index() == 1
    assert stage.kv.usage().free_pages == 8
    stage.kv.check()


def test_two_groups_share_the_pages_and_are_hit_together() -> None:
    stage = Stage(make_kv(6, 1, 2))
    seq = stage.run("aaaabbbb")
    tables = [stage.table(seq, group) for group in (FULL, SECOND)]
    assert [len(table) for table in tables] == [2, 2]
    stage.release(seq)
    hit = stage.hit("aaaabbbbc")
    assert hit.blocks == (tuple(tables[0]), tuple(tables[1]))
    again = stage.admit("aaaac")
    assert stage.table(again, SECOND)[0] == tables[1][0]
    stage.kv.check()


def test_eviction_moves_a_page_from_one_group_to_another() -> None:
    stage = Stage(make_kv(3, 1, 2))
    stage.cache("aaaabbbb")
    assert stage.kv.usage().free_pages == 0
    seq = stage.admit("cccccccc")
    assert stage.cached_tokens("aaaabbbb") == 0
    assert [len(stage.table(seq, group)) for group in (FULL, SECOND)] == [2, 2]
    stage.kv.check()


def test_a_group_with_free_blocks_leaves_the_last_page_to_the_other() -> None:
    stage = Stage(make_kv(3, 2, 1))
    first = stage.admit("aaaa")
    second = stage.admit("bbbb")
    assert [stage.table(first, FULL), stage.table(second, FULL)] == [[0], [1]], "two blocks of one page"
    assert [stage.table(first, SECOND), stage.table(second, SECOND)] == [[1], [2]]
    stage.kv.check()


def test_capacity_counts_pages_for_every_group() -> None:
    assert make_kv(6, 1, 2).capacity_tokens == 16, "4 pages and 2 pages"
    assert make_kv(5, 1, 2).capacity_tokens == 12, "3 pages and 2 pages, one of them half"
    assert make_kv(1, 1, 2).capacity_tokens == 0


def test_capacity_and_availability_count_whole_blocks() -> None:
    stage = Stage(make_kv(4, 2))
    assert stage.kv.capacity_tokens == stage.kv.available_tokens == 32
    stage.cache("aaaa")
    assert stage.kv.available_tokens == 32, "a cached block can be evicted"
    stage.admit("aaaab")
    assert stage.kv.available_tokens == 24
    assert stage.kv.capacity_tokens == 32


def test_usage_adds_up() -> None:
    stage = Stage(make_kv(8))
    stage.cache("aaaabbbb")
    stage.admit("aaaac")
    leaving = stage.admit("dddd")
    stage.submit(stage.chunk(leaving))
    stage.release(leaving)
    usage = stage.kv.usage()
    (blocks,) = usage.groups
    assert (blocks.used, blocks.evictable, blocks.quarantined, blocks.free) == (2, 1, 1, 0)
    block_bytes = usage.total_bytes // 8
    assert (usage.used_bytes, usage.evictable_bytes, usage.free_bytes) == (
        3 * block_bytes,
        block_bytes,
        4 * block_bytes,
    )
    assert usage.fraction == 3 / 8
    assert usage.free_pages == 4


def test_explain_counts_hits_when_sequences_open() -> None:
    stage = Stage(make_kv(8))
    stage.cache("aaaabbbb")
    stage.admit("aaaacccc")
    report = stage.kv.explain()
    assert (report.index.asked_tokens, report.index.hit_tokens) == (16, 4)
    assert report.index.hit_fraction == 0.25
    assert (report.index.num_nodes, report.index.num_evictable, report.index.num_roots) == (2, 1, 1)
    (group,) = report.groups
    assert (group.kind, group.tokens_per_block, group.num_pages) == ("full", 4, 3)
    assert group.bytes_per_token * 4 == group.block_bytes
    assert (report.num_sequences, report.num_quarantined, report.num_steps_in_flight) == (1, 0, 0)


def test_explain_reads_as_one_line() -> None:
    stage = Stage(make_kv(4))
    stage.cache("aaaa")
    stage.admit("bbbb")
    assert str(stage.kv.explain()) == (
        "2 of 4 pages free; full0 (full): 1 blocks used, 1 evictable, 0 free, 0 quarantined; "
        "room for 12 of 16 tokens; 1 sequences, 0 steps in flight"
    )


def test_a_model_without_cache_is_refused() -> None:
    with pytest.raises(ModelError, match="no cache group"):
        KVCache(CacheLayout(0, 0, ()), [])


def test_groups_with_different_blocks_are_refused() -> None:
    groups = full_groups(1, 1)
    layouts = (GroupLayout(groups[0], 4, CacheType.F32, 4), GroupLayout(groups[1], 8, CacheType.F32, 2))
    layout = CacheLayout(layouts[1].block_bytes, 2, layouts)
    with pytest.raises(ModelError, match=r"\[4, 8\] tokens per block"):
        KVCache(layout, groups)


def test_the_layout_must_be_the_program_s() -> None:
    layout = make_layout(2, full_groups(1), 1, 4)
    with pytest.raises(InvariantError, match="the layout is of groups"):
        KVCache(layout, [make_group(0, num_layers=2)])


def test_a_sequence_is_opened_once_and_named_only_while_it_is_open() -> None:
    stage = Stage(make_kv(2))
    seq = stage.open("aaaa")
    with pytest.raises(InvariantError, match="sequence 0 is opened twice"):
        stage.kv.open(seq, ROOT, stage.kv.no_hit(), 0.0)
    stage.release(seq)
    for call in (
        lambda: stage.kv.release(seq, 0.0),
        lambda: stage.kv.reserve(seq, 4, 0.0),
        lambda: stage.kv.table(seq, FULL),
    ):
        with pytest.raises(InvariantError, match="sequence 0 has no table"):
            call()


def test_time_never_goes_back() -> None:
    stage = Stage(make_kv(2))
    stage.now_s = 2.0
    seq = stage.open("aaaa")
    with pytest.raises(InvariantError, match=r"time goes back from 2.0 s to 1.0 s"):
        stage.kv.release(seq, 1.0)


def test_a_list_is_looked_up_like_a_tuple() -> None:
    stage = Stage(make_kv(2))
    stage.cache("aaaa")
    tokens = words("aaaab")
    assert stage.kv.lookup(tokens, ROOT) == stage.kv.lookup(tuple(tokens), ROOT)


@pytest.mark.parametrize("blocks_per_page", [(1,), (3,), (2, 1), (4, 6)])
@pytest.mark.parametrize("prompt", ["aaaabbbbccccd", "aaaabbbbz", "aaaaz", "zz", "xxxxyyyyz"])
def test_room_behind_a_hit_is_what_is_available_once_it_is_open(blocks_per_page: tuple[int, ...], prompt: str) -> None:
    stage = Stage(make_kv(10, *blocks_per_page))
    for text in ("aaaabbbbcccc", "ddddeeee", "aaaabbbb", "xxxxyyyy"):
        stage.cache(text)
    runs = stage.run("xxxxyy")
    room = stage.kv.room_behind(stage.hit(prompt))
    assert stage.kv.room_behind(stage.kv.no_hit()) == stage.kv.available_tokens
    seq = stage.open(prompt)
    assert stage.kv.available_tokens == room
    assert stage.reserve(seq, stage.done[seq] + room + 1) is None
    assert stage.reserve(seq, stage.done[seq] + room) is not None
    stage.release(seq, runs)
    stage.kv.check()
