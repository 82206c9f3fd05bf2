"""The soak: a short one finds nothing, one with something to find finds it, and leaks are told from noise."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.soak import engine_round, plan_round
from tests.soak.questions import answer_alone, draw_questions
from tests.soak.resources import ALLOWED_GROWTH, Reading, growth
from tests.soak.soak import REAL_EVERY, Soak
from tests.soak.subjects import draw_subject
from tests.soak.tally import COUNTED, Tally

SELDOM = ("deadlines", "preemptions")
SLOW_ROUNDS = 4 * REAL_EVERY


def test_a_few_rounds_find_nothing_and_compare_much() -> None:
    soak = Soak(seed=2)
    for _ in range(4):
        soak.round()
    report = soak.report()
    assert report.differences == []
    assert soak.tally.counts["answers compared"] > 200
    assert not [what for what in COUNTED if what not in SELDOM and not soak.tally.counts[what]]


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(900)
def test_many_rounds_find_nothing_and_leak_nothing(model_path: Path) -> None:
    soak = Soak(3, model_path)
    for _ in range(SLOW_ROUNDS):
        soak.round()
    report = soak.report()
    assert report.is_good, report
    assert not [what for what in COUNTED if not soak.tally.counts[what]]


def test_one_log_probability_that_is_the_next_number_is_found() -> None:
    subject, tally = draw_subject(1), Tally()
    stories = plan_round.play(subject, 1, ["baseline"], tally)
    answers = stories[1].answers
    place = next(at for at, one in enumerate(answers) if one.logprob is not None)
    right = answers[place].logprob
    assert right is not None
    wrong = replace(right, logprob=math.nextafter(right.logprob, -math.inf))
    answers[place] = replace(answers[place], logprob=wrong)
    plan_round.compare(replace(subject, exact=None), stories, tally)
    assert len(tally.differences) == 1


def test_a_token_that_is_not_that_of_the_answer_alone_is_found() -> None:
    subject, tally = draw_subject(2, causal=True), Tally()
    questions = draw_questions(np.random.default_rng(1), [range(4, 60)], 2, 20, 8)
    alone = dict(answer_alone(subject, questions))
    load = replace(engine_round.TINY, asks=12)
    engine_round.play(subject, load, questions, alone, 3, tally)
    assert tally.differences == []
    for answer in alone.values():
        answer.tokens[-1] += 1
    engine_round.play(subject, load, questions, alone, 3, tally)
    assert tally.differences


def test_what_grows_from_the_end_of_the_warm_up_on_is_a_leak() -> None:
    def readings(memory: int, descriptors: int = 0, threads: int = 0) -> list[Reading]:
        """So much more each round, behind a warm-up in which everything doubles."""
        first = [Reading(1 << (20 + at // 4), 5, 2) for at in range(20)]
        return first + [Reading((1 << 25) + at * memory, 5 + at * descriptors, 2 + at * threads) for at in range(40)]

    assert growth(readings(0)).leaks() == []
    assert growth(readings(ALLOWED_GROWTH // 100)).leaks() == []
    assert len(growth(readings(ALLOWED_GROWTH // 10)).leaks()) == 1
    assert growth(readings(0, descriptors=1)).leaks() == ["39 file descriptors"]
    assert growth(readings(0, threads=1)).leaks() == ["39 threads"]
