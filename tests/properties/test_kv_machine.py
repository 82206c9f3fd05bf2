"""The same model driven by hypothesis, which shrinks a disagreement to the few operations that matter."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.properties.kv_world import Memory, World

DICE = st.randoms(use_true_random=False)
MEMORIES: list[Memory] = [
    (5, (1,), 2, True),
    (3, (2,), 2, True),
    (6, (1, 2), 2, True),
    (4, (3,), 1, True),
    (8, (1, 2), 2, True, ("full", "window 3")),
    (8, (2, 1), 2, True, ("full", "state")),
    (12, (1, 2, 1, 2), 2, True, ("full", "window 5", "chunked 4", "state")),
]


class KVMachine(RuleBasedStateMachine):
    """Hypothesis chooses the memory, the operations and every throw of the dice."""

    world: World

    @initialize(memory=st.sampled_from(MEMORIES), dice=DICE)
    def begin(self, memory: Memory, dice: random.Random) -> None:
        self.world = World(memory, dice)

    @rule(dice=DICE)
    def admit(self, dice: random.Random) -> None:
        self.world.dice = dice
        self.world.admit()

    @rule(dice=DICE)
    def look(self, dice: random.Random) -> None:
        self.world.dice = dice
        self.world.look_around()

    @precondition(lambda self: self.world.live)
    @rule(dice=DICE)
    def grow(self, dice: random.Random) -> None:
        self.world.dice = dice
        self.world.grow()

    @precondition(lambda self: self.world.live)
    @rule(dice=DICE)
    def submit(self, dice: random.Random) -> None:
        self.world.dice = dice
        self.world.submit()

    @precondition(lambda self: self.world.flights)
    @rule(dice=DICE)
    def collect(self, dice: random.Random) -> None:
        self.world.dice = dice
        self.world.collect()

    @precondition(lambda self: self.world.live)
    @rule(dice=DICE)
    def leave(self, dice: random.Random) -> None:
        self.world.dice = dice
        self.world.leave()

    @rule()
    def let_time_pass(self) -> None:
        self.world.now_s += 1.0

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "world"):
            self.world.compare()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.dice = random.Random(0)
            self.world.end()


KVMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
test_kv_machine = KVMachine.TestCase
