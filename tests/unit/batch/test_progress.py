"""Counting a run: what is known at each moment, and how often it is told."""

from __future__ import annotations

import pytest

from plait.api.answers import Usage
from plait.batch.ledger import Counts
from plait.batch.outcomes import LineOutcome
from plait.batch.progress import BatchProgress, Tally
from plait.core.clock import SimClock

NOTHING = Counts(0, 0, Usage())


class Watched:
    """A tally with its clock and its reports."""

    def __init__(self, total: int, before: Counts = NOTHING) -> None:
        self.clock = SimClock(50.0)
        self.reports: list[BatchProgress] = []
        self.tally = Tally(total, before, self.clock.now, self.reports.append)

    def answer(self, num_tokens: int, limit: int = 20) -> None:
        """A line is answered with so many tokens and is on the disk."""
        line = self.tally.opened(limit)
        self.tally.emitted(line, num_tokens)
        self.tally.closed(line)
        self.tally.recorded([outcome()])

    def pass_time(self, seconds: float) -> None:
        self.clock.wait(until=self.clock.now() + seconds)


def outcome(*, failed: bool = False) -> LineOutcome:
    return LineOutcome(1, "a", "{}", failed, Usage() if failed else Usage(10, 5, 20))


def test_nothing_is_estimated_before_the_first_token() -> None:
    watched = Watched(10)
    watched.pass_time(2)
    watched.tally.opened(20)
    watched.tally.recorded([outcome(failed=True)] * 2)
    now = watched.tally.progress()
    assert (now.lines_left, now.left_s, now.output_tokens) == (8, None, 0)


def test_lines_tokens_speed_and_time_left_are_counted() -> None:
    watched = Watched(10)
    watched.pass_time(2)
    watched.answer(20)
    watched.tally.recorded([outcome(failed=True)])
    assert watched.tally.progress() == BatchProgress(
        lines_total=10,
        lines_done=1,
        lines_failed=1,
        lines_resumed=0,
        prompt_tokens=10,
        cached_tokens=5,
        output_tokens=20,
        elapsed_s=2.0,
        output_tokens_per_s=10.0,
        left_s=8.0,  # eight more lines, of which half are answered with 20 tokens
    )


def test_lines_of_earlier_runs_count_as_lines_and_not_as_speed() -> None:
    watched = Watched(10, before=Counts(done=4, failed=2, usage=Usage(1, 1, 30)))
    watched.pass_time(1)
    watched.answer(20)
    now = watched.tally.progress()
    assert (now.lines_done, now.lines_failed, now.lines_resumed, now.lines_left) == (5, 2, 6, 3)
    assert (now.output_tokens_per_s, now.left_s) == (20.0, pytest.approx(3.0))
    assert watched.tally.usage == Usage(10, 5, 20)


def test_an_open_line_is_judged_by_its_own_limit_and_by_what_others_used_of_theirs() -> None:
    watched = Watched(2)
    watched.pass_time(1)
    watched.answer(10, limit=20)
    long = watched.tally.opened(80)
    assert watched.tally.progress().left_s == pytest.approx(4.0)  # half of 80, at ten tokens a second
    for _ in range(30):
        watched.pass_time(0.1)
        watched.tally.emitted(long, 1)
    assert watched.tally.progress().left_s == pytest.approx(1.0)
    for _ in range(40):
        watched.pass_time(0.1)
        watched.tally.emitted(long, 1)
    left_s = watched.tally.progress().left_s
    assert left_s is not None
    assert 0 < left_s < 1.1, "longer than expected, and still not finished"


def test_short_answers_first_do_not_promise_an_early_end() -> None:
    watched = Watched(8)
    opened = [watched.tally.opened(100) for _ in range(4)]
    watched.pass_time(1)
    for line in opened:
        watched.tally.emitted(line, 4)
    for _ in range(4):
        watched.answer(4, limit=4)
    left_s = watched.tally.progress().left_s
    assert left_s is not None
    assert left_s > 10


def test_embeddings_have_no_output_and_an_end_all_the_same() -> None:
    watched = Watched(100)
    for _ in range(25):
        line = watched.tally.opened(0, 30)
        watched.pass_time(2)
        watched.tally.emitted(line, 0, 30)
        watched.tally.closed(line)
        watched.tally.recorded([outcome()])
    assert watched.tally.progress().left_s == pytest.approx(150.0)


def test_a_finished_job_has_no_time_left() -> None:
    assert Watched(0).tally.progress().left_s == 0.0
    assert Watched(6, before=Counts(done=4, failed=2, usage=Usage(1, 1, 30))).tally.progress().left_s == 0.0


def test_reports_come_at_most_ten_times_a_second_and_on_demand() -> None:
    watched = Watched(10)
    line = watched.tally.opened(100)
    for _ in range(100):
        watched.pass_time(0.01)
        watched.tally.emitted(line, 1)
    assert 8 <= len(watched.reports) <= 10
    told = [report.output_tokens for report in watched.reports]
    assert told == sorted(told)
    watched.tally.report()
    watched.tally.report()
    assert watched.reports[-1].output_tokens == 100


def test_where_a_step_has_room_for_few_of_many_the_rate_says_what_is_left() -> None:
    """Beside other work: for eight steps all ten lines get a token, for twenty-four one of them, while others have the
    device. Neither how long the longest answer is nor what a step can hold bounds what is to come.
    """
    watched = Watched(10)
    lines = [watched.tally.opened(100) for _ in range(10)]
    turn = 0
    for number in range(3 * 32):
        watched.pass_time(0.01)
        for _ in range(10 if number % 32 < 8 else 1):
            watched.tally.emitted(lines[turn % 10], 1)
            turn += 1
    assert turn == 3 * 104
    left_s = watched.tally.progress().left_s
    assert left_s == pytest.approx((1000 - turn) / 104 * 0.32, rel=0.1)


def test_what_a_line_said_before_it_was_given_up_counts_once() -> None:
    watched = Watched(2)
    line = watched.tally.opened(10, 30)
    told = []
    for said in (7, 4, 9):
        for _ in range(said):
            watched.pass_time(0.1)
            watched.tally.emitted(line, 1)
            told.append(watched.tally.progress().output_tokens)
        if said < 9:
            watched.tally.begins_again(line)
    assert told == [1, 2, 3, 4, 5, 6, 7, *[7] * 4, *[7] * 7, 8, 9]
    watched.tally.closed(line)
    assert watched.tally.progress().output_tokens == 9


def test_the_speed_of_a_line_that_began_again_is_that_of_its_tokens() -> None:
    """Ten lines of ten tokens, one of which is asked twice: its work is done twice, and what it says is told once."""
    watched = Watched(10)
    lines = [watched.tally.opened(10) for _ in range(10)]
    for _ in range(5):
        watched.pass_time(0.1)
        watched.tally.emitted(lines[0], 1)
    watched.tally.begins_again(lines[0])
    for line in lines[:5]:
        for _ in range(10):
            watched.pass_time(0.1)
            watched.tally.emitted(line, 1)
        watched.tally.closed(line)
        watched.tally.recorded([outcome()])
    now = watched.tally.progress()
    assert now.output_tokens == 50
    assert now.left_s == pytest.approx(5.0, rel=0.1)
