"""Random operations on tiny memories, each followed by `check()` and compared with a naive model: 1,000 on every
memory, and where slow tests run 100,000 on all together and as many on the one that has all kinds of groups.
"""

from __future__ import annotations

import random

import pytest
from tests.properties.kv_world import Memory, World

MEMORIES: list[Memory] = [
    (24, (1,), 2, True),
    (12, (2,), 2, True),
    (8, (4,), 3, True),
    (32, (1,), 4, True),
    (10, (3,), 2, False),
    (20, (1, 2), 2, True),
    (16, (2, 3), 2, True),
    (4, (8,), 1, True),
    (24, (1, 1), 2, True, ("full", "window 5")),
    (16, (2, 3), 2, True, ("full", "window 4")),
    (14, (3, 1), 2, True, ("window 7", "full")),
    (20, (1, 2), 2, False, ("full", "chunked 6")),
    (16, (2, 1), 3, True, ("full", "chunked 7")),
    (24, (2,), 2, True, ("window 6",)),
    (16, (2, 1), 2, True, ("full", "state")),
    (16, (2,), 2, True, ("state",)),
    (30, (2, 3, 1, 2), 2, True, ("full", "window 5", "chunked 8", "state")),
    (50, (1, 2), 2, True, ("full", "chunked 6")),  # room enough for trunks that fork and both keep something
]


def play(memory: Memory, num_operations: int) -> World:
    world = World(memory, random.Random(str(memory)))
    for _ in range(num_operations):
        world.act()
        world.compare()
    world.end()
    return world


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_memory_agrees_with_a_naive_model(memory: Memory) -> None:
    play(memory, 1_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_memory_of_all_kinds_agrees_with_a_naive_model_for_100_000_operations() -> None:
    of_all_kinds = max(MEMORIES, key=lambda memory: len(memory[1]))
    world = play(of_all_kinds, 100_000)
    happened = ("checkpoint inside a block", "inside a block", "state copied", "whole page", "left the window")
    assert min(world.seen.get(what, 0) for what in happened) >= 20, world.seen


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_memory_agrees_with_a_naive_model_for_long(memory: Memory) -> None:
    world = play(memory, 6_250)
    happened = ["submitted", "collected", "cancelled", "quarantined", "named"]
    if world.enable_prefix:
        happened += ["evicted", "duplicate", "pending", "lease", "no lease", "lease ended"]
    if world.enable_prefix and world.size > 1 and not world.states:
        happened += ["copied", "hit copied", "tail"]
    if world.enable_prefix and world.states:
        happened += ["checkpoint", "checkpoint inside a block", "state published", "state copied", "inside a block"]
    if world.enable_prefix and world.whole and (world.windows or world.states):
        happened += ["whole page"]
    if world.windows:
        happened += ["left the window"]
    rare = {what: world.seen.get(what, 0) for what in happened if world.seen.get(what, 0) < 5}
    assert not rare, "the dice hardly got to these"
