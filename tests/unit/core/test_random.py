"""Counter-based random numbers: the published answers, the half-open interval, and nothing shared between callers."""

from __future__ import annotations

import pytest

from plait.core.errors import InvariantError
from plait.core.random import Words, philox4x32, uniform

ONES = 0xFFFFFFFF
# Published with Random123 by the authors of the paper, for philox4x32 with ten rounds.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: Words, key: tuple[int, int], words: Words) -> None:
    assert philox4x32(counter, key) == words


def test_uniform_is_the_first_two_words_as_a_double() -> None:
    numerator = (0x6627E8D5 >> 5) * 2**26 + (0xE169C58D >> 6)
    assert uniform(0, 0, 0, 0) == numerator / 2**53


def test_seed_and_position_are_split_into_words_low_first() -> None:
    seed, position = 0x299F31D0_A4093822, 0x03707344_13198A2E
    high, low, _, _ = (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)
    assert uniform(seed, 0x85A308D3, position, 0x243F6A88) == ((high >> 5) * 2**26 + (low >> 6)) / 2**53


def test_neighbouring_seeds_choices_positions_and_draws_share_no_number() -> None:
    numbers = [uniform(s, c, p, d) for s in range(6) for c in range(6) for p in range(6) for d in range(6)]
    assert len(set(numbers)) == 6**4
    assert all(0.0 <= number < 1.0 for number in numbers)


def test_numbers_fill_the_interval_evenly() -> None:
    counts = [0] * 10
    for position in range(5000):
        counts[int(uniform(7, 0, position, 0) * 10)] += 1
    # 500 expected in each tenth, standard deviation 21; five of them.
    assert all(abs(count - 500) < 106 for count in counts)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((1 << 64, 0, 0, 0), "seed 18446744073709551616"),
        ((0, 1 << 32, 0, 0), "choice 4294967296"),
        ((0, 0, -1, 0), "position -1"),
        ((0, 0, 0, 1 << 32), "draw 4294967296"),
    ],
)
def test_what_does_not_fit_is_refused_and_not_wrapped(arguments: tuple[int, int, int, int], named: str) -> None:
    with pytest.raises(InvariantError, match=named):
        uniform(*arguments)
