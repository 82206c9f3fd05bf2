"""Feeds: every place once, whatever ends when; blend keeps both ends of the job running."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest
from tests.unit.sched.blend.jobs import TOKEN_S, memory_s, mixed_job

from plait.sched.blend.feeds import BlendFeed, Feed, FixedFeed, JobOrder, Ordering, feed_of
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.scanner import End
from plait.sched.blend.tree import packed

BYTES_PER_TOKEN = 100.0


class EvenLives:
    """As `plait.cost.lifetime.LifetimeCost`, of a model of one kind of layer."""

    prompt_token_s = TOKEN_S
    output_token_s = TOKEN_S

    def memory_s(self, prompt: int, output: int) -> float:
        return memory_s(prompt, output)

    def mean_held_bytes(self, prompt: int, output: int) -> float:
        return (prompt + output / 2) * BYTES_PER_TOKEN


def surveyed(seed: int, *, knows: bool = True, num_lines: int = 300) -> tuple[OfflineJob, list[int]]:
    prompts, outputs = mixed_job(seed, num_lines)
    found = OfflineJob()
    for prompt in prompts:
        found.add(packed(prompt), len(prompt), 6000)
    if knows:
        found.known = dict(enumerate(outputs))
    return found, outputs


def ordering(order: JobOrder, memory_bytes: float = 1e6) -> Ordering:
    return Ordering(order, EvenLives(), memory_bytes, seed=3)


def run(feed: Feed, outputs: Mapping[int, int] | list[int], seed: int, slots: int = 40) -> list[int]:
    """Places in the order in which they came; a random one of those that run ends whenever nothing more comes."""
    dice, came, running = random.Random(seed), [], []
    while feed.num_left or running:
        place = feed.next() if len(running) < slots else None
        if place is None:
            assert running, "nothing runs and nothing comes"
            ended = running.pop(dice.randrange(len(running)))
            feed.ended(ended, outputs[ended])
            continue
        came.append(place)
        running.append(place)
    assert feed.next() is None
    return came


@pytest.mark.parametrize("order", JobOrder)
@pytest.mark.parametrize("knows", [False, True])
def test_every_place_comes_once(order: JobOrder, knows: bool) -> None:
    for seed in range(4):
        found, outputs = surveyed(seed, knows=knows)
        came = run(feed_of(found, ordering(order)), outputs, seed)
        assert sorted(came) == list(range(300))
        assert found.prompts == []


@pytest.mark.parametrize("memory_bytes", [1.0, 1e4, 1e12])
def test_no_memory_is_too_small_or_too_large(memory_bytes: float) -> None:
    found, outputs = surveyed(2, knows=False)
    assert sorted(run(feed_of(found, ordering(JobOrder.BLEND, memory_bytes)), outputs, 1)) == list(range(300))


def test_a_sample_runs_first_and_decides_the_rest() -> None:
    found, outputs = surveyed(5, knows=False, num_lines=1000)
    feed = feed_of(found, ordering(JobOrder.BLEND))
    assert isinstance(feed, BlendFeed)
    sample = [feed.next() for _ in range(10)]
    plans = [feed.scanner]
    for place in sample:
        assert place is not None
        feed.ended(place, outputs[place])
        plans.append(feed.scanner)
    # Planned when all but one have ended, for its answer may take long, and once more when it has.
    assert [plans[place] is plans[place + 1] for place in range(10)] == [True] * 8 + [False] * 2
    assert feed.num_left == 990


def test_computing_follows_traffic() -> None:
    found, _ = surveyed(1, num_lines=600)
    feed = feed_of(found, ordering(JobOrder.BLEND, 3e6))
    density = feed.scanner.root_density if isinstance(feed, BlendFeed) else 0.0
    assert feed.compute_s(2.0) == pytest.approx(2 * density)
    feed.spent(5.0, 3.0)
    feed.spent(1.0, 1.0)
    assert feed.compute_s(2.0) == pytest.approx(6 * density - 6.0)
    assert FixedFeed([1]).compute_s(0.0) == math.inf


def test_both_ends_run_at_once() -> None:
    found, outputs = surveyed(1, num_lines=600)
    feed = feed_of(found, ordering(JobOrder.BLEND, 3e6))
    assert isinstance(feed, BlendFeed)
    running = []
    while (place := feed.next()) is not None:
        running.append(place)
    lengths = sorted(outputs[place] for place in running)
    assert lengths[0] <= 2
    assert lengths[-1] >= 4000
    units = [feed.scanner.unit(end) for end in End]
    assert units[0] is not None
    assert units[1] is not None
    assert units[0].density > feed.scanner.root_density > units[1].density


def test_the_memory_of_what_runs_is_bounded() -> None:
    found, outputs = surveyed(1, num_lines=600)
    feed, memory = feed_of(found, ordering(JobOrder.BLEND, 3e6)), 3e6
    running: dict[int, float] = {}
    dice, lives = random.Random(1), EvenLives()
    largest = max(lives.mean_held_bytes(100, output) for output in outputs)
    prompt_tokens = list(found.prompt_tokens)
    while feed.num_left or running:
        place = feed.next()
        if place is not None:
            running[place] = lives.mean_held_bytes(prompt_tokens[place], outputs[place])
            # Each side may exceed its part by the request that filled it.
            assert sum(running.values()) <= memory + 2 * largest
        else:
            ended = dice.choice(list(running))
            del running[ended]
            feed.ended(ended, outputs[ended])


def running_after(ratio: float | None, count: int = 300) -> float:
    """Density of what a blend feed lets run beside others."""
    job, outputs = surveyed(5)
    feed = feed_of(job, ordering(JobOrder.BLEND, 3e6))
    lives, running = EvenLives(), []
    for _ in range(count):
        if ratio is not None:
            feed.beside(ratio)
        place = feed.next()
        if place is None:
            break
        running.append(place)
    prompts = mixed_job(5, 300)[0]
    compute_s = sum((len(prompts[place]) + outputs[place]) * lives.prompt_token_s for place in running)
    return compute_s / sum(lives.memory_s(len(prompts[place]), outputs[place]) for place in running)


def test_beside_nobody_a_job_runs_as_alone() -> None:
    assert running_after(1.0) == running_after(None)


def test_where_computing_is_idle_a_job_computes_more_and_where_memory_is_it_reads_more() -> None:
    computing, alone, reading = running_after(16.0), running_after(1.0), running_after(0.5)
    assert computing > alone > reading


def test_less_memory_for_a_job_lets_less_of_it_run() -> None:
    job, _ = surveyed(5)
    counts = []
    for memory_bytes in (None, 1e6):
        feed = feed_of(job if memory_bytes is None else surveyed(5)[0], ordering(JobOrder.BLEND, 3e6))
        feed.beside(1.0, memory_bytes)
        count = 0
        while feed.next() is not None:
            count += 1
        counts.append(count)
    assert counts[0] > counts[1] > 0
