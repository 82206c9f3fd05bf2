"""Every kind of group in one memory: all that `check()` asks for holds after each operation, and nothing is left."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.properties.kv_everything import Everything

DICE = st.randoms(use_true_random=False)
HAPPENS = (
    "short of memory",
    "hit",
    "hit inside a block",
    "encoded",
    "image found",
    "grown",
    "cannot grow",
    "submitted",
    "verified",
    "state replaced",
    "state stays",
    "collected",
    "cancelled",
    "left in flight",
    "lease",
    "draft",
    "no draft",
    "draft step",
    "checkpoint inside a block",
    "checkpoint behind a block",
)


def play(num_operations: int, seed: int) -> Everything:
    world = Everything(random.Random(seed))
    for _ in range(num_operations):
        world.act()
        world.kv.check()
    world.end()
    return world


def rare(world: Everything, least: int) -> dict[str, int]:
    """What the dice hardly got to."""
    report = world.kv.explain()
    seen = {**world.seen, "evicted": report.index.num_evictions, "drafts dropped": world.kv.drafts.num_dropped}
    return {what: seen.get(what, 0) for what in (*HAPPENS, "evicted", "drafts dropped") if seen.get(what, 0) < least}


def test_all_kinds_share_one_memory() -> None:
    assert not rare(play(2_000, seed=1), least=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_kinds_share_one_memory_for_100_000_operations() -> None:
    assert not rare(play(100_000, seed=0), least=100)


class EverythingMachine(RuleBasedStateMachine):
    """Hypothesis throws the dice, and shrinks what went wrong to the few operations that matter."""

    world: Everything

    @initialize(num_pages=st.sampled_from((14, 30)), dice=DICE)
    def begin(self, num_pages: int, dice: random.Random) -> None:
        self.world = Everything(dice, num_pages)

    @rule(dice=DICE)
    def act(self, dice: random.Random) -> None:
        self.world.dice = dice
        self.world.act()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.kv.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.dice = random.Random(0)
            self.world.end()


EverythingMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
test_kv_everything_machine = EverythingMachine.TestCase
