"""Rates follow what happened, by level and by sequence."""

from __future__ import annotations

import pytest

from plait.draft.acceptance import Acceptance, OwnAcceptance


def test_a_rate_goes_from_the_first_one_to_what_is_seen() -> None:
    of_all = Acceptance((0.2, 0.9))
    assert of_all.rate(1) == pytest.approx(0.9)
    for _ in range(400):
        of_all.note(1, False)
    assert of_all.rate(1) < 0.02
    assert of_all.rate(0) == pytest.approx(0.2)


def test_chances_are_those_of_all_drafts_up_to_one() -> None:
    own = OwnAcceptance(Acceptance((0.5, 0.8)))
    assert own.chances((0, 1, 1)) == pytest.approx([0.5, 0.4, 0.32])


def test_a_sequence_whose_guesses_fail_loses_its_own_chances_and_hardly_those_of_others() -> None:
    of_all = Acceptance((0.5,))
    own, other = OwnAcceptance(of_all), OwnAcceptance(of_all)
    for _ in range(15):
        own.note(0, False)
    assert own.chances((0,))[0] < 0.15
    assert other.chances((0,))[0] > 0.2


def test_what_was_always_right_is_nearly_certain() -> None:
    own = OwnAcceptance(Acceptance((0.6,)))
    for _ in range(400):
        own.note(0, True)
    first, second = own.chances((0, 0))
    assert 0.98 < second < first < 1.0


def test_a_sequence_of_its_own_kind_does_not_make_long_guesses_hopeless() -> None:
    """As a factor of every rate, a ratio of a half would leave a fiftieth of a chance after eight certain tokens."""
    of_all = Acceptance((0.5, 0.99))
    own = OwnAcceptance(of_all)
    for _ in range(6):
        own.note(0, False)
    chances = own.chances((0, *[1] * 8))
    assert chances[8] > 0.8 * chances[0]
