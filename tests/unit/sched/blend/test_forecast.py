"""Forecasts: everything is computed and read once, whatever the order, and blending is worth what it should be."""

from __future__ import annotations

import math
from array import array

import pytest
from tests.unit.sched.blend.jobs import mixed_job
from tests.unit.sched.blend.test_feeds import EvenLives

from plait.sched.blend.feeds import JobOrder, Ordering, feed_over
from plait.sched.blend.forecast import Forecast, Machine, forecast
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.memory import MeanMemory
from plait.sched.blend.tree import build_tree, packed

LIVES = EvenLives()
SERIAL = Machine(1e6, 512)


def run(
    prompts: list[tuple[int, ...]], outputs: list[int], order: JobOrder, machine: Machine, *, knows: bool = True
) -> Forecast:
    tree = build_tree([packed(prompt) for prompt in prompts])
    lengths = array("q", map(len, prompts))
    job = OfflineJob(prompt_tokens=lengths, most=array("q", [6000]) * len(prompts))
    job.known = dict(enumerate(outputs)) if knows else {}
    feed = feed_over(tree, job, Ordering(order, LIVES, machine.memory_bytes, seed=1))
    return forecast(feed, tree, lengths, outputs, LIVES, machine)


@pytest.mark.parametrize("order", JobOrder)
@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("memory_bytes", [1e4, 1e6, 1e12])
def test_all_is_computed_and_read_once(order: JobOrder, knows: bool, memory_bytes: float) -> None:
    prompts, outputs = mixed_job(4, 80)
    found = run(prompts, outputs, order, Machine(memory_bytes, 512), knows=knows)
    tokens = sum(map(len, prompts)) + sum(outputs) - found.found_tokens
    assert found.compute_s == pytest.approx(tokens * LIVES.prompt_token_s)
    assert found.memory_s == pytest.approx(math.fsum(map(LIVES.memory_s, map(len, prompts), outputs)))
    # One after the other, no order hides anything.
    assert found.seconds == pytest.approx(found.compute_s + found.memory_s)
    assert found.seconds >= found.optimum_s(0.3) >= found.optimum_s()


def test_a_request_alone_takes_a_step_for_each_token_of_its_answer() -> None:
    found = run([(1,) * 1000], [5], JobOrder.DFS, Machine(1e9, 256, 0.0))
    # The prompt takes four steps; the last of them says the first token.
    assert found.steps == 3 + 5


def test_blending_comes_close_to_the_optimum_where_depth_first_runs_one_after_the_other() -> None:
    prompts = [(0, place) + (7,) * 600 for place in range(2600)] + [(1, place) + (7,) * 50 for place in range(280)]
    outputs = [3] * 2600 + [4000] * 280
    machine = Machine(1.5e7, 2048, 0.0)
    blend, dfs = (run(prompts, outputs, order, machine) for order in (JobOrder.BLEND, JobOrder.DFS))
    assert blend.found_tokens >= 0.97 * dfs.found_tokens
    assert blend.optimum_s() / blend.seconds > 0.75
    assert dfs.seconds / blend.seconds > 1.15


def test_guessed_lengths_are_nearly_as_good_as_known_ones() -> None:
    prompts = [(0, place) + (7,) * 300 for place in range(4000)] + [(1, place) + (7,) * 50 for place in range(200)]
    outputs = [3 if place % 20 else 60 for place in range(4000)] + [1200] * 200
    machine = Machine(3e6, 2048, 0.0)
    known, guessed = (run(prompts, outputs, JobOrder.BLEND, machine, knows=knows) for knows in (True, False))
    assert guessed.seconds < 1.15 * known.seconds


def test_a_beginning_is_found_again_while_it_fits_beside_what_came_since() -> None:
    tree = build_tree([packed(prompt) for prompt in ((1, 2, 3), (1, 2, 4), (5,), (1, 2, 3, 9))])
    cache = MeanMemory(tree, LIVES, 100.0)
    assert cache.found(0, 3, 100.0) == 0
    cache.leave(0, 10.0)
    assert cache.found(1, 3, 100.0) == 2
    cache.leave(1, 10.0)
    cache.leave(2, 50.0)
    # (1, 2, 3) was last used 60 bytes ago, (1, 2) 50 bytes ago.
    assert cache.found(3, 4, 55.0) == 2
    assert cache.found(0, 3, 100.0) == 2


def test_weights_and_overheads_make_steps_longer() -> None:
    prompts, outputs = mixed_job(4, 50)
    bare = run(prompts, outputs, JobOrder.DFS, SERIAL)
    dear = run(prompts, outputs, JobOrder.DFS, Machine(1e6, 512, weights_s=1.0, step_overhead_s=0.5))
    assert dear.steps == bare.steps
    assert dear.seconds > 1.5 * dear.steps
