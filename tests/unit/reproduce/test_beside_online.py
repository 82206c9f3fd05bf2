"""A job beside online traffic from loads alone: nothing is lost, gaps keep their bound, and alone it is a forecast."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

import pytest

from plait.cost.density import Lengths
from plait.reproduce.beside_online import Device, OfflineSide, Rules, Shared, SharedRun
from plait.reproduce.models import LLAMA_8B_ON_A100
from plait.reproduce.offline_jobs import DrawnJob, Mix, draw_job
from plait.sched.blend.feeds import JobOrder, Ordering, feed_over
from plait.sched.blend.forecast import Machine, forecast
from plait.sched.blend.job import OfflineJob
from plait.sim.arrivals import TraceRow

MEMORY, WEIGHTS_S, GAP_S = 15e9, 0.0079, 0.05
MIX = Mix(Lengths(244, 27, 11_200), Lengths(121, 1024, 1.6e6), Lengths(804, 2, shared=695), 600, 3.0, 0.3)


@pytest.fixture(scope="module")
def job() -> DrawnJob:
    return draw_job(LLAMA_8B_ON_A100, MIX)


def arrivals(rate: float, seed: int = 1, until_s: float = 1e9) -> Iterator[TraceRow]:
    dice, at_s = random.Random(seed), 0.0
    while rate and at_s < until_s:
        at_s += dice.expovariate(rate)
        yield TraceRow(at_s, dice.randint(50, 2000), dice.randint(1, 300))


def side(job: DrawnJob, order: JobOrder = JobOrder.BLEND) -> OfflineSide:
    offline = OfflineJob(prompt_tokens=job.prompts, most=array("q", [8192]) * len(job.prompts))
    feed = feed_over(job.tree, offline, Ordering(order, job.lives, MEMORY))
    return OfflineSide(feed, job.tree, job.prompts, job.outputs)


def run(job: DrawnJob, rate: float, rules: Rules, order: JobOrder = JobOrder.BLEND) -> SharedRun:
    device = Device(job.lives, MEMORY, WEIGHTS_S, 2048, 0.3, GAP_S, GAP_S, 2000)
    return Shared(device, arrivals(rate), side(job, order), rules).run()


@pytest.mark.parametrize("order", [JobOrder.DFS, JobOrder.BLEND])
def test_alone_a_job_takes_as_long_as_its_forecast(job: DrawnJob, order: JobOrder) -> None:
    machine = Machine(MEMORY, 2048, 0.3, weights_s=WEIGHTS_S)
    given = side(job, order)
    told = forecast(given.feed, job.tree, job.prompts, job.outputs, job.lives, machine)
    found = run(job, 0.0, Rules(), order)
    assert found.seconds == pytest.approx(told.seconds, rel=0.03)
    assert found.ttft_s is None
    assert not found.retractions


def test_an_idle_ratio_of_nobody_changes_nothing(job: DrawnJob) -> None:
    assert run(job, 0.0, Rules(follows=True)) == run(job, 0.0, Rules())


def test_gaps_of_online_answers_keep_their_bound_where_they_are_guarded(job: DrawnJob) -> None:
    guarded, free = (run(job, 3.0, Rules(guarded=one)).gap_s for one in (True, False))
    assert guarded is not None
    assert free is not None
    assert guarded.longest <= GAP_S + 1e-9
    assert free.longest > 1.5 * GAP_S


def test_more_online_traffic_leaves_less(job: DrawnJob) -> None:
    seconds = [run(job, rate, Rules(follows=True)).seconds for rate in (0.0, 2.0, 5.0)]
    assert seconds == sorted(seconds)
    assert seconds[2] > 1.2 * seconds[0]


def test_equal_seeds_give_equal_runs(job: DrawnJob) -> None:
    assert run(job, 3.0, Rules(follows=True)) == run(job, 3.0, Rules(follows=True))
