"""Planned blocks: announced while their step is in flight, found by content, gone with their sequence."""

from __future__ import annotations

from plait.core.ids import SeqId, StepId
from plait.kv.planned import PlannedBlock, PlannedBlocks

A, B = SeqId(0), SeqId(1)


def test_a_planned_block_is_found_by_parent_and_tokens() -> None:
    planned = PlannedBlocks()
    planned.add(A, PlannedBlock(7, (1, 2), StepId(3)))
    assert planned.find(7, (1, 2)) == 3
    assert planned.find(7, (1, 3)) is None
    assert planned.find(8, (1, 2)) is None


def test_of_two_sequences_that_compute_the_same_block_the_earlier_step_is_named() -> None:
    planned = PlannedBlocks()
    late, early = PlannedBlock(7, (1, 2), StepId(9)), PlannedBlock(7, (1, 2), StepId(4))
    planned.add(A, late)
    planned.add(B, early)
    assert planned.find(7, (1, 2)) == 4
    planned.drop(B, early)
    assert planned.find(7, (1, 2)) == 9
    planned.drop(A, late)
    assert planned.find(7, (1, 2)) is None
    assert planned.entries() == {}
