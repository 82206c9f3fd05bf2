"""Figures, paces and words: numbers that can be worked out by hand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from plait.cli.load.asks import Answer, Ask, deaf
from plait.cli.load.drive import at_times, in_turn
from plait.cli.load.figures import Targets, figures_of, percentile
from plait.cli.load.words import prompt, whole_words
from plait.core.errors import PlaitError


def answer(due_s: float = 0.0, pieces: tuple[float, ...] = (1.0, 1.5, 2.0), **changes: object) -> Answer:
    values: dict[str, object] = {
        "due_s": due_s,
        "end_s": pieces[-1] if pieces else due_s + 9.0,
        "piece_s": pieces,
        "wanted_output": 3,
        "num_output": len(pieces),
        "num_prompt": 10,
        "is_counted": True,
    }
    return Answer(**{**values, **changes})  # type: ignore[arg-type]


def test_an_answers_times_count_from_when_it_was_due() -> None:
    one = answer(due_s=0.4)
    assert (one.ttft_s, one.tpot_s, one.e2e_s) == pytest.approx((0.6, 0.5, 1.6))
    assert one.gaps_s == [0.5, 0.5]
    # Two tokens came in one piece: the mean is by tokens, gaps are between pieces.
    assert answer(num_output=5).tpot_s == pytest.approx(0.25)
    assert answer(pieces=(1.0,)).tpot_s is None


def test_figures_of_a_run() -> None:
    figures = figures_of([answer(), answer(1.0, (2.0, 3.0, 5.0), num_cached=4)])
    assert (figures.seconds, figures.requests_per_s) == (5.0, 0.4)
    assert (figures.prompt_tokens, figures.output_tokens, figures.cached_tokens) == (20, 6, 4)
    assert (figures.prompt_tokens_per_s, figures.output_tokens_per_s) == pytest.approx((4.0, 1.2))
    assert figures.itl is not None
    assert (figures.itl.p50_s, figures.itl.max_s, figures.itl.num_values) == (0.75, 2.0, 4)
    assert figures.ttft is not None
    assert figures.ttft.p99_s == 1.0
    assert figures.goodput_per_s is None


def test_errors_and_short_answers_are_counted_and_errors_are_in_no_other_figure() -> None:
    broken = answer(pieces=(), error="HTTP 500")
    figures = figures_of([answer(), broken, broken, answer(wanted_output=4), answer(is_counted=False)])
    assert (figures.num_requests, figures.num_errors, figures.num_short, figures.num_uncounted) == (5, 2, 1, 1)
    assert figures.errors == {"HTTP 500": 2}
    assert figures.output_tokens == 9
    assert figures.e2e is not None
    assert figures.e2e.num_values == 3


def test_a_run_without_a_good_answer_has_no_latencies() -> None:
    figures = figures_of([answer(pieces=(), error="no")])
    assert (figures.ttft, figures.itl, figures.tpot, figures.e2e) == (None, None, None, None)
    assert figures_of([]).seconds == 0.0


def test_goodput_is_what_kept_every_target() -> None:
    answers = [answer(), answer(0.5), answer(pieces=(0.1, 0.2, 9.0)), answer(pieces=(), error="no")]
    figures = figures_of(answers, Targets(ttft_s=0.6, tpot_s=1.0))
    # The first is late, the third slow, the fourth broken.
    assert (figures.good_fraction, figures.goodput_per_s) == pytest.approx((0.25, 1 / 9.0))
    assert figures_of(answers, Targets()).good_fraction is None
    assert figures_of(answers, Targets(e2e_s=2.0)).good_fraction == 0.5


def test_percentiles_lie_between_values() -> None:
    assert [percentile([4.0, 1.0, 2.0, 3.0], part) for part in (0.0, 0.5, 1.0)] == [1.0, 2.5, 4.0]


class Scripted:
    """A target that notes how many asks are open."""

    def __init__(self) -> None:
        self.num_open = self.most_open = 0
        self.seen: list[str] = []

    async def answer(self, ask: Ask, due_s: float, heard: Callable[[], None] = deaf) -> Answer:
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        self.seen.append(ask.prompt)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.num_open -= 1
        return answer(due_s)


ASKS = [Ask(f"{place}", 3) for place in range(10)]


def test_so_many_at_a_time_and_never_more() -> None:
    target = Scripted()
    answers = asyncio.run(in_turn(target, ASKS, 3))
    assert (len(answers), target.most_open) == (10, 3)
    assert target.seen == [ask.prompt for ask in ASKS]


def test_at_their_times_all_at_once_unless_there_is_a_limit() -> None:
    for concurrency, most in ((None, 10), (2, 2)):
        target = Scripted()
        told: list[Answer] = []
        answers = asyncio.run(at_times(target, ASKS, concurrency, told.append))
        assert (len(answers), len(told), target.most_open) == (10, 10, most)


def test_late_starts_count_against_the_engine() -> None:
    answers = asyncio.run(at_times(Scripted(), [Ask("a", 3), Ask("b", 3, arrival_s=0.05)]))
    assert answers[1].due_s - answers[0].due_s == pytest.approx(0.05)


def test_prompts_are_words_of_one_token_each() -> None:
    words = whole_words(lambda text: [1] if len(text) == 4 else [1, 2])
    assert words
    assert {len(word) for word in words} == {3}
    assert prompt(random.Random(1), words, 7) == prompt(random.Random(1), words, 7)
    assert len(prompt(random.Random(1), words, 7).split()) == 7
    assert len(whole_words(None)) > 500
    with pytest.raises(PlaitError, match="has 0 English words of one token and 50 are needed"):
        whole_words(lambda text: [1, 2])
