"""What drafts put at risk under prices is what is verified; and nobody is asked where nothing can come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.conformance.drafting import Guesser
from tests.unit.engine.kit import OneSecondPerToken, Stage, ask, says
from tests.unit.sched.test_multiplex_drafting import FREE_ROWS, setting, situation

from plait.assembly import Drafting, Policy
from plait.core.events import Collected, Submitted
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.request import SeqState
from plait.core.request import Sequence as Seq
from plait.core.step import (
    SAMPLES_ONE,
    Chunk,
    ChunkShape,
    Drafts,
    OutputKind,
    Outputs,
    StepPlan,
    StepResult,
    StepShape,
    StepStatus,
)
from plait.cost.model import Bound, StepPrice
from plait.draft.depth import LOSS_SHARE, PricedDepth
from plait.sched.multiplex.decide import decide
from plait.sched.multiplex.presets import CHUNKED, PLAIT
from plait.sched.multiplex.verifying import Verifying
from plait.sched.speculation import Speculation

STEP_S = 1e-3
LANE = LaneId(0)


def sevens(tokens: Sequence[int], most: int) -> Sequence[int]:
    return [7] * most


def running(count: int) -> list[Seq]:
    return [
        Seq(SeqId(at), ask(str(at), [1] * 100, max_tokens=50), 0, 0, 50, 0.0, [1] * 101, SeqState.RUNNING, 100)
        for at in range(count)
    ]


def plan(step: int, drafts: Sequence[int]) -> StepPlan:
    """A decode step of sequences that have so many drafts each."""
    chunks = []
    for at, count in enumerate(drafts):
        guessed = Drafts((7,) * count, tuple(range(-1, count - 1))) if count else None
        outputs = (Outputs(0, count + 1, OutputKind.SAMPLE),) if count else SAMPLES_ONE
        chunks.append(Chunk(SeqId(at), 100, 1 + count, (1,), guessed, outputs))
    return StepPlan(StepId(step), LANE, (), (), (), tuple(chunks))


def ended(step: int, seconds: float = STEP_S) -> StepResult:
    return StepResult(StepId(step), LANE, StepStatus.COMPLETED, 0.0, seconds, 1, ())


@pytest.mark.parametrize("verified", [(0, 0), (3, 0), (7, 7)])
def test_drafts_that_memory_refused_put_nothing_at_risk(verified: tuple[int, int]) -> None:
    """Ten rows on eight that are free, none of whose drafts is right."""
    verifying, seqs = Verifying(Speculation(Guesser(sevens, (0.95,)), PricedDepth(), 256), setting(CHUNKED)), running(2)
    verifying.ended(ended(0))
    before_s = verifying._credit.seconds
    verifying.decide(situation(2), seqs)
    assert all(verifying.of(seq) is not None for seq in seqs)
    verifying.sent(plan(1, verified))
    # However little drafts would be worth for as many as run now, prompts counted.
    verifying._bars[5] = (0, 2.0)
    assert verifying.rests([*seqs, *running(3)]) is (sum(verified) == 0)
    verifying.ended(ended(1))
    assert verifying.rests([*seqs, *running(3)])
    over_s = STEP_S * max((2 + sum(verified)) / FREE_ROWS - 1.0, 0.0)
    assert verifying._credit.seconds == pytest.approx(before_s + LOSS_SHARE * STEP_S - over_s)


def test_a_step_in_flight_of_whom_somebody_lives_no_more_or_who_has_drafts_is_no_measure_of_rows() -> None:
    verifying = Verifying(Speculation(Guesser(sevens, (0.95,)), PricedDepth(), 256), setting(CHUNKED))
    two = situation(2)
    left = replace(two, decoding=two.decoding[:1], is_stepping=True)
    drafted = replace(two, decode=StepShape((ChunkShape.of_verify(100, 30),) * 2), is_stepping=True)
    for now in (left, drafted):
        assert verifying.decide(now, running(2)).form is decide(now, setting(CHUNKED)).form
        assert verifying._bars == {}
    verifying.decide(replace(two, is_stepping=True), running(2))
    assert [*verifying._bars] == [2]


class MemoryBound(OneSecondPerToken):
    """Eight rows for the price of one."""

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        seconds = max(1.0, shape.num_tokens / 8)
        return StepPrice(seconds, seconds, Bound.MEMORY)


SONG = "abc" + "0123456789" * 12


def played(drafting: Drafting | None, cost: OneSecondPerToken, streams: int) -> Stage:
    policy = Policy(PLAIT, cost, num_spans=4, runs_ahead=True)
    one = Stage(
        token_at=says(SONG),
        drafting=drafting,
        cost=cost,
        policy=policy,
        share_units=4,
        max_step_tokens=64,
        max_rows=8,
        num_blocks=400,
        max_model_tokens=200,
        enable_prefix=False,
        checks=False,
    )
    one.arrive(*[ask(str(number), SONG[:3], max_tokens=80) for number in range(streams)])
    one.run()
    return one


def in_turn(stage: Stage) -> list[StepPlan | StepId]:
    return [
        event.plan if isinstance(event, Submitted) else event.result.step
        for event in stage.events
        if isinstance(event, Submitted | Collected)
    ]


@pytest.mark.parametrize("streams", [1, 4])
def test_where_no_draft_pays_decode_is_planned_ahead_as_without(streams: int) -> None:
    guesser, cost = Guesser(sevens), OneSecondPerToken()
    drafted, plain = (in_turn(played(one, cost, streams)) for one in (Drafting(guesser, PricedDepth()), None))
    # What drafts would have to be is asked when so many decode for the first time, which is the third step of all;
    # that one is planned late.
    first = drafted.index(StepId(2))
    assert drafted[first:] == plain[first:]
    assert len(drafted) == len(plain)
    assert guesser.num_guessed == 0


def test_where_guesses_keep_being_wrong_several_rest_between_looks_and_are_planned_ahead() -> None:
    guesser = Guesser(lambda tokens, most: [ord("#")] * most)
    drafted, plain = (played(one, MemoryBound(), 6) for one in (Drafting(guesser, PricedDepth()), None))
    steps = [event.plan for event in drafted.of(Submitted)]
    assert guesser.num_guessed < 16 * 6 * len(steps) / 3
    in_flight, ahead = 0, 0
    for one in in_turn(drafted):
        ahead += isinstance(one, StepPlan) and in_flight == 1
        in_flight += 1 if isinstance(one, StepPlan) else -1
    assert ahead > len(steps) / 2
    assert [drafted.answers.text(str(at)) for at in range(6)] == [plain.answers.text(str(at)) for at in range(6)]
