"""A thousand requests through the whole engine in simulated time: all answered, and equal seeds give equal plans."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from tests.properties.engine_load import arrivals, digest, run, spec

from plait.core.events import Arrived, Emitted, Event, Finished, Preempted, Refused, Scheduled
from plait.core.request import FinishReason
from plait.sim.report import Report

ROOT = Path(__file__).parents[2]
NUM_REQUESTS = 1000


@pytest.fixture(scope="module")
def thousand() -> tuple[Report, list[Event]]:
    return run(NUM_REQUESTS, seed=1)


def test_a_thousand_requests_are_all_answered_in_full(thousand: tuple[Report, list[Event]]) -> None:
    report, events = thousand
    asked = {arrival.request.id: arrival.request for arrival in arrivals(NUM_REQUESTS, seed=1)}
    finished = [event for event in events if isinstance(event, Finished)]
    assert Counter(event.request for event in finished) == {name: request.n for name, request in asked.items()}
    for event in finished:
        assert event.reason is FinishReason.LENGTH
        assert event.num_output == asked[event.request].sampling.max_tokens
    assert not any(isinstance(event, Refused) for event in events)
    assert report.output_tokens == sum(event.num_tokens for event in events if isinstance(event, Emitted))


def test_the_load_is_one_that_could_go_wrong(thousand: tuple[Report, list[Event]]) -> None:
    report, events = thousand
    assert report.prefix_hit_fraction > 0.2
    assert sum(isinstance(event, Preempted) for event in events) >= 10
    assert report.queue_s is not None
    assert report.queue_s.longest > 1.0


def test_a_sequence_arrives_is_scheduled_speaks_and_ends_in_this_order(thousand: tuple[Report, list[Event]]) -> None:
    _, events = thousand
    assert all(first.at_s <= second.at_s for first, second in pairwise(events))
    stories: dict[int, list[type[Event]]] = {}
    for event in events:
        if isinstance(event, Arrived | Scheduled | Emitted | Finished):
            stories.setdefault(event.seq, []).append(type(event))
    for story in stories.values():
        assert story[:3] == [Arrived, Scheduled, Emitted]
        assert story[-1] is Finished
        assert Counter(story)[Arrived] == Counter(story)[Scheduled] == Counter(story)[Finished] == 1


def test_equal_seeds_give_equal_plans_and_different_ones_different_plans() -> None:
    first, again, other = (digest(run(200, seed)[1]) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_plans_do_not_depend_on_how_a_process_hashes() -> None:
    digests = {digest(run(100, seed=3)[1])}
    for seed in ("1", "2"):
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        command = [sys.executable, "-m", "tests.properties.engine_load", "100", "3"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT, timeout=100
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_less_memory_makes_plans_different_and_answers_not() -> None:
    roomy, tight = run(120, seed=4, made=spec(cache_tokens=16_384)), run(120, seed=4, made=spec(cache_tokens=1024))
    assert digest(roomy[1]) != digest(tight[1])
    assert tight[0].num_preemptions > roomy[0].num_preemptions
    lengths = [
        sorted((event.request, event.seq, event.num_output) for event in events if isinstance(event, Finished))
        for _, events in (roomy, tight)
    ]
    assert lengths[0] == lengths[1]
