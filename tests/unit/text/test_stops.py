"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plait.core.errors import RequestError
from plait.text.stops import StopMatcher


def streamed(chunks: Sequence[str], *stops: str, include: bool = False) -> tuple[list[str], str | None]:
    """What each chunk led to, what the end released, and the stop string that was found."""
    matcher = StopMatcher(stops, include)
    shown = [matcher.push(chunk).text for chunk in chunks]
    last = matcher.finish()
    return [*shown, last.text], last.matched


def naive(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    """The definition: try every end from left to right, and at each the longest stop string."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


def test_text_before_a_stop_string_is_shown_and_nothing_after() -> None:
    assert streamed(["one STOP two", " three"], "STOP") == (["one ", "", ""], "STOP")


def test_a_stop_string_across_chunks_leaks_nothing() -> None:
    assert streamed(["one S", "TO", "P two"], "STOP") == (["one ", "", "", ""], "STOP")


def test_what_only_looked_like_a_stop_string_is_shown_as_soon_as_that_is_known() -> None:
    assert streamed(["S", "T", "A", "R"], "STOP") == (["", "", "STA", "R", ""], None)


def test_held_text_is_released_at_the_end() -> None:
    assert streamed(["one ST"], "STOP") == (["one ", "ST"], None)


def test_text_is_held_no_longer_than_it_could_still_match() -> None:
    assert streamed(["a", "a", "a", "b"], "aab") == (["", "", "a", "", ""], "aab")
    assert streamed(["a", "a", "c"], "aab") == (["", "", "aac", ""], None)


def test_the_stop_string_is_shown_if_asked_for() -> None:
    assert streamed(["one ST", "OP two"], "STOP", include=True) == (["one ", "STOP", ""], "STOP")


def test_the_stop_string_that_ends_first_wins() -> None:
    assert streamed(["abcd"], "abcd", "bc") == (["a", ""], "bc")
    assert streamed(["abcd"], "bcd", "abc") == (["", ""], "abc")


def test_a_stop_string_that_is_the_beginning_of_another_wins() -> None:
    assert streamed(["xabc"], "abc", "ab") == (["x", ""], "ab")


def test_of_two_that_end_together_the_longer_wins() -> None:
    assert streamed(["xabc"], "bc", "abc", "c") == (["x", ""], "abc")
    assert streamed(["xbc"], "bc", "abc") == (["x", ""], "bc")


def test_a_match_inside_an_abandoned_longer_one_is_found() -> None:
    assert streamed(["abcx"], "abcde", "bcx") == (["a", ""], "bcx")


def test_stop_strings_may_hold_anything_but_nothing() -> None:
    assert streamed(["a\n\n🙂b"], "\n\n🙂") == (["a", ""], "\n\n🙂")
    with pytest.raises(RequestError) as refusal:
        StopMatcher(["x", ""])
    assert refusal.value.param == "stop"


def test_without_stop_strings_text_passes_through() -> None:
    assert streamed(["a", "", "b"]) == (["a", "", "b", ""], None)


def test_after_a_match_nothing_is_shown() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("ax").text == "a"
    assert (matcher.push("more").text, matcher.push("x").matched, matcher.matched) == ("", "x", "x")
    assert (matcher.finish().text, matcher.finish().matched) == ("", "x")


TEXT = st.text("ab", max_size=40)


@given(TEXT, st.lists(st.text("ab", min_size=1, max_size=5), max_size=4), st.lists(st.integers(0, 40)), st.booleans())
@example("aaab", ["aab"], [1, 2, 3], False)
@example("abab", ["abb", "bab"], [2], True)
def test_streaming_agrees_with_the_definition(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    chunks = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    shown, matched = streamed(chunks, *stops, include=include)
    assert ("".join(shown), matched) == naive(text, stops, include)


@given(TEXT, st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4))
def test_after_every_character_exactly_the_possible_beginning_is_held(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for end, char in enumerate(text, start=1):
        state = matcher.push(char)
        shown += state.text
        if state.matched is not None:
            return
        seen = text[:end]
        held = max(n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n]))
        assert shown == seen[: end - held]


class CountingMatcher(StopMatcher):
    """Counts how often the automaton is asked for a move."""

    __slots__ = ("num_steps",)

    def __init__(self, stops: Sequence[str]) -> None:
        self.num_steps = 0
        super().__init__(stops)
        self._moves = [CountingMoves(moves, self) for moves in self._moves]


class CountingMoves(dict[str, int]):
    def __init__(self, moves: dict[str, int], matcher: CountingMatcher) -> None:
        super().__init__(moves)
        self._matcher = matcher

    def __contains__(self, char: object) -> bool:
        self._matcher.num_steps += 1
        return super().__contains__(char)


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (["a" * 500 + "b"], "a" * 200_000),
        (["ab" * 250 + "c", "ba" * 250 + "c"], "ab" * 100_000),
        (["a" * n + "b" for n in range(1, 17)], ("a" * 15 + "c") * 12_500),
        (["</answer>"], "</answer" * 25_000),
    ],
)
def test_work_is_linear_in_the_text_even_for_stop_strings_made_to_backtrack(stops: list[str], text: str) -> None:
    matcher = CountingMatcher(stops)
    shown = sum(len(matcher.push(text[start : start + 3]).text) for start in range(0, len(text), 3))
    shown += len(matcher.finish().text)
    assert shown == len(text)
    assert matcher.num_steps <= 2 * len(text)
