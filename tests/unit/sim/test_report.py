"""Reports from event streams written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.core.decision import Assign
from plait.core.events import (
    Applied,
    Arrived,
    Collected,
    Emitted,
    Event,
    Finished,
    Preempted,
    Refused,
    Scheduled,
)
from plait.core.ids import LaneId, RequestId, SeqId, StepId
from plait.core.request import FinishReason, ServiceClass
from plait.core.step import SeqResult, SeqStatus, StepResult, StepStatus
from plait.sim.report import Report, ReportBuilder
from plait.sim.samples import Distribution, distribution


def story(
    seq: int,
    *,
    arrival_s: float,
    scheduled_s: float,
    tokens_s: list[float],
    reason: FinishReason = FinishReason.LENGTH,
    num_prompt: int = 10,
    num_cached: int = 0,
) -> list[Event]:
    """A sequence that gets one token at each of `tokens_s` and ends with the last."""
    request, one = RequestId(f"r{seq}"), SeqId(seq)
    end_s = tokens_s[-1] if tokens_s else scheduled_s
    first_s = tokens_s[0] if tokens_s else None
    return [
        Arrived(arrival_s, request, one, ServiceClass.ONLINE, num_prompt),
        Scheduled(scheduled_s, one, num_cached),
        *(Emitted(at_s, one, 1) for at_s in tokens_s),
        Finished(
            end_s, request, one, reason, num_prompt, num_cached, len(tokens_s), 0, arrival_s, scheduled_s, first_s
        ),
    ]


def report_of(events: list[Event]) -> Report:
    builder = ReportBuilder()
    for event in sorted(events, key=lambda event: event.at_s):
        builder(event)
    return builder.report()


def step(start_s: float, end_s: float, num_computed: int) -> Collected:
    one = SeqResult(SeqId(0), SeqStatus.OK, num_computed=num_computed)
    return Collected(end_s, StepResult(StepId(0), LaneId(0), StepStatus.COMPLETED, start_s, end_s, 1, (one,)))


def only(value: float, count: int = 1) -> Distribution:
    return Distribution(count, value, value, value, value, value)


def test_latencies_of_one_request() -> None:
    report = report_of(story(0, arrival_s=1.0, scheduled_s=1.5, tokens_s=[3.0, 4.0, 6.0]))
    assert report.queue_s == only(0.5)
    assert report.ttft_s == only(2.0)
    assert report.tpot_s == only(1.5)
    assert report.e2e_s == only(5.0)
    assert report.itl_s is not None
    assert (report.itl_s.count, report.itl_s.mean, report.itl_s.longest) == (2, 1.5, 2.0)


def test_throughput_counts_from_the_first_arrival_to_the_last_end() -> None:
    events = [
        *story(0, arrival_s=2.0, scheduled_s=2.0, tokens_s=[3.0, 4.0], num_prompt=30, num_cached=20),
        *story(1, arrival_s=4.0, scheduled_s=5.0, tokens_s=[7.0], num_prompt=10, num_cached=0),
        step(2.0, 4.0, 12),
        step(5.0, 5.5, 10),
    ]
    report = report_of(events)
    assert report.makespan_s == 5.0
    assert report.output_tokens_per_s == pytest.approx(3 / 5)
    assert report.total_tokens_per_s == pytest.approx(43 / 5)
    assert report.requests_per_s == pytest.approx(2 / 5)
    assert report.busy_fraction == pytest.approx(2.5 / 5)
    assert report.prefix_hit_fraction == pytest.approx(20 / 40)
    assert (report.num_steps, report.computed_tokens) == (2, 22)


def test_tokens_of_one_step_have_no_gap_between_them() -> None:
    events = story(0, arrival_s=0.0, scheduled_s=0.0, tokens_s=[1.0, 2.0])
    events[3] = Emitted(2.0, SeqId(0), 3)
    report = report_of(events)
    assert report.itl_s is not None
    assert report.itl_s.count == 3
    assert report.itl_s.mean == pytest.approx(1 / 3)


def test_tokens_that_are_told_together_count_as_those_told_one_by_one() -> None:
    """First tokens, equal and unequal gaps, and several tokens of one step."""
    steps = [(1.0, [(0, 1), (1, 1)]), (1.5, [(0, 1), (1, 1), (2, 1)]), (1.75, [(0, 1), (2, 3), (1, 1)])]
    stories = [story(seq, arrival_s=0.5, scheduled_s=0.75, tokens_s=[]) for seq in range(3)]
    told = ReportBuilder(), ReportBuilder()
    for builder in told:
        for arrived, scheduled, _ in stories:
            builder(arrived)
            builder(scheduled)
    for at_s, said in steps:
        told[0].emitted_together(0, at_s, None, [(SeqId(seq), count) for seq, count in said])
        for seq, count in said:
            told[1](Emitted(at_s, SeqId(seq), count))
    for builder in told:
        for *_, finished in stories:
            assert isinstance(finished, Finished)
            builder(replace(finished, at_s=2.0, num_output=3))
    together, one_by_one = (builder.report() for builder in told)
    assert together == one_by_one
    assert together.itl_s is not None
    assert together.itl_s.count == 7
    assert told[0].itl_s.cumulative() == told[1].itl_s.cumulative()


def test_a_single_output_token_has_no_rate() -> None:
    report = report_of(story(0, arrival_s=0.0, scheduled_s=0.0, tokens_s=[1.0]))
    assert report.ttft_s == only(1.0)
    assert report.tpot_s is None
    assert report.itl_s is None


def test_failed_and_refused_requests_are_counted_and_measured_by_nothing() -> None:
    events = [
        *story(0, arrival_s=0.0, scheduled_s=1.0, tokens_s=[], reason=FinishReason.ERROR),
        *story(1, arrival_s=0.0, scheduled_s=1.0, tokens_s=[2.0], reason=FinishReason.ABORT),
        Refused(0.5, RequestId("r9"), "context_length_exceeded", "too long"),
    ]
    report = report_of(events)
    assert (report.num_finished, report.num_failed, report.num_refused) == (0, 2, 1)
    assert report.e2e_s is None
    assert report.tpot_s is None


def test_a_preempted_request_waits_once() -> None:
    events = story(0, arrival_s=0.0, scheduled_s=1.0, tokens_s=[2.0, 9.0])
    events[3:3] = [Preempted(3.0, SeqId(0), 12), Scheduled(6.0, SeqId(0), 8)]
    report = report_of([*events, Applied(4.0, Assign({LaneId(0): (0, 1)}))])
    assert report.queue_s == only(1.0)
    assert report.itl_s == only(7.0)
    assert report.num_preemptions == 1


def test_an_empty_run_has_an_empty_report() -> None:
    report = report_of([])
    assert (report.num_finished, report.makespan_s, report.output_tokens_per_s) == (0, 0.0, 0.0)
    assert report.ttft_s is None
    assert report.lines()[0] == "requests 0 finished, 0 failed, 0 refused in 0.0 s"


def test_the_table_has_a_line_for_each_latency_that_occurred() -> None:
    report = report_of(story(0, arrival_s=1.0, scheduled_s=1.5, tokens_s=[3.0, 4.0, 6.0]))
    assert [line.split()[0] for line in report.lines()] == [
        "requests",
        "tokens",
        "steps",
        "seconds",
        "queue",
        "ttft",
        "itl",
        "tpot",
        "e2e",
    ]
    assert report.lines()[5].split()[1:] == ["2.0000"] * 5


def test_percentiles_lie_linearly_between_samples() -> None:
    found = distribution([float(value) for value in reversed(range(101))])
    assert found == Distribution(101, 50.0, 50.0, 90.0, 99.0, 100.0)
    assert distribution([1.0, 3.0]) == Distribution(2, 2.0, 2.0, 2.8, 2.98, 3.0)
    assert distribution([]) is None
