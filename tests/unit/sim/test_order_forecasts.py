"""Forecasts of orders against the engine in simulated time: what is found again, how many steps, and what `auto` takes.

Jobs are BlendServe's in small, on a device whose steps wait for weights, in memory of two prompts up to all of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

import pytest
from tests.unit.sim.kit import DEVICE, SPEC, TOKEN_BYTES

from plait.core.ids import RequestId
from plait.core.request import Request, ServiceClass
from plait.core.sampling import SamplingParams
from plait.cost.calibrated import cost_model
from plait.model.cost import Formats, Parallel
from plait.sched.blend.choosing import CHOICES, chosen_of
from plait.sched.blend.feeds import JobOrder, Ordering, feed_over
from plait.sched.blend.forecast import Forecast, Machine, forecast
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.prices import priced
from plait.sched.blend.tree import build_tree, packed
from plait.sim.cluster import ClusterSpec, simulate_cluster
from plait.sim.form import parse_form
from plait.sim.offline import OfflineLoad, lives_on
from plait.sim.report import Report

BLOCK, IN_FLIGHT = 16, 128
SPEC_HERE = replace(
    SPEC,
    formats=Formats(default_cache_bytes=2.0),
    hardware=replace(DEVICE, flops_per_s=2e9, bytes_per_s=2e8, step_overhead_s=2e-4),
    max_rows=16,
    tokens_per_block=BLOCK,
    max_step_tokens=128,
)
ORDERS = (JobOrder.INPUT, *CHOICES)
FIXED = [order for order in ORDERS if order is not JobOrder.BLEND]
Requests = tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True)
class Kind:
    """Questions on subjects, among long answers."""

    subjects: int
    stem: int
    own: int
    questions: int
    longs: int
    tokens: int
    seed: int

    def requests(self) -> Requests:
        dice = random.Random(self.seed)

        def text(length: int) -> tuple[int, ...]:
            return tuple(dice.randrange(1000) for _ in range(length))

        stems = [text(self.stem) for _ in range(self.subjects)]
        found = [(dice.choice(stems) + text(self.own), 2) for _ in range(self.questions)]
        found += [(text(12), self.tokens) for _ in range(self.longs)]
        dice.shuffle(found)
        return tuple(found)


QUESTIONS = Kind(subjects=12, stem=100, own=20, questions=150, longs=10, tokens=120, seed=1)
SHORT = Kind(subjects=20, stem=20, own=6, questions=200, longs=5, tokens=60, seed=2)


@cache
def both(kind: Kind, memory_tokens: int, order: JobOrder) -> tuple[Report, Forecast]:
    """The engine in simulated time, and the forecast, with lengths that are known."""
    requests = kind.requests()
    spec = replace(SPEC_HERE, cache_bytes=memory_tokens * TOKEN_BYTES)
    lives = lives_on(spec.hardware, spec.program, spec.formats)
    ordering = Ordering(order, lives, spec.cache_bytes, ahead=4, holds_once=True)
    job = OfflineJob()
    for prompt, output in requests:
        job.known[job.add(packed(prompt), len(prompt), output)] = output
    tree = build_tree(job.prompts)
    machine = Machine(
        spec.cache_bytes,
        spec.max_step_tokens,
        rows=spec.max_rows,
        tells=False,
        step_overhead_s=spec.hardware.step_overhead_s,
        block_tokens=BLOCK,
        in_flight=IN_FLIGHT,
    )
    cost = cost_model(spec.program, spec.formats, spec.hardware, Parallel(1))
    machine = priced(machine, cost, spec.hardware.share_units, lives)
    outputs = [output for _, output in requests]
    told = forecast(feed_over(tree, job, ordering), tree, job.prompt_tokens, outputs, lives, machine)
    asked = [
        Request(
            RequestId(str(place)),
            prompt,
            SamplingParams(max_tokens=output, ignore_eos=True),
            # As lines of batches are.
            service_class=ServiceClass.BATCH,
        )
        for place, (prompt, output) in enumerate(requests)
    ]
    load = OfflineLoad(asked, ordering, job, IN_FLIGHT)
    return simulate_cluster(load, ClusterSpec(spec, parse_form("1"))).whole, told


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("kind", "memory_tokens"), [(QUESTIONS, 300), (QUESTIONS, 8000), (SHORT, 300)])
def test_a_forecast_counts_as_the_engine_does(kind: Kind, memory_tokens: int, order: JobOrder) -> None:
    real, told = both(kind, memory_tokens, order)
    asked = sum(len(prompt) for prompt, _ in kind.requests())
    assert told.found_tokens / asked == pytest.approx(real.prefix_hit_fraction, abs=0.05)
    assert told.steps == pytest.approx(real.num_steps, rel=0.2)
    assert told.seconds == pytest.approx(real.makespan_s, rel=0.2)


@pytest.mark.parametrize("kind", [QUESTIONS, SHORT])
@pytest.mark.parametrize("memory_tokens", [300, 800, 8000])
def test_auto_takes_no_longer_than_the_best_fixed_order(kind: Kind, memory_tokens: int) -> None:
    runs = {order: both(kind, memory_tokens, order) for order in ORDERS}
    chosen = chosen_of({order: told.seconds for order, (_, told) in runs.items()})
    best_s = min(runs[order][0].makespan_s for order in FIXED)
    assert best_s / runs[chosen][0].makespan_s >= 0.98
    # Which is worth something.
    assert runs[chosen][0].num_steps <= runs[JobOrder.INPUT][0].num_steps


def test_equal_short_prompts_are_found_in_whole_blocks() -> None:
    """Of 20 common tokens those of one block of 16, as far as nobody filled the next one."""
    real, told = both(SHORT, 8000, JobOrder.DFS)
    asked = sum(len(prompt) for prompt, _ in SHORT.requests())
    assert told.found_tokens / asked == pytest.approx(real.prefix_hit_fraction, abs=1e-3)
    assert told.found_tokens == BLOCK * (SHORT.questions - SHORT.subjects)
