"""Guessed lengths: the mean of the nearest part of the tree that somebody is known of."""

from __future__ import annotations

import pytest
from tests.unit.sched.blend.jobs import mixed_job, tree_of

from plait.sched.blend.lengths import drawn, guessed, guessed_squares, two_lengths

MOST = [100] * 6
TREE = tree_of([(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3,)])


def test_a_subtree_takes_the_mean_of_its_sample() -> None:
    assert guessed(TREE, {0: 10, 1: 20, 3: 4}, MOST) == [10, 20, 15, 4, 4, 34 / 3]


def test_a_subtree_without_a_sample_takes_what_is_above_it() -> None:
    assert guessed(TREE, {0: 10}, MOST) == [10] * 6


def test_nobody_says_more_than_it_may_or_less_than_a_token() -> None:
    most = [100, 12, 100, 1, 100, 0]
    assert guessed(TREE, {0: 10, 2: 20, 4: 0}, most) == [10, 12, 20, 1, 1, 1]


def test_without_a_sample_everybody_says_what_it_may() -> None:
    assert guessed(TREE, {}, [5, 4, 3, 2, 1, 0]) == [5, 4, 3, 2, 1, 1]


def test_a_sample_depends_on_the_seed_and_the_number_alone() -> None:
    assert drawn(1000, 7) == drawn(1000, 7) == sorted(set(drawn(1000, 7)))
    assert drawn(1000, 7) != drawn(1000, 8)
    assert len(drawn(1000, 7)) == 10
    assert drawn(3, 0, 0.01) in ([0], [1], [2])
    assert drawn(0, 0) == []
    assert drawn(4, 0, 1.0) == [0, 1, 2, 3]


def test_all_known_is_all_said() -> None:
    prompts, outputs = mixed_job(2)
    known = dict(enumerate(outputs))
    assert guessed(tree_of(prompts), known, [1] * len(prompts)) == outputs


def test_two_lengths_have_the_mean_and_the_mean_square() -> None:
    for lengths in ([1, 1, 1, 90], [5, 5], [1, 2], [3, 400, 7]):
        mean = sum(lengths) / len(lengths)
        square = sum(length**2 for length in lengths) / len(lengths)
        longest, part = two_lengths(mean, square)
        assert 0 < part <= 1
        short = 1 if part < 1 else longest
        assert part * longest + (1 - part) * short == pytest.approx(mean)
        assert part * longest**2 + (1 - part) * short**2 == pytest.approx(square)


def test_squares_are_of_the_same_requests_as_means() -> None:
    known = {0: 10, 1: 20, 3: 4}
    assert guessed_squares(TREE, known, MOST) == [100, 400, 250, 16, 16, 516 / 3]
