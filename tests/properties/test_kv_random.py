"""100,000 random operations on tiny memories, each followed by `check()` and compared with a naive model."""

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
]


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_memory_agrees_with_a_naive_model(memory: Memory) -> None:
    world = World(memory, random.Random(str(memory)))
    for _ in range(12_500):
        world.act()
        world.compare()
    world.end()
    happened = ["submitted", "collected", "cancelled", "quarantined", "named"]
    if world.enable_prefix:
        happened += ["evicted", "duplicate", "pending"]
    if world.enable_prefix and world.size > 1:
        happened += ["copied", "hit copied", "tail"]
    rare = {what: world.seen.get(what, 0) for what in happened if world.seen.get(what, 0) < 30}
    assert not rare, "the dice hardly got to these"
