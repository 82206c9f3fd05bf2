"""Holds: who waits for whose prefix, and until when."""

from __future__ import annotations

import pytest

from plait.core.errors import InvariantError
from plait.core.ids import RequestId, SeqId
from plait.core.request import Request, Sequence
from plait.sched.prefix_hold import PrefixHolds

ROOT = "root"


def make_seq(number: int, prompt: list[int]) -> Sequence:
    return Sequence(SeqId(number), Request(RequestId(str(number)), tuple(prompt)), 0, 0, 1, 0.0, list(prompt))


def computing(holds: PrefixHolds, number: int, prompt: list[int], num_hit: int = 0) -> Sequence:
    seq = make_seq(number, prompt)
    holds.computing(seq, ROOT, num_hit)
    return seq


def test_a_sequence_waits_for_the_first_block_that_another_computes() -> None:
    holds = PrefixHolds(tokens_per_block=4)
    computing(holds, 0, list(range(10)))
    assert holds.is_held(make_seq(1, list(range(12))), ROOT, 0)
    assert holds.is_held(make_seq(2, list(range(12))), ROOT, 4)
    assert not holds.is_held(make_seq(3, list(range(12))), ROOT, 8), "nobody computes a third full block"
    assert not holds.is_held(make_seq(4, [9, *range(1, 12)]), ROOT, 0), "the first block differs"
    assert not holds.is_held(make_seq(5, list(range(12))), "another root", 0)
    assert not holds.is_held(make_seq(6, [0, 1]), ROOT, 0), "too short to share half a block"


def test_an_equal_block_behind_another_prefix_is_another_block() -> None:
    holds = PrefixHolds(tokens_per_block=2)
    computing(holds, 0, [1, 2, 3, 4])
    assert not holds.is_held(make_seq(1, [9, 9, 3, 4]), ROOT, 2)


def test_computed_blocks_hold_nobody_any_longer() -> None:
    holds = PrefixHolds(tokens_per_block=4)
    owner = computing(holds, 0, list(range(12)))
    owner.num_computed = 7
    holds.computed(owner)
    assert not holds.is_held(make_seq(1, list(range(12))), ROOT, 0)
    assert holds.is_held(make_seq(2, list(range(12))), ROOT, 4)
    owner.num_computed = 12
    holds.computed(owner)
    assert not holds.is_held(make_seq(3, list(range(12))), ROOT, 8)
    holds.computed(owner)


def test_a_sequence_that_leaves_frees_those_that_waited() -> None:
    holds = PrefixHolds(tokens_per_block=4)
    owner = computing(holds, 0, list(range(12)))
    other = make_seq(1, list(range(12)))
    assert holds.is_held(other, ROOT, 0)
    holds.forget(owner)
    assert not holds.is_held(other, ROOT, 0)


def test_nobody_waits_for_what_ends_his_prompt() -> None:
    holds = PrefixHolds(tokens_per_block=4)
    computing(holds, 0, list(range(8)))
    assert holds.is_held(make_seq(1, list(range(8))), ROOT, 0)
    assert holds.is_held(make_seq(2, list(range(8))), ROOT, 4), "half of the block can be copied"
    assert not holds.is_held(make_seq(3, list(range(8))), ROOT, 6), "one token must be computed anyway"
    assert not holds.is_held(make_seq(4, list(range(6))), ROOT, 4)


def test_half_a_block_is_waited_for_and_less_is_not() -> None:
    holds = PrefixHolds(tokens_per_block=8)
    owner = computing(holds, 0, list(range(16)))
    assert holds.is_held(make_seq(1, [*range(4), *range(50, 60)]), ROOT, 0)
    assert not holds.is_held(make_seq(2, [*range(3), *range(50, 60)]), ROOT, 0)
    assert holds.is_held(make_seq(3, [*range(13), *range(50, 60)]), ROOT, 8)
    assert not holds.is_held(make_seq(4, [*range(13), *range(50, 60)]), ROOT, 12), "the rest is less than half"
    owner.num_computed = 15
    holds.computed(owner)
    assert not holds.is_held(make_seq(5, [*range(4), *range(50, 60)]), ROOT, 0), "the first block is published"
    assert holds.is_held(make_seq(6, [*range(13), *range(50, 60)]), ROOT, 8), "the second is not, though half is there"


def test_nobody_waits_for_a_block_that_the_prompt_does_not_fill() -> None:
    holds = PrefixHolds(tokens_per_block=8)
    owner = computing(holds, 0, list(range(14)))
    other = make_seq(1, list(range(20)))
    assert not holds.is_held(other, ROOT, 8)
    holds.forget(other)
    owner.num_computed = 14
    holds.computed(owner)
    holds.check(running=[], known=[])


def test_a_block_of_an_odd_size_is_waited_for_as_a_whole() -> None:
    holds = PrefixHolds(tokens_per_block=3)
    computing(holds, 0, list(range(6)))
    assert holds.is_held(make_seq(1, list(range(7))), ROOT, 3)
    assert not holds.is_held(make_seq(2, [0, 1, 9, 9]), ROOT, 0)


def test_a_sequence_is_never_held_by_itself() -> None:
    holds = PrefixHolds(tokens_per_block=4)
    owner = computing(holds, 0, list(range(12)))
    assert not holds.is_held(owner, ROOT, 0)


def test_blocks_found_in_the_index_are_not_computed_again() -> None:
    holds = PrefixHolds(tokens_per_block=4)
    computing(holds, 0, list(range(12)), num_hit=8)
    assert not holds.is_held(make_seq(1, list(range(12))), ROOT, 0)
    assert holds.is_held(make_seq(2, list(range(13))), ROOT, 8)


def test_what_an_idle_sequence_holds_and_what_a_stranger_left_is_found() -> None:
    holds = PrefixHolds(tokens_per_block=4)
    owner = computing(holds, 0, list(range(12)))
    holds.check(running=[owner.id], known=[owner.id])
    with pytest.raises(InvariantError, match=r"sequences \[0, 0, 0, 0, 0, 0\] hold others back but do not run"):
        holds.check(running=[], known=[owner.id])
    holds.forget(owner)
    holds.is_held(make_seq(1, list(range(12))), ROOT, 0)
    with pytest.raises(InvariantError, match=r"keys of sequences \[1\] are kept"):
        holds.check(running=[], known=[])
