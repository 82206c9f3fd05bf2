"""Offline work beside bursts of online requests in tight memory: all is answered, and nobody is retracted for ever."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import ceil

import pytest
from tests.properties.engine_load import VOCAB, spec
from tests.unit.sched.blend.test_feeds import EvenLives

from plait.core.events import Event, Finished, Preempted
from plait.core.ids import RequestId
from plait.core.request import Request, ServiceClass, Slo
from plait.core.sampling import SamplingParams
from plait.model.cost import Formats
from plait.sched.blend.feeds import JobOrder, Ordering
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.tree import packed
from plait.sched.waiting import OFTEN
from plait.sim.arrivals import Arrival
from plait.sim.beside import BesideLoad, ByClass
from plait.sim.cluster import ClusterReport, ClusterSpec, simulate_cluster
from plait.sim.driver import simulate
from plait.sim.offline import OfflineLoad
from plait.sim.prompts import made_up_prompt
from plait.sim.replica import ReplicaSpec, replica
from plait.sim.report import Outcome, Report

NUM_OFFLINE = 60


def bursts(seed: int, num_bursts: int, slo: Slo) -> Iterator[Arrival]:
    """A job that is there from the start, and bursts of online requests that want most of the memory."""
    rng = random.Random(seed)
    for number in range(NUM_OFFLINE):
        prompt = tuple(rng.choices(range(VOCAB), k=rng.randint(5, 120)))
        sampling = SamplingParams(max_tokens=rng.choice((1, 20, 200)), ignore_eos=True)
        yield Arrival(0.0, Request(RequestId(f"job-{number}"), prompt, sampling, service_class=ServiceClass.BATCH))
    at_s = 0.0
    for burst in range(num_bursts):
        at_s += rng.expovariate(0.2)
        for number in range(rng.randint(1, 5)):
            prompt = tuple(rng.choices(range(VOCAB), k=rng.randint(50, 250)))
            sampling = SamplingParams(max_tokens=rng.randint(1, 60), ignore_eos=True)
            yield Arrival(at_s, Request(RequestId(f"burst-{burst}-{number}"), prompt, sampling, slo=slo))


def played(seed: int, made: ReplicaSpec, slo: Slo) -> list[Event]:
    events: list[Event] = []
    report = simulate(bursts(seed, 12, slo), replica(made), events.append)
    assert not report.num_failed
    assert not report.num_refused
    return events


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("slo", [Slo(), Slo(ttft_s=1.0, itl_s=0.3)], ids=["share", "targets"])
def test_nobody_is_retracted_for_ever(seed: int, slo: Slo) -> None:
    """Between two bursts whoever was retracted often keeps what he has."""
    events = played(seed, spec(cache_tokens=1024, max_rows=12), slo)
    finished = {event.seq: event for event in events if isinstance(event, Finished)}
    assert len(finished) == NUM_OFFLINE + sum(event.request.startswith("burst") for event in finished.values())
    retracted = Counter(event.seq for event in events if isinstance(event, Preempted))
    offline = {seq for seq, event in finished.items() if event.request.startswith("job")}
    assert retracted, "a load without trouble"
    assert set(retracted) <= offline
    bursts_seen = len({event.arrival_s for event in finished.values() if event.request.startswith("burst")})
    assert max(retracted.values()) <= OFTEN + bursts_seen


def test_equal_loads_give_equal_runs() -> None:
    made = replace(spec(cache_tokens=1024, max_rows=12), seed=4)
    first, again = (played(5, made, Slo()) for _ in range(2))
    assert [repr(event) for event in first] == [repr(event) for event in again]


def online(rate: float, seed: int) -> Iterator[Arrival]:
    rng, at_s = random.Random(seed), 0.0
    for number in count():
        prompt = made_up_prompt(number, 64, VOCAB)
        sampling = SamplingParams(max_tokens=32, ignore_eos=True)
        yield Arrival(at_s, Request(RequestId(f"online-{number}"), prompt, sampling, cache_prefix=False))
        at_s += rng.expovariate(rate)


def a_job(num_lines: int) -> OfflineLoad:
    requests = [
        Request(
            RequestId(f"job-{number}"),
            made_up_prompt(10**6 + number, 40, VOCAB),
            SamplingParams(max_tokens=48, ignore_eos=True),
            service_class=ServiceClass.BATCH,
            cache_prefix=False,
        )
        for number in range(num_lines)
    ]
    job = OfflineJob()
    for request in requests:
        job.add(packed(request.prompt), len(request.prompt), 48)
    return OfflineLoad(requests, Ordering(JobOrder.INPUT, EvenLives(), 1e9), job, 128)


SLOW = spec(cache_tokens=16_384, max_rows=64)
QUICK = replace(
    SLOW,
    formats=Formats(default_weight_bytes=0.72, default_cache_bytes=2.0),
    hardware=replace(
        SLOW.hardware, flops_per_s=2 * SLOW.hardware.flops_per_s, bytes_per_s=2 * SLOW.hardware.bytes_per_s
    ),
)
"""Steps of a few rows take 4 ms, as on two cores of today with weights of 4 bits."""


def beside(
    rate: float, job: OfflineLoad | None, until_s: float, on: ReplicaSpec = SLOW
) -> tuple[ClusterReport, dict[str, Outcome], Report]:
    outcomes: dict[str, Outcome] = {}
    by_class = ByClass()
    report = simulate_cluster(
        BesideLoad(online(rate, 1), job, until_s),
        ClusterSpec(on, macro_steps=False),
        lambda station, event: by_class(event),
        lambda outcome: outcomes.__setitem__(outcome.request, outcome),
    )
    return report, outcomes, by_class.report(ServiceClass.BATCH)


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[ceil(part * len(values)) - 1]


def test_half_a_machine_is_harvested_and_nobody_online_notices() -> None:
    """On two simulated cores, without targets. The job's bound: its rate alone, in the time that is idle."""
    until_s = 40.0
    _, _, solo = beside(1.0, a_job(150), 0.0)
    report, alone, _ = beside(3.0, None, until_s)
    bound = solo.output_tokens_per_s * (1 - report.whole.busy_fraction)
    _, shared, job = beside(3.0, a_job(round(bound * until_s / 48)), until_s)
    common = [name for name in alone if name in shared and alone[name].arrival_s < job.makespan_s]
    assert len(common) > 80
    times = [[of[name].end_s - of[name].arrival_s for name in common] for of in (alone, shared)]
    half, most = ([percentile(one, part) for one in times] for part in (0.5, 0.99))
    assert half[1] <= 1.05 * half[0]
    assert most[1] <= 1.2 * most[0]
    assert job.output_tokens_per_s >= 0.6 * bound


def test_few_more_online_requests_are_late_beside_a_batch() -> None:
    """By the targets of `bench/colocation.py`: twice the median of online alone, of first tokens and of mean gaps. With
    offline steps of 25 ms, four in a hundred more were late.
    """
    until_s = 60.0
    _, alone, _ = beside(5.0, None, until_s, QUICK)
    _, shared, job = beside(5.0, a_job(400), until_s, QUICK)
    times = [
        [(of[name].ttft_s or 0.0, of[name].tpot_s or 0.0) for name in alone if alone[name].arrival_s < job.makespan_s]
        for of in (alone, shared)
    ]
    first_s, gap_s = (2 * percentile([one[place] for one in times[0]], 0.5) for place in range(2))
    late = [sum(first > first_s or gap > gap_s for first, gap in one) / len(one) for one in times]
    assert len(times[0]) > 250
    assert late[1] <= late[0] + 0.015
