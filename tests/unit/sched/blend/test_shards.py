"""Shards: every request in one, each with its share of both resources, and what begins alike together."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from tests.unit.sched.blend.jobs import mixed_job
from tests.unit.sched.blend.test_feeds import EvenLives

from plait.core.errors import UsageError
from plait.sched.blend.feeds import JobOrder, Ordering, feed_over, outlook
from plait.sched.blend.forecast import Machine, forecast
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.shards import shards_of
from plait.sched.blend.tree import build_tree, packed

LIVES = EvenLives()


def job_of(prompts: list[tuple[int, ...]], outputs: list[int]) -> OfflineJob:
    job = OfflineJob()
    for prompt, output in zip(prompts, outputs, strict=True):
        job.known[job.add(packed(prompt), len(prompt), output)] = output
    return job


def large_job() -> OfflineJob:
    """Questions on 200 subjects, shuffled among long answers: as dense as BlendServe's in small."""
    dice = random.Random(2)

    def text(length: int) -> tuple[int, ...]:
        return tuple(dice.randrange(1000) for _ in range(length))

    stems = [text(300) for _ in range(200)]
    requests = [(dice.choice(stems) + text(40), 2) for _ in range(1600)]
    requests += [(text(30), dice.randrange(200, 3000)) for _ in range(90)]
    dice.shuffle(requests)
    return job_of([prompt for prompt, _ in requests], [output for _, output in requests])


def only(job: OfflineJob, places: list[int]) -> OfflineJob:
    found = OfflineJob()
    for place in places:
        found.take_over(job, place)
    return found


@dataclass(frozen=True)
class Load:
    compute_s: float
    memory_s: float
    found: int
    seconds: float


def load_of(job: OfflineJob) -> Load:
    tree = build_tree(job.prompts)
    look = outlook(job, tree, LIVES, job.known)
    machine = Machine(3e6, 512, tells=False)
    feed = feed_over(tree, job, Ordering(JobOrder.BLEND, LIVES, machine.memory_bytes))
    outputs = [job.known[place] for place in range(len(job))]
    run = forecast(feed, tree, job.prompt_tokens, outputs, LIVES, machine)
    dense = look.dense
    return Load(dense.compute_s(tree.root), dense.memory_s(tree.root), dense.num_shareable(), run.seconds)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [1, 2, 3, 7, 80])
def test_every_request_is_in_exactly_one_shard(seed: int, count: int) -> None:
    prompts, outputs = mixed_job(seed, 80)
    job = job_of(prompts, outputs)
    parts = shards_of(job, LIVES, count)
    assert len(parts) == count
    assert all(parts)
    assert sorted(place for part in parts for place in part) == list(range(80))
    assert parts == shards_of(job_of(prompts, outputs), LIVES, count)


@pytest.mark.parametrize("count", [0, 81])
def test_no_shard_is_empty(count: int) -> None:
    with pytest.raises(UsageError, match="80 requests cannot be cut into"):
        shards_of(job_of(*mixed_job(1, 80)), LIVES, count)


@pytest.mark.parametrize("count", [2, 4])
def test_shards_are_alike_and_keep_what_the_whole_shares(count: int) -> None:
    job = large_job()
    whole = load_of(job)
    parts = [load_of(only(job, part)) for part in shards_of(job, LIVES, count)]
    apart = [load_of(only(job, [*range(number, len(job), count)])) for number in range(count)]
    for part in parts:
        assert part.compute_s == pytest.approx(whole.compute_s / count, rel=0.05)
        assert part.memory_s == pytest.approx(whole.memory_s / count, rel=0.08)
    assert sum(part.found for part in parts) >= 0.99 * whole.found
    # Every so many lines instead: each machine computes nearly every beginning.
    assert sum(part.found for part in apart) < 0.9 * whole.found
    assert whole.seconds / max(part.seconds for part in parts) > 0.93 * count
    assert max(part.seconds for part in parts) < max(part.seconds for part in apart)


def test_a_job_of_one_kind_is_cut_too() -> None:
    """No answers that read anything, one request that outweighs all, and prompts that are all the same."""

    class NoTraffic(EvenLives):
        def memory_s(self, prompt: int, output: int) -> float:
            return 0.0

    prompts = [(1, 2, place) for place in range(20)]
    assert [len(part) for part in shards_of(job_of(prompts, [1] * 20), NoTraffic(), 4)] == [5] * 4
    heavy = shards_of(job_of(prompts, [1] * 19 + [100_000]), LIVES, 3)
    assert sorted(len(part) for part in heavy)[0] >= 1
    same = shards_of(job_of([(1, 2, 3)] * 12, [4] * 12), LIVES, 4)
    assert [len(part) for part in same] == [3] * 4


def test_other_rates_of_the_same_kind_of_machine_cut_alike() -> None:
    """What counts is how much of each resource a part has, not how fast a machine is at it."""

    class Twice(EvenLives):
        def memory_s(self, prompt: int, output: int) -> float:
            return 2 * LIVES.memory_s(prompt, output)

    job = replace(large_job())
    parts, others = shards_of(job, LIVES, 4), shards_of(job, Twice(), 4)
    moved = sum(len({*one} - {*other}) for one, other in zip(parts, others, strict=True))
    assert moved < 0.5 * len(job)
