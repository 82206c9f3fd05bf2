"""How close counts."""

from __future__ import annotations

import pytest

from plait.reproduce.band import Band, Between, Equal, Near, Printed, Value, Within, decimals_of, is_number, number_of


@pytest.mark.parametrize(
    ("band", "ours", "published", "holds"),
    [
        (Printed(), 11.149, "11.1", True),
        (Printed(), 11.16, "11.1", False),
        (Printed(), 7.5, "8", True),
        (Printed(), 7.4, "8", False),
        (Printed(), 0.045, "0.05", True),
        (Equal(), 7200, "7,200", True),
        (Equal(), 7201, "7,200", False),
        (Equal(), "12 28 44", "12 28 44", True),
        (Equal(), "12 28", "12 28 44", False),
        (Within(0.1), 19.4, "19.3", True),
        (Within(0.1), 19.41, "19.3", False),
        (Near(0.1), 1.71, "1.9", True),
        (Near(0.1), 1.70, "1.9", False),
        (Between(high=9.0), 9.0, "8.16", True),
        (Between(high=9.0), 9.01, "8.16", False),
        (Between(1.0, 1.2), 0.99, "1.2", False),
        (Between(low=1.0), 3.0, "better", True),
    ],
)
def test_a_band_holds_up_to_its_edge(band: Band, ours: Value, published: str, holds: bool) -> None:
    assert band.holds(ours, published) == holds


@pytest.mark.parametrize("band", [Printed(), Within(1.0), Near(1.0), Between(low=0.0), Between(high=9.0), Equal()])
def test_what_is_no_number_lies_in_no_band(band: Band) -> None:
    assert not band.holds(float("nan"), "1.0")


@pytest.mark.parametrize("band", [Printed(), Within(1.0), Near(1.0), Between(low=0.0)])
def test_words_lie_in_no_band_of_numbers(band: Band) -> None:
    assert not band.holds("1.0", "1.0")


@pytest.mark.parametrize(
    ("band", "words"),
    [
        (Equal(), "equal"),
        (Printed(), "its digits"),
        (Within(0.05), "+-0.05"),
        (Near(0.1), "+-10 %"),
        (Between(high=9.0), "<= 9"),
        (Between(low=1.0), ">= 1"),
        (Between(1.0, 1.2), "1 to 1.2"),
    ],
)
def test_a_band_says_what_it_is(band: Band, words: str) -> None:
    assert band.words == words


def test_printed_numbers_are_read_as_they_stand() -> None:
    assert number_of("7,200") == 7200
    assert [decimals_of(text) for text in ("7,200", "1.80", "0.002")] == [0, 2, 3]
    assert [is_number(text) for text in ("7,200", "1.80", "12 28", "", "worse", "1.2.3")] == [True, True, *[False] * 4]
