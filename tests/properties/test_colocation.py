"""Offline work beside bursts of online requests in tight memory: all is answered, and nobody is retracted for ever."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.properties.engine_load import VOCAB, spec

from plait.core.events import Event, Finished, Preempted
from plait.core.ids import RequestId
from plait.core.request import Request, ServiceClass, Slo
from plait.core.sampling import SamplingParams
from plait.sched.waiting import OFTEN
from plait.sim.arrivals import Arrival
from plait.sim.driver import simulate
from plait.sim.replica import ReplicaSpec, replica

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
