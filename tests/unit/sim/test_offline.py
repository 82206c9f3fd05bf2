"""Offline loads: everything is there from the start, goes in the order of a feed, and is answered once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.sim.kit import SPEC
from tests.unit.sim.test_workload import Listed

from plait.core.errors import UsageError
from plait.core.request import Slo
from plait.sched.blend.feeds import JobOrder
from plait.sim.cluster import ClusterSpec
from plait.sim.form import parse_form
from plait.sim.offline import offline_load
from plait.sim.replica import ReplicaSpec
from plait.sim.traces.request import TraceRequest
from plait.sim.trial import Trial, run_trial
from plait.sim.workload import Pace, Workload, measure


def mixed() -> list[TraceRequest]:
    """Short answers to prompts that share blocks, and a few long ones."""
    found = []
    for place in range(60):
        kind = place * 7 % 60
        shared = TraceRequest(None, 40, 2, blocks=(kind % 5,), block_tokens=32)
        found.append(shared if kind < 50 else TraceRequest(None, 8, 120))
    return found


def run(order: JobOrder, spec: ReplicaSpec = SPEC, form: str = "1") -> Trial:
    source = Listed(mixed())
    cluster = ClusterSpec(spec, parse_form(form))
    workload = Workload(source, measure(source), Pace(1.0))
    return run_trial(cluster, workload, Slo(), load=offline_load(workload, cluster, Slo(), order, 0))


@pytest.mark.parametrize("order", JobOrder)
def test_every_request_is_answered_once(order: JobOrder) -> None:
    trial = run(order)
    assert trial.cluster.whole.num_finished == 60
    assert trial.cluster.whole.output_tokens == 50 * 2 + 10 * 120
    assert run(order).cluster.plan_hash == trial.cluster.plan_hash


def test_orders_differ_in_what_they_find_again() -> None:
    small = replace(SPEC, max_rows=4)
    assert run(JobOrder.DFS, small).cluster.whole.prefix_hit_fraction >= 0.5
    assert run(JobOrder.DFS, small).cluster.plan_hash != run(JobOrder.BLEND, small).cluster.plan_hash


def test_a_job_runs_on_several_replicas_and_on_a_pair() -> None:
    spec = replace(SPEC, hardware=replace(SPEC.hardware, comm_bytes_per_s=1e9))
    for form in ("2", "disagg:1x1"):
        assert run(JobOrder.BLEND, spec, form).cluster.whole.num_finished == 60


def test_who_waits_for_answers_cannot_be_there_from_the_start() -> None:
    source = Listed([TraceRequest(0.0, 8, 2, session="a"), TraceRequest(None, 8, 2, session="a", think_s=1.0)])
    workload = Workload(source, measure(source), Pace())
    with pytest.raises(UsageError, match="wait for answers to others"):
        offline_load(workload, ClusterSpec(SPEC), Slo(), JobOrder.DFS, 0)
