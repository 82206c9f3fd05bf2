"""The real engine, scheduler and memory under a simulated clock and device."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from tests.unit.sim.kit import DEVICE, SPEC, TINY, TOKEN_BYTES, VOCAB, plans

from plait.core.errors import InvariantError
from plait.core.events import Event, Finished, Refused
from plait.core.ids import RequestId
from plait.core.plan_hash import plan_hash
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.core.step import ChunkShape, StepShape
from plait.cost.roofline import RooflineModel
from plait.model.cache_layout import plan_layout
from plait.model.cache_type import CacheType
from plait.model.cost import Formats
from plait.sim.arrivals import Arrival, Lengths, TraceRow, arrivals_of, poisson_trace
from plait.sim.driver import simulate
from plait.sim.load import TraceLoad
from plait.sim.replica import ReplicaSpec, replica
from plait.sim.report import Report

MODEL = RooflineModel(TINY, Formats(), DEVICE)


def run(rows: list[TraceRow], spec: ReplicaSpec = SPEC) -> tuple[Report, list[Event]]:
    events: list[Event] = []
    report = simulate(arrivals_of(rows, VOCAB), replica(spec), events.append)
    return report, events


def seconds(start: int, num_tokens: int, num_outputs: int) -> float:
    return MODEL.price(StepShape((ChunkShape(start, num_tokens, num_outputs),)), 4).expected_s


def test_one_request_takes_exactly_the_price_of_its_steps() -> None:
    report, events = run([TraceRow(5.0, 100, 3)])
    steps = [seconds(0, 64, 0), seconds(64, 36, 1), seconds(100, 1, 1), seconds(101, 1, 1)]
    assert [plan.shape() for plan in plans(events)] == [
        StepShape((ChunkShape(0, 64, 0),)),
        StepShape((ChunkShape(64, 36, 1),)),
        StepShape((ChunkShape(100, 1, 1),)),
        StepShape((ChunkShape(101, 1, 1),)),
    ]
    assert report.queue_s is not None
    assert report.ttft_s is not None
    assert report.tpot_s is not None
    assert report.queue_s.mean == 0.0
    assert report.ttft_s.mean == pytest.approx(steps[0] + steps[1])
    assert report.tpot_s.mean == pytest.approx((steps[2] + steps[3]) / 2)
    assert report.makespan_s == pytest.approx(sum(steps))
    assert report.busy_fraction == pytest.approx(1.0)


def test_a_request_that_arrives_during_a_step_waits_for_its_end() -> None:
    step_s = seconds(0, 64, 1)
    report, events = run([TraceRow(0.0, 64, 1), TraceRow(step_s / 4, 10, 1)])
    assert report.queue_s is not None
    assert report.ttft_s is not None
    assert report.queue_s.longest == 0.0, "its step is planned at once, behind the one that runs"
    assert report.ttft_s.mean == pytest.approx((step_s + step_s * 3 / 4 + seconds(0, 10, 1)) / 2)
    assert len(plans(events)) == 2


def test_a_request_that_arrives_behind_two_steps_waits_for_the_first_to_be_planned_and_both_to_run() -> None:
    first_s, decode_s = seconds(0, 64, 1), seconds(64, 1, 1)
    report, events = run([TraceRow(0.0, 64, 2), TraceRow(first_s / 4, 10, 1)])
    assert report.queue_s is not None
    assert report.ttft_s is not None
    assert report.queue_s.longest == pytest.approx(first_s * 3 / 4)
    assert report.ttft_s.mean == pytest.approx((first_s + first_s * 3 / 4 + decode_s + seconds(0, 10, 1)) / 2)
    assert [len(plan.chunks) for plan in plans(events)] == [1, 1, 1]


def test_every_request_gets_its_tokens_and_the_run_ends() -> None:
    rows = poisson_trace(200.0, 200, Lengths(60, 0.8, 500), Lengths(20, 0.7, 100), seed=1)
    report, _ = run(rows)
    assert (report.num_finished, report.num_failed, report.num_refused) == (200, 0, 0)
    assert report.prompt_tokens == sum(row.num_prompt for row in rows)
    assert report.output_tokens == sum(row.num_output for row in rows)
    # The last token of an answer is never computed; nothing else is saved or repeated here.
    assert report.computed_tokens == report.prompt_tokens + report.output_tokens - 200
    assert report.makespan_s > rows[-1].at_s - rows[0].at_s


def test_a_step_of_many_days_is_slow_and_no_hang() -> None:
    slow = replace(SPEC, hardware=replace(DEVICE, flops_per_s=10.0))
    report, _ = run([TraceRow(0.0, 64, 2)], slow)
    assert report.num_finished == 1
    assert report.makespan_s > 86400


def test_equal_traces_give_equal_plans() -> None:
    rows = poisson_trace(300.0, 60, Lengths(80, 0.8, 500), Lengths(20, 0.7, 100), seed=2)
    assert plan_hash(plans(run(rows)[1])) == plan_hash(plans(run(rows)[1]))


def test_little_memory_makes_requests_wait_and_none_fail() -> None:
    rows = [TraceRow(0.0, 200, 150) for _ in range(12)]
    roomy, _ = run(rows)
    tight, _ = run(rows, replace(SPEC, cache_bytes=1200 * TOKEN_BYTES))
    assert tight.num_finished == roomy.num_finished == 12
    assert tight.num_preemptions > 0
    assert tight.makespan_s > roomy.makespan_s * 1.2


def test_a_shared_prefix_is_computed_once() -> None:
    prompt = tuple(range(128))
    shared = [
        Arrival(float(place), Request(RequestId(f"r{place}"), (*prompt, place), SamplingParams(seed=0, max_tokens=1)))
        for place in range(3)
    ]
    report = simulate(shared, replica(SPEC))
    assert report.prefix_hit_fraction == pytest.approx(2 * 128 / (3 * 129))
    apart = simulate(shared, replica(replace(SPEC, enable_prefix=False)))
    assert apart.prefix_hit_fraction == 0.0
    assert apart.computed_tokens - report.computed_tokens == 2 * 128


def test_a_request_that_can_never_be_served_is_refused_and_the_rest_goes_on() -> None:
    report, events = run([TraceRow(0.0, 9000, 1), TraceRow(1.0, 10, 2)])
    assert (report.num_finished, report.num_refused) == (1, 1)
    (refusal,) = [event for event in events if isinstance(event, Refused)]
    assert refusal.at_s == 0.0


def test_a_request_with_several_choices_is_answered_when_all_are() -> None:
    request = Request(RequestId("r"), (1, 2, 3), SamplingParams(seed=0, max_tokens=2), n=3)
    events: list[Event] = []
    report = simulate([Arrival(0.0, request)], replica(SPEC), events.append)
    assert report.num_finished == 3
    assert sum(isinstance(event, Finished) for event in events) == 3


def test_no_arrivals_end_at_once() -> None:
    assert run([])[0].makespan_s == 0.0


def test_a_faster_device_is_faster() -> None:
    rows = poisson_trace(300.0, 40, Lengths(80, 0.8, 500), Lengths(20, 0.7, 100), seed=3)
    fast = replace(DEVICE, flops_per_s=4e9, bytes_per_s=4e9)
    assert run(rows, replace(SPEC, hardware=fast))[0].makespan_s < run(rows)[0].makespan_s


def test_cache_memory_is_used_as_laid_out() -> None:
    layout = plan_layout(TINY, memory_bytes=SPEC.cache_bytes, tokens_per_block=32, cache_type=CacheType.F16)
    assert layout.pool_bytes == SPEC.cache_bytes


def test_arrivals_that_go_back_in_time_are_our_bug() -> None:
    request = Request(RequestId("r"), (1,))
    load = TraceLoad([Arrival(2.0, request), Arrival(1.0, request)])
    with pytest.raises(InvariantError, match="arrives before r"):
        load.take()


def test_simulation_needs_neither_numpy_nor_torch() -> None:
    modules = "plait.sim.arrivals, plait.sim.driver, plait.sim.replica, plait.sim.report"
    heavy = "{'numpy', 'torch', 'pydantic', 'jinja2', 'tokenizers', 'yaml', 'orjson', 'plait._native'}"
    code = f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
