"""Plan hashes: one number for the same steps, however they were planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.plan_hash import plan_hash
from plait.core.step import FROM_DEVICE, SAMPLES_ONE, BlockGrant, Chunk, Leave, StepPlan


def grant(seq: int, first: int, block: int) -> BlockGrant:
    return BlockGrant(SeqId(seq), GroupId(0), first, (BlockId(block),))


def decode(step: int, starts: dict[int, int], *grants: BlockGrant, num_steps: int = 1) -> StepPlan:
    chunks = tuple(Chunk(SeqId(seq), start, num_steps, FROM_DEVICE, None, SAMPLES_ONE) for seq, start in starts.items())
    return StepPlan(StepId(step), LaneId(0), (), grants, (), chunks, num_steps=num_steps)


PROMPT = StepPlan(
    StepId(0), LaneId(0), (), (grant(1, 0, 7),), (), (Chunk(SeqId(1), 0, 3, (4, 5, 6), None, SAMPLES_ONE),)
)
ONE_BY_ONE = [
    PROMPT,
    decode(1, {1: 3, 2: 9}, grant(1, 1, 3)),
    decode(2, {1: 4, 2: 10}),
    decode(3, {1: 5, 2: 11}, grant(2, 3, 4)),
    decode(4, {1: 6, 2: 12}, grant(1, 2, 5)),
    replace(decode(5, {1: 7}), roster=(Leave(SeqId(2)),)),
]


@pytest.mark.parametrize("cut", [(4,), (1, 3), (2, 2), (3, 1), (1, 1, 2)])
def test_runs_hash_as_the_steps_that_they_stand_for(cut: tuple[int, ...]) -> None:
    runs, place = [PROMPT], 1
    for size in cut:
        part = ONE_BY_ONE[place : place + size]
        grants = [one for plan in part for one in plan.blocks]
        runs.append(decode(place, {c.seq: c.start for c in part[0].chunks}, *grants, num_steps=size))
        place += size
    assert plan_hash([*runs, ONE_BY_ONE[-1]]) == plan_hash(ONE_BY_ONE)


def test_a_difference_inside_a_stretch_of_decode_steps_shows() -> None:
    def other(place: int, plan: StepPlan) -> str:
        return plan_hash([*ONE_BY_ONE[:place], plan, *ONE_BY_ONE[place + 1 :]])

    hashes = [
        plan_hash(ONE_BY_ONE),
        plan_hash(ONE_BY_ONE[:-1]),
        plan_hash(ONE_BY_ONE[:-2]),
        other(2, decode(2, {1: 4})),
        other(2, decode(2, {1: 5, 2: 10})),
        other(2, decode(2, {2: 10, 1: 4})),
        other(2, replace(ONE_BY_ONE[2], lane=LaneId(1))),
        other(3, decode(3, {1: 5, 2: 11}, grant(2, 3, 5))),
        other(3, decode(3, {1: 5, 2: 11})),
        other(5, decode(5, {1: 7})),
        other(0, replace(PROMPT, chunks=(PROMPT.chunks[0]._replace(tokens=(4, 5, 7)),))),
    ]
    known = decode(2, {1: 4, 2: 10})
    hashes.append(other(2, replace(known, chunks=(known.chunks[0]._replace(tokens=(8,)), known.chunks[1]))))
    assert len(set(hashes)) == len(hashes)
