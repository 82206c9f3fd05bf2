"""Rests grow while looks come to nothing, end at once when one does not, and are bounded by how many there are."""

from __future__ import annotations

from itertools import pairwise

import pytest

from plait.sched.looks import MOST_REST, Looks


def looks_of(looks: Looks, num_steps: int, num_sequences: int, *, nothing: bool = True) -> list[int]:
    """Which of the next steps are looked before."""
    found = []
    for step in range(num_steps):
        if looks.are_due(num_sequences, 1):
            found.append(step)
            looks.came_to(num_sequences, 1, nothing=nothing)
        looks.passed()
    return found


def gaps(found: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(found)]


def test_one_sequence_never_rests() -> None:
    assert looks_of(Looks(), 20, 1) == [*range(20)]


@pytest.mark.parametrize("num_sequences", [2, 8, 32, 200])
def test_rests_double_and_end_at_a_bound_that_grows_with_the_batch(num_sequences: int) -> None:
    found = gaps(looks_of(Looks(), 400, num_sequences))
    assert found == sorted(found)
    assert found[0] == 2
    assert found[-1] - 1 == min(MOST_REST, num_sequences - 1)
    assert looks_of(Looks(), 400, num_sequences) == looks_of(Looks(), 400, num_sequences)


def test_a_look_that_came_to_something_ends_all_rests() -> None:
    looks = Looks()
    looks_of(looks, 100, 8)
    while not looks.are_due(8, 1):
        looks.passed()
    looks.came_to(8, 1, nothing=False)
    assert gaps(looks_of(looks, 20, 8, nothing=False)) == [1] * 19
    assert gaps(looks_of(looks, 20, 8))[0] == 2


def test_rests_of_one_number_of_sequences_are_not_those_of_another() -> None:
    looks = Looks()
    looks_of(looks, 100, 8)
    assert looks.are_due(9, 1)
    assert looks.are_due(8, 0)
