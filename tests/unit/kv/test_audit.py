"""Audit: `check` is silent on a healthy memory and names what is broken on a damaged one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.kv.kit import Stage, make_kv

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, LaneId, SeqId, StepId
from plait.kv.blocks import BlockState
from plait.kv.cache import KVCache
from plait.kv.planned import PlannedBlock
from plait.kv.tables import SeqTable, Writing

HIT, OTHER, GONE = SeqId(1), SeqId(2), SeqId(3)


def make_busy_kv() -> KVCache:
    """Cached `aaaabbbb`; sequence 1 hit `aaaa` and computes six more; 2 runs alone; 3 is in quarantine."""
    stage = Stage(make_kv(12))
    stage.cache("aaaabbbb")
    hit, other, gone = stage.admit("aaaacccccc"), stage.admit("dddddd"), stage.admit("eeee")
    assert (hit, other, gone) == (HIT, OTHER, GONE)
    stage.finish(stage.submit(stage.chunk(other, 5)))
    stage.submit(stage.chunk(hit, 3))
    stage.submit(stage.chunk(hit), stage.chunk(gone))
    stage.release(gone)
    stage.kv.check()
    return stage.kv


def table_of(kv: KVCache, seq: SeqId) -> SeqTable:
    return kv._tables[seq]


def lose_a_page(kv: KVCache) -> None:
    kv._pages._free.pop()


def share_a_private_block(kv: KVCache) -> None:
    table_of(kv, HIT).blocks[0][1] = table_of(kv, OTHER).blocks[0][1]


def repeat_a_private_block(kv: KVCache) -> None:
    blocks = table_of(kv, HIT).blocks[0]
    blocks[2] = blocks[1]


def forget_a_private_block(kv: KVCache) -> None:
    kv._pools[0].free(table_of(kv, OTHER).blocks[0][1])


def forget_the_holder(kv: KVCache) -> None:
    kv._pools[0]._holders[table_of(kv, OTHER).blocks[0][1]] = HIT


def lose_a_reference(kv: KVCache) -> None:
    table_of(kv, HIT).node.num_refs -= 1


def put_a_published_block_elsewhere(kv: KVCache) -> None:
    blocks = table_of(kv, HIT).blocks[0]
    blocks[0], blocks[1] = blocks[1], blocks[0]


def count_a_slot_too_many(kv: KVCache) -> None:
    table_of(kv, OTHER).num_slots += 1
    table_of(kv, OTHER).kept_slots += 1


def commit_more_than_planned(kv: KVCache) -> None:
    table_of(kv, OTHER).num_committed += 2


def lose_a_token(kv: KVCache) -> None:
    table_of(kv, OTHER).tail.pop()


def grant_what_is_not_there(kv: KVCache) -> None:
    table_of(kv, OTHER).num_granted[0] = 5


def keep_a_full_block_private(kv: KVCache) -> None:
    table = table_of(kv, OTHER)
    table.num_committed = table.planned_end = 8
    table.tail += [0, 0, 0]


def collect_behind_its_back(kv: KVCache) -> None:
    del kv._flights._by_step[StepId(2)]


def change_the_lane(kv: KVCache) -> None:
    table_of(kv, HIT).lane = LaneId(1)


def leave_a_gap(kv: KVCache) -> None:
    table_of(kv, HIT).writing[StepId(9)] = Writing(10, 11, ())


def write_a_published_block(kv: KVCache) -> None:
    table_of(kv, HIT).writing[StepId(2)] = Writing(3, 7, ())


def plan_too_far(kv: KVCache) -> None:
    table_of(kv, HIT).planned_end += 1


def forget_a_reader(kv: KVCache) -> None:
    table_of(kv, OTHER).num_readers += 1


def empty_the_quarantine(kv: KVCache) -> None:
    ((table, _),) = kv._quarantined.items()
    kv._quarantined.clear()
    for block in table.blocks[0]:
        kv._pools[0].free(block)
    kv._index.release(table.node, 1.0)


def quarantine_for_nothing(kv: KVCache) -> None:
    table = kv._tables.pop(OTHER)
    table.released_s = 1.0
    kv._quarantined[table] = None
    for block in table.blocks[0]:
        if kv._pools[0].state(block) is BlockState.PRIVATE:
            kv._pools[0].quarantine(block)


def lose_an_announcement(kv: KVCache) -> None:
    table = table_of(kv, HIT)
    assert table.planned is not None
    kv._planned.drop(HIT, table.planned)


def announce_other_tokens(kv: KVCache) -> None:
    table = table_of(kv, HIT)
    assert table.planned is not None
    kv._planned.drop(HIT, table.planned)
    table.planned = PlannedBlock(table.node.id, (0, 0, 0, 0), StepId(2))
    kv._planned.add(HIT, table.planned)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_a_page, r"pages: page \d+ is not free but lent to None"),
        (share_a_private_block, "blocks of group 0: block 5 of sequence 1 is held by 2"),
        (repeat_a_private_block, "blocks of group 0: block 2 is private but stands in two tables or twice in one"),
        (forget_a_private_block, "blocks of group 0: block 5 of sequence 2 is held by None"),
        (forget_the_holder, "blocks of group 0: block 5 of sequence 2 is held by 1"),
        (lose_a_reference, "index: node 2 has 0 references, its users make 1"),
        (put_a_published_block_elsewhere, "tables: sequence 1 holds published block 0 out of its place 1"),
        (count_a_slot_too_many, "tables: sequence 2 has 2 blocks for 9 slots"),
        (commit_more_than_planned, r"tables: sequence 2: .* do not ascend"),
        (lose_a_token, "tables: sequence 2 keeps 0 ids behind 4 published tokens"),
        (grant_what_is_not_there, "tables: sequence 2 lost part of its hit or granted more than it holds"),
        (keep_a_full_block_private, "tables: sequence 2 has a full block that is not published"),
        (collect_behind_its_back, "flights: sequence 1 counts on step 2, which is not in flight with it"),
        (change_the_lane, r"flights: sequence 1 of lane 1 is in step 2 of lane 0 \(H7\)"),
        (leave_a_gap, "flights: sequence 1 counts on step 9"),
        (write_a_published_block, r"flights: sequence 1: step 2 writes slot 3, which belongs to the hit \(H6\)"),
        (plan_too_far, "flights: sequence 1 is planned up to slot 11, but its steps end at 10"),
        (forget_a_reader, "flights: sequence 2 is named by 0 steps, not 1"),
        (empty_the_quarantine, r"flights: step 3 writes sequence 3, which does not know or is gone \(H1\)"),
        (quarantine_for_nothing, "flights: sequence 2 is in quarantine but no step in flight names it"),
        (lose_an_announcement, "planned: entries .* but the tables know"),
        (announce_other_tokens, "planned: sequence 1 announces"),
    ],
)
def test_check_names_what_is_broken(damage: Callable[[KVCache], None], message: str) -> None:
    kv = make_busy_kv()
    damage(kv)
    with pytest.raises(InvariantError, match=message):
        kv.check()


def test_check_finds_steps_that_do_not_follow_one_another() -> None:
    kv = make_busy_kv()
    writing = table_of(kv, HIT).writing
    writing[StepId(3)] = Writing(8, 10, ())
    with pytest.raises(InvariantError, match="step 3 starts at slot 8, the step before ends at 7"):
        kv.check()


def test_check_finds_a_table_that_does_not_begin_with_its_hit() -> None:
    kv = make_busy_kv()
    table = table_of(kv, HIT)
    stranger = BlockId(11)
    assert kv._pools[0].state(stranger) is BlockState.FREE
    table.blocks[0][0] = stranger
    with pytest.raises(InvariantError, match="block 11 of sequence 1 is held by None"):
        kv.check()
