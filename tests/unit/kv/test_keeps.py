"""Keeps: what each kind of layer needs, and which prefixes it can take up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from plait.kv.keeps import Keeps, KeepsState, KeepsTokens, longest_possible
from plait.model.visibility import CAUSAL, Visibility, chunk, window


def cached(picture: str) -> list[bool]:
    """ "T3 F" is three blocks that are there and one that is not."""
    return [part[0] == "T" for part in picture.split() for _ in range(int(part[1:] or 1))]


def tokens(lengths: list[range], size: int) -> list[tuple[int, int]]:
    return [(one.start * size, (one.stop - 1) * size) for one in lengths]


@pytest.mark.parametrize(
    ("has", "three", "two"),
    [
        ("F11", [(0, 0)], [(0, 0)]),
        ("T F10", [(0, 16)], [(0, 16)]),
        ("T3 F8", [(0, 48)], [(0, 48)]),
        ("F T2 F8", [(0, 0)], [(0, 0), (48, 48)]),
        ("F T3 F7", [(0, 0), (64, 64)], [(0, 0), (48, 64)]),
        ("F T4 F6", [(0, 0), (64, 80)], [(0, 0), (48, 80)]),
    ],
)
def test_a_window_of_32_in_blocks_of_16_as_in_jenga_s_artifact(
    has: str, three: list[tuple[int, int]], two: list[tuple[int, int]]
) -> None:
    """The artifact asks for three blocks (SOSP'25), vLLM and Plait for the two that the next row sees."""
    assert tokens(KeepsTokens(16, window(32), hit_blocks=3).possible(cached(has)), 16) == three
    assert tokens(KeepsTokens(16, window(32)).possible(cached(has)), 16) == two


def test_the_prefixes_of_the_paper_s_figure_11() -> None:
    """Request A to J; the full layers hold A to I, a window of the last two tokens holds C, D, H, I and J."""
    request = "ABCDEFGHIJ"
    full = KeepsTokens(1).possible([letter in "ABCDEFGHI" for letter in request])
    last_two = KeepsTokens(1, window(3)).possible([letter in "CDHIJ" for letter in request])
    assert [length for lengths in full for length in lengths] == list(range(10))
    assert [request[:length] for lengths in last_two for length in lengths] == ["", "ABCD", "ABCDEFGHI", "ABCDEFGHIJ"]
    assert request[: longest_possible([full, last_two])] == "ABCDEFGHI"


def test_a_state_is_taken_up_exactly_where_there_is_a_checkpoint() -> None:
    """Not before the first one, as the artifact's intervals would have it."""
    assert KeepsState().possible(cached("F2 T F3 T")) == [range(1), range(3, 4), range(7, 8)]


def test_a_stretch_is_needed_from_its_beginning() -> None:
    """Stretches of 8 tokens in blocks of 4: behind 8 or 16 tokens nothing is needed, behind 12 the third block."""
    assert KeepsTokens(4, chunk(8)).possible(cached("F2 T F T")) == [range(1), range(2, 6)]
    keeps = KeepsTokens(4, chunk(8))
    assert [keeps.dead(count) for count in (7, 8, 12, 15, 16)] == [range(n) for n in (0, 2, 2, 2, 4)]


def brute_force_possible(keeps: Keeps, has: Sequence[bool], size: int) -> list[int]:
    """Everything alive behind a length is there."""
    return [
        end for end in range(len(has) + 1) if all(has[place] or place in keeps.dead(end * size) for place in range(end))
    ]


@pytest.mark.parametrize(
    "visibility", [CAUSAL, window(1), window(2), window(5), window(8), chunk(4), chunk(6), chunk(8)]
)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_is_possible_follows_from_what_is_dead(visibility: Visibility, size: int) -> None:
    keeps = KeepsTokens(size, visibility)
    for number in range(1 << 8):
        has = [bool(number >> place & 1) for place in range(8)]
        found = [length for lengths in keeps.possible(has) for length in lengths]
        assert found == brute_force_possible(keeps, has, size), has


@pytest.mark.parametrize("visibility", [CAUSAL, window(1), window(5), window(8), chunk(6), chunk(8)])
def test_the_most_blocks_are_never_exceeded_and_often_reached(visibility: Visibility) -> None:
    size, ahead = 4, 6
    keeps = KeepsTokens(size, visibility)
    for num_tokens in range(1, 60):
        held = [
            sum(place not in keeps.dead(done) for place in range(-(-min(done + ahead, num_tokens) // size)))
            for done in range(num_tokens)
        ]
        assert max(held) <= keeps.most_blocks(num_tokens, ahead) <= max(held) + 1


def test_the_longest_possible_is_that_of_all() -> None:
    assert longest_possible([[range(11)]]) == 10
    assert longest_possible([[range(11)], [range(1), range(4, 8)]]) == 7
    assert (
        longest_possible([[range(7)], [range(1), range(3, 5), range(8, 9)], [range(1), range(3, 4), range(5, 9)]]) == 3
    )
    assert longest_possible([[range(7)], [range(1)]]) == 0
