"""Counting a run: what is known at each moment, and how often it is told."""

from __future__ import annotations

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

    def pass_time(self, seconds: float) -> None:
        self.clock.wait(until=self.clock.now() + seconds)


def outcome(*, failed: bool = False) -> LineOutcome:
    return LineOutcome(1, "a", "{}", failed, Usage() if failed else Usage(10, 5, 20))


def test_nothing_is_estimated_before_the_first_answer() -> None:
    watched = Watched(10)
    watched.pass_time(2)
    watched.tally.emitted(8)
    watched.tally.recorded([outcome(failed=True)] * 2)
    now = watched.tally.progress()
    assert (now.lines_left, now.left_s, now.output_tokens, now.output_tokens_per_s) == (8, None, 8, 4.0)


def test_lines_tokens_speed_and_time_left_are_counted() -> None:
    watched = Watched(10)
    watched.pass_time(4)
    watched.tally.emitted(40)
    watched.tally.recorded([outcome(), outcome(failed=True)])
    assert watched.tally.progress() == BatchProgress(
        lines_total=10,
        lines_done=1,
        lines_failed=1,
        lines_resumed=0,
        prompt_tokens=10,
        cached_tokens=5,
        output_tokens=40,
        elapsed_s=4.0,
        output_tokens_per_s=10.0,
        left_s=14.0,
    )


def test_lines_of_earlier_runs_count_as_lines_and_not_as_speed() -> None:
    watched = Watched(10, before=Counts(done=4, failed=2, usage=Usage(1, 1, 30)))
    watched.pass_time(1)
    watched.tally.emitted(20)
    watched.tally.recorded([outcome()])
    now = watched.tally.progress()
    assert (now.lines_done, now.lines_failed, now.lines_resumed, now.lines_left) == (5, 2, 6, 3)
    assert (now.output_tokens_per_s, now.left_s) == (20.0, 1.5)
    assert watched.tally.usage == Usage(10, 5, 20)


def test_what_open_lines_have_already_said_is_not_waited_for_again() -> None:
    watched = Watched(3)
    watched.pass_time(1)
    watched.tally.emitted(20)
    watched.tally.recorded([outcome()])
    watched.pass_time(1)
    watched.tally.emitted(20)
    assert watched.tally.progress().left_s == 1.0
    watched.tally.emitted(100)
    assert watched.tally.progress().left_s == 0.0


def test_a_finished_job_has_no_time_left() -> None:
    assert Watched(0).tally.progress().left_s == 0.0
    assert Watched(6, before=Counts(done=4, failed=2, usage=Usage(1, 1, 30))).tally.progress().left_s == 0.0


def test_reports_come_at_most_ten_times_a_second_and_on_demand() -> None:
    watched = Watched(10)
    for _ in range(100):
        watched.pass_time(0.01)
        watched.tally.emitted(1)
    assert 8 <= len(watched.reports) <= 10
    told = [report.output_tokens for report in watched.reports]
    assert told == sorted(told)
    watched.tally.report()
    watched.tally.report()
    assert watched.reports[-1].output_tokens == 100
