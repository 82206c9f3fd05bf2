"""What Python does per sequence and step: counted in calls, which are the same on every machine, and not in seconds."""

from __future__ import annotations

import cProfile
import pstats
from collections import deque

from tests.unit.sched.kit import Stage, next_token

from plait.core.decision import Submit
from plait.core.step import SeqResult, SeqStatus, StepPlan, StepResult, StepStatus

NUM_SEQUENCES = 64
NUM_STEPS = 24
MOST_CALLS = 50
"""Of Python and built-in functions, for planning and committing; 43 when this was written, 12 of them `len`."""


class Device:
    """A stage without checks, whose planning and committing is counted."""

    def __init__(self, queue_depth: int) -> None:
        self.stage = Stage(
            num_blocks=200, tokens_per_block=32, max_step_tokens=512, max_rows=NUM_SEQUENCES, queue_depth=queue_depth
        )
        for number in range(NUM_SEQUENCES):
            self.stage.arrive([number, number + 1, number + 2], max_tokens=60)
        self.profile = cProfile.Profile()
        self.queue: deque[StepPlan] = deque()
        self._depth = queue_depth

    def turn(self) -> None:
        """What the engine does when a step is over."""
        while len(self.queue) < self._depth:
            self.profile.enable()
            decisions = self.stage.scheduler.plan(0.0)
            self.profile.disable()
            self.queue += [decision.plan for decision in decisions if isinstance(decision, Submit)]
        plan = self.queue.popleft()
        seqs = tuple(
            SeqResult(chunk.seq, SeqStatus.OK, chunk.num_tokens, (next_token(chunk),) * chunk.num_outputs)
            for chunk in plan.chunks
        )
        result = StepResult(plan.step, plan.lane, StepStatus.COMPLETED, 0.0, 0.0, 1, seqs)
        self.profile.enable()
        self.stage.scheduler.commit(result, 0.0)
        self.profile.disable()

    def calls_per_turn(self, num_turns: int) -> float:
        """Calls per sequence and step of the next turns."""
        self.profile = cProfile.Profile()
        for _ in range(num_turns):
            self.turn()
        return pstats.Stats(self.profile).total_calls / (num_turns * NUM_SEQUENCES)


def test_planning_and_committing_a_token_takes_few_calls() -> None:
    for depth in (1, 2):
        device = Device(depth)
        for _ in range(4):
            device.turn()
        assert device.calls_per_turn(NUM_STEPS) <= MOST_CALLS


def test_a_step_costs_the_same_however_long_the_sequences_are() -> None:
    device = Device(2)
    for _ in range(4):
        device.turn()
    early, _, late = (device.calls_per_turn(16) for _ in range(3))
    assert abs(early - late) < 1
