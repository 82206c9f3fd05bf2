"""Scenes: one executor, a few sequences drawn by hand, and the verbs called on it one by one.

Owns the block tables and the numbering of steps of hand-made plans; a sequence's blocks are its own unless said
otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.conformance.executors import EXECUTORS, NOTHING_KNOWN
from tests.conformance.models import TinyModel, model_named
from tests.conformance.oracle import expect
from tests.conformance.stories import EOS_TOKEN_IDS

from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import (
    FROM_DEVICE,
    BlockGrant,
    Chunk,
    Join,
    Leave,
    Move,
    OutputKind,
    Outputs,
    SeqResult,
    StepPlan,
    StepResult,
)

FIRST, SECOND = LaneId(0), LaneId(1)
GREEDY = SamplingParams(temperature=0.0)
BLOCK = 8
BLOCKS_OF_A_SEQUENCE = 8
PROMPT = tuple(range(10, 30))
PATIENCE_TURNS = 1_000_000
"""A minute and more of an executor with workers of its own: beside other work they may come late."""


class Scene:
    """Sequence s sits on row s and owns blocks [8 s, 8 s + 8). Its first plan joins it and grants them all."""

    def __init__(self, executor: str, model: TinyModel | None = None) -> None:
        self.model = model or model_named("causal")
        self.bench = EXECUTORS[executor](self.model, self.model.layout(64, BLOCK), NOTHING_KNOWN)
        self.executor = self.bench.executor
        self._next_step = 0
        self._results: dict[StepId, StepResult] = {}
        units = range(self.executor.info.share_units)
        self.shared = {lane: tuple(units[lane::2]) for lane in (FIRST, SECOND)}

    def share(self) -> None:
        """Half of the units for each lane."""
        self.executor.assign(self.shared)

    def plan(
        self, *chunks: Chunk, lane: LaneId = FIRST, joins: Sequence[Join] = (), moves: Sequence[Move] = ()
    ) -> StepPlan:
        step, self._next_step = StepId(self._next_step), self._next_step + 1
        grants = tuple(BlockGrant(join.seq, GroupId(0), 0, blocks_of(join.seq)) for join in joins)
        return StepPlan(step, lane, tuple(joins), grants, tuple(moves), chunks)

    def submit(
        self, *chunks: Chunk, lane: LaneId = FIRST, joins: Sequence[Join] = (), moves: Sequence[Move] = ()
    ) -> StepId:
        made = self.plan(*chunks, lane=lane, joins=joins, moves=moves)
        self.executor.submit(made)
        return made.step

    def start(self, *seqs: int, lane: LaneId = FIRST) -> StepId:
        """The whole prompt of each sequence in one step; its last row samples."""
        return self.submit(*(prompt_chunk(seq) for seq in seqs), lane=lane, joins=[joined(seq) for seq in seqs])

    def leave(self, seq: int, lane: LaneId = FIRST) -> StepId:
        step, self._next_step = StepId(self._next_step), self._next_step + 1
        self.executor.submit(StepPlan(step, lane, (Leave(SeqId(seq)),), (), (), ()))
        return step

    def collect(self, turns: int = 0) -> dict[StepId, StepResult]:
        """Everything that comes back within some turns."""
        for _ in range(turns):
            self.bench.advance()
        self._results |= {result.step: result for result in self.executor.collect()}
        return self._results

    def wait(self, step: StepId) -> StepResult:
        turns = 0
        while step not in self.collect(turns=1):
            turns += 1
            assert turns < PATIENCE_TURNS, f"step {step} never ends"
        return self._results[step]

    def wait_ready(self) -> None:
        """Until there is something to collect."""
        turns = 0
        while not self.executor.ready():
            self.bench.advance()
            turns += 1
            assert turns < PATIENCE_TURNS, "nothing ever ends"

    def right_token(self, seq: int, tokens: Sequence[int]) -> int:
        """What a greedy row behind `tokens` must give."""
        if not self.bench.computes:
            return NOTHING_KNOWN.token(SeqId(seq), len(tokens))
        return int(expect(self.model, tokens).logits[-1].argmax())


def joined(
    seq: int, params: SamplingParams = GREEDY, history: Sequence[int] = (), num_prompt: int = len(PROMPT)
) -> Join:
    return Join(SeqId(seq), seq, params, 5, 0, num_prompt, tuple(history), None, EOS_TOKEN_IDS)


def blocks_of(seq: int) -> tuple[BlockId, ...]:
    return tuple(BlockId(seq * BLOCKS_OF_A_SEQUENCE + place) for place in range(BLOCKS_OF_A_SEQUENCE))


def sampling(row: int) -> tuple[Outputs, ...]:
    return (Outputs(row, 1, OutputKind.SAMPLE),)


def prompt_chunk(seq: int, start: int = 0, end: int = len(PROMPT)) -> Chunk:
    """Tokens [start, end) of the prompt; the last row samples."""
    return Chunk(SeqId(seq), start, end - start, PROMPT[start:end], outputs=sampling(end - start - 1))


def next_chunk(seq: int, start: int) -> Chunk:
    """One token, the one sampled last."""
    return Chunk(SeqId(seq), start, 1, FROM_DEVICE, outputs=sampling(0))


def result_of(seq: int, result: StepResult) -> SeqResult:
    return next(one for one in result.seqs if one.seq == seq)
