"""A plan round: random traffic through one native executor, then every answer again, from a sequence that was alone.

Owns the comparison. Traffic makes the plans; Drive suspends, starves and cancels at random moments.
Invariant: the executor that answers alone has one worker, the whole text in one chunk and nobody else in its step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tests.conformance.drive import Drive
from tests.conformance.executors import MAX_ROWS, MAX_STEP_TOKENS, Bench
from tests.conformance.stories import Answer, Story
from tests.conformance.test_plans import check_story
from tests.conformance.traffic import Traffic
from tests.soak.subjects import Subject
from tests.soak.tally import Tally

from plait.core.clock import RealClock
from plait.core.decision import Assign, Cancel, Suspend
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import (
    STEP_PROGRAM,
    BlockGrant,
    Chunk,
    Join,
    Leave,
    OutputKind,
    Outputs,
    RowMask,
    SeqStatus,
    StepPlan,
    TokenLogprob,
)
from plait.exec.native.executor import NativeConfig, NativeExecutor

LONGEST = 400
"""Tokens; no story is longer."""
MOST_WORKERS = 4
MOMENT_S = 0.00001
PATIENCE_S = 60.0
Given = tuple[int, TokenLogprob | None]
"""A token and its log-probability."""


def draw_config(random: np.random.Generator, targets: Sequence[str], max_step_tokens: int) -> NativeConfig:
    """More workers than cores at times; every instruction set; work cut as usual or anyhow."""
    workers = int(random.integers(1, MOST_WORKERS + 1))
    return NativeConfig(
        (-1,) * workers,
        max_step_tokens,
        MAX_ROWS,
        target=targets[int(random.integers(len(targets)))],
        blocking_seed=int(random.integers(0, 3) and random.integers(1, 1 << 31)),
        poison=True,
    )


def play(subject: Subject, seed: int, targets: Sequence[str], tally: Tally) -> list[Story]:
    """The stories of the traffic when it is over."""
    random = np.random.default_rng(seed)
    layout = subject.layout(LONGEST + int(random.integers(0, 400)))
    executor = NativeExecutor(draw_config(random, targets, MAX_STEP_TOKENS))
    executor.load({STEP_PROGRAM: subject.program}, subject.weights, layout)
    clock = RealClock()
    bench = Bench(executor, lambda: clock.wait(executor, until=clock.now() + MOMENT_S), computes=True, late_steps=None)
    traffic = Traffic(seed, layout, subject.program.vocab_size)
    made = Drive(bench, traffic, random)
    try:
        made.run()
        tally.add("units", int(executor.counters()["units"]))
    finally:
        executor.close()
    tally.add("steps", len(made.results))
    for kind, what in ((Cancel, "cancels"), (Suspend, "suspends"), (Assign, "assigns")):
        tally.add(what, sum(isinstance(entry, kind) for entry in made.log))
    tally.add("preemptions", traffic.happened["preemptions"])
    tally.add("prefix hits", traffic.happened["shared prefixes"])
    return traffic.stories


def compare(subject: Subject, stories: Sequence[Story], tally: Tally) -> None:
    alone = Alone(subject)
    try:
        for story in stories:
            if subject.exact is not None:
                check_story(story, subject.exact)
            for answers in _passes(story.answers):
                for answer, given in zip(answers, alone.ask(story, answers), strict=True):
                    tally.add("answers compared")
                    if answer.logprob is not None:
                        tally.add("log-probabilities compared", 1 + len(answer.logprob.top))
                    what = f"{answer.kind} behind token {answer.row} of sequence {story.id}"
                    tally.check((answer.token, answer.logprob) == given, f"{subject.name}: {what}: {answer} {given}")
    finally:
        alone.close()


def _passes(answers: Sequence[Answer]) -> list[list[Answer]]:
    """Answers in groups in which every row is named once: somebody who left computes rows again."""
    passes: list[dict[int, Answer]] = []
    for answer in answers:
        free = next((one for one in passes if answer.row not in one), None)
        if free is None:
            passes.append(free := {})
        free[answer.row] = answer
    return [[one[row] for row in sorted(one)] for one in passes]


class Alone:
    """An executor with one worker that computes one sequence at a time."""

    def __init__(self, subject: Subject) -> None:
        self._layout = subject.layout(LONGEST)
        self._executor = NativeExecutor(NativeConfig((-1,), LONGEST, 1, poison=True))
        self._executor.load({STEP_PROGRAM: subject.program}, subject.weights, self._layout)
        self._clock = RealClock()
        self._next = 0

    def close(self) -> None:
        self._executor.close()

    def ask(self, story: Story, answers: Sequence[Answer]) -> list[Given]:
        """What the rows of these answers give when the whole text is computed at once."""
        step, seq = StepId(self._next), SeqId(self._next)
        self._next += 2
        join = answers[0].join
        params, ends = join.params, join.eos_token_ids
        joins = Join(seq, 0, params, story.seed, story.choice, story.num_prompt, (), None, ends)
        num_tokens = answers[-1].row + 1
        chunk = Chunk(seq, 0, num_tokens, tuple(story.tokens[:num_tokens]), outputs=tuple(map(_output, answers)))
        masks = tuple(RowMask(seq, one.row, one.allowed) for one in answers if one.allowed is not None)
        plan = StepPlan(step, LaneId(0), (joins,), self._grants(seq), (), (chunk,), sampling=masks)
        self._executor.submit(plan)
        self._executor.submit(StepPlan(StepId(step + 1), LaneId(0), (Leave(seq),), (), (), ()))
        until = self._clock.now() + PATIENCE_S
        results = self._executor.collect()
        while len(results) < 2:
            assert self._clock.now() < until, f"step {step} alone never ends"
            self._clock.wait(self._executor, until=until)
            results += self._executor.collect()
        (result,) = results[0].seqs
        assert result.status is SeqStatus.OK, result.error
        tokens, logprobs, scored = iter(result.tokens), iter(result.logprobs), iter(result.prompt_logprobs)
        given: list[Given] = []
        for answer in answers:
            if answer.kind is OutputKind.SAMPLE:
                given.append((next(tokens), None if params.logprobs is None else next(logprobs)))
            else:
                one = next(scored)
                given.append((one.token, one))
        return given

    def _grants(self, seq: SeqId) -> tuple[BlockGrant, ...]:
        """Block ids are page ids, lent to one group each."""
        count = self._layout.num_pages // len(self._layout.groups)
        return tuple(
            BlockGrant(seq, GroupId(group), 0, tuple(BlockId(group * count + place) for place in range(count)))
            for group in range(len(self._layout.groups))
        )


def _output(answer: Answer) -> Outputs:
    if answer.kind is OutputKind.SAMPLE:
        return Outputs(answer.row, 1, OutputKind.SAMPLE)
    return Outputs(answer.row, 1, OutputKind.LOGPROBS, (answer.token,), top=answer.num_top)
