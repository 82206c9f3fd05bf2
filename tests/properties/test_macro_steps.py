"""Runs of steps planned at once are what the same steps planned one by one would be (docs/adr/0013)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.properties.engine_load import arrivals, spec

from plait.core.events import Arrived, Collected, Event, Finished, Preempted, Refused, Scheduled, Submitted
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.sim.arrivals import Arrival
from plait.sim.cluster import ClusterReport, ClusterSpec, simulate_cluster
from plait.sim.form import Form, Routing
from plait.sim.replica import ReplicaSpec
from plait.sim.report import Outcome

Told = tuple[int, Event]


class Ran:
    """A simulation with all that was told of it."""

    def __init__(self, load: Sequence[Arrival], made: ClusterSpec) -> None:
        self.outcomes: list[Outcome] = []
        self.events: list[Told] = []
        self.report: ClusterReport = simulate_cluster(
            load, made, lambda engine, event: self.events.append((engine, event)), self.outcomes.append
        )

    def of(self, *kinds: type) -> list[Told]:
        return [(engine, event) for engine, event in self.events if isinstance(event, kinds)]

    @property
    def num_plans(self) -> int:
        return len(self.of(Submitted))

    def step_ends(self) -> list[tuple[int, float]]:
        """When each step ended, runs taken apart."""
        return [
            (engine, end_s)
            for engine, event in self.events
            if isinstance(event, Collected)
            for end_s in event.result.ends_s or (event.result.end_s,)
        ]


def assert_equal(load: Sequence[Arrival], made: ClusterSpec) -> tuple[Ran, Ran]:
    """All that anybody can see of both forms; returns (runs, single)."""
    runs, single = Ran(load, made), Ran(load, replace(made, macro_steps=False))
    assert runs.report.plan_hash == single.report.plan_hash
    assert runs.outcomes == single.outcomes
    kinds = (Arrived, Scheduled, Preempted, Refused, Finished)
    assert runs.of(*kinds) == single.of(*kinds)
    assert sorted(runs.step_ends()) == sorted(single.step_ends())
    mine, theirs = runs.report.whole, single.report.whole
    assert mine.itl_s is not None
    assert theirs.itl_s is not None
    assert math.isclose(mine.itl_s.mean, theirs.itl_s.mean, rel_tol=1e-12)
    assert math.isclose(mine.busy_fraction, theirs.busy_fraction, rel_tol=1e-12)
    exact_itl = replace(mine.itl_s, mean=theirs.itl_s.mean)
    assert replace(mine, itl_s=exact_itl, busy_fraction=theirs.busy_fraction) == theirs
    for one, other in zip(runs.report.engines, single.report.engines, strict=True):
        assert (one.num_steps, one.plan_hash, one.computed_tokens) == (
            other.num_steps,
            other.plan_hash,
            other.computed_tokens,
        )
    return runs, single


def ignoring_ends(load: Sequence[Arrival], seed: int) -> list[Arrival]:
    """Requests of which some may be ended by a token, so that they hinder runs."""
    rng = random.Random(seed)
    return [
        replace(
            one, request=replace(one.request, sampling=replace(one.request.sampling, ignore_eos=rng.random() < 0.9))
        )
        for one in load
    ]


def mixed(*, cache_tokens: int, max_rows: int = 32) -> ReplicaSpec:
    """Both classes in every step, so that there are runs of both together."""
    return replace(spec(cache_tokens=cache_tokens, max_rows=max_rows), colocation=None)


@pytest.mark.parametrize("seed", range(3))
def test_runs_of_either_class_change_nothing_for_the_other(seed: int) -> None:
    """Together they have no runs; alone they have, and what is learned of them is the same."""
    load = list(arrivals(40, seed + 20, requests_per_s=0.3))
    runs, single = assert_equal(load, ClusterSpec(spec(cache_tokens=2048)))
    assert runs.num_plans < single.num_plans


@pytest.mark.parametrize("seed", range(6))
def test_runs_change_nothing_whatever_is_short(seed: int) -> None:
    """Memory and rows end now and then; prefixes, tenants, choices and priorities are mixed."""
    made = mixed(cache_tokens=random.Random(seed).choice((1024, 4096, 16384)), max_rows=(8, 32)[seed % 2])
    load = ignoring_ends(list(arrivals(60, seed, requests_per_s=(0.5, 6.0, 30.0)[seed % 3])), seed)
    runs, single = assert_equal(load, ClusterSpec(made))
    assert runs.num_plans < single.num_plans


@pytest.mark.parametrize("routing", Routing)
def test_runs_change_nothing_for_several_engines(routing: Routing) -> None:
    load = list(arrivals(80, 11, requests_per_s=4.0))
    runs, single = assert_equal(load, ClusterSpec(mixed(cache_tokens=2048), Form(3), routing))
    assert runs.num_plans < single.num_plans


@pytest.mark.parametrize("form", [Form(1, 1), Form(2, 2)])
def test_runs_change_nothing_where_requests_are_handed_over(form: Form) -> None:
    load = [replace(one, request=replace(one.request, n=1)) for one in arrivals(80, 12, requests_per_s=4.0)]
    made = ClusterSpec(mixed(cache_tokens=2048), form, link_bytes_per_s=1e8)
    runs, single = assert_equal(load, made)
    assert runs.num_plans < single.num_plans


def test_few_plans_stand_for_long_answers() -> None:
    load = [
        Arrival(0.0, Request(RequestId(f"r{n}"), (n, 1, 2), SamplingParams(max_tokens=500, ignore_eos=True)))
        for n in range(8)
    ]
    runs, single = assert_equal(load, ClusterSpec(spec(cache_tokens=8192)))
    assert single.num_plans == 500
    assert runs.num_plans == 2


@pytest.mark.parametrize("num_steps", [40, 500])
def test_the_memory_of_a_run_is_that_of_its_steps_and_not_of_its_end(num_steps: int) -> None:
    """One at a time asks for its blocks as it fills them; a run has them all from its beginning."""
    load = [
        Arrival(0.0, Request(RequestId(f"r{n}"), (n, *range(n)), SamplingParams(max_tokens=num_steps, ignore_eos=True)))
        for n in range(8)
    ]
    runs, single = assert_equal(load, ClusterSpec(spec(cache_tokens=8192)))
    mine, theirs = runs.report.engines[0].memory, single.report.engines[0].memory
    assert runs.num_plans < 10
    assert math.isclose(mine.used_fraction, theirs.used_fraction, rel_tol=0.03)
    assert math.isclose(mine.waste_fraction, theirs.waste_fraction, rel_tol=0.06)
    assert theirs.waste_fraction < 32 / num_steps, "about half a block of each sequence"


@pytest.mark.parametrize("num_blocks", [13, 14, 16])
def test_a_step_that_cannot_have_all_of_its_blocks_is_granted_none_before(num_blocks: int) -> None:
    """Three sequences ask in the same steps, and in one of these there is a block for the first of them only."""
    load = [
        Arrival(0.0, Request(RequestId(f"r{n}"), (n, *range(1, 31)), SamplingParams(max_tokens=300, ignore_eos=True)))
        for n in range(3)
    ]
    runs, single = assert_equal(load, ClusterSpec(spec(cache_tokens=32 * num_blocks)))
    assert single.of(Preempted)
    assert runs.num_plans < single.num_plans
