"""Plans that no scheduler may make: every executor refuses them at once, and loudly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from tests.conformance.executors import EXECUTORS, MAX_STEP_TOKENS
from tests.conformance.models import MAX_POSITIONS, VOCAB_SIZE
from tests.conformance.scene import (
    BLOCK,
    PROMPT,
    Scene,
    blocks_of,
    joined,
    next_chunk,
    prompt_chunk,
    sampling,
)

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import (
    BlockGrant,
    Chunk,
    Drafts,
    Encode,
    Move,
    OutputKind,
    Outputs,
    RowMask,
    Snapshot,
    StepPlan,
)

AT = len(PROMPT)
ONE_MORE = Chunk(SeqId(1), AT, 1, (7,), outputs=sampling(0))
"""The next token of sequence 1, which has computed its prompt and is at rest."""


def plan(*chunks: Chunk, **parts: object) -> StepPlan:
    return replace(StepPlan(StepId(1), LaneId(0), (), (), (), chunks), **parts)  # type: ignore[arg-type]


def own(seq: int) -> tuple[BlockGrant, ...]:
    return (BlockGrant(SeqId(seq), GroupId(0), 0, blocks_of(seq)),)


def new(seq: int, chunk: Chunk, **parts: object) -> StepPlan:
    return plan(chunk, roster=(joined(seq),), blocks=own(seq), **parts)


FAULTS: Mapping[str, StepPlan] = {
    "two chunks of one sequence": plan(ONE_MORE, ONE_MORE._replace(start=AT + 1)),
    "fewer tokens than it says": plan(ONE_MORE._replace(num_tokens=2)),
    "a negative start": plan(ONE_MORE._replace(start=-1)),
    "outputs behind the last row": plan(ONE_MORE._replace(outputs=sampling(1))),
    "scored rows without targets": plan(ONE_MORE._replace(outputs=(Outputs(0, 1, OutputKind.LOGPROBS),))),
    "positions for another number of tokens": plan(ONE_MORE._replace(positions=(1, 2))),
    "a sequence that has not joined": plan(ONE_MORE._replace(seq=SeqId(2))),
    "a sequence that joins twice": plan(roster=(joined(1),)),
    "a row that is taken": plan(roster=(replace(joined(2), row=1),)),
    "a row that there is not": plan(roster=(replace(joined(2), row=99),)),
    "a hole in the text": plan(ONE_MORE._replace(start=AT + 1)),
    "a token computed twice": plan(ONE_MORE._replace(start=AT - 1)),
    "more tokens than its blocks hold": plan(Chunk(SeqId(1), AT, 50, (7,) * 50)),
    "more tokens than a step may have": new(2, Chunk(SeqId(2), 0, MAX_STEP_TOKENS + 1, (7,) * (MAX_STEP_TOKENS + 1))),
    "a block that there is not": plan(blocks=(BlockGrant(SeqId(1), GroupId(0), 8, (BlockId(9999),)),)),
    "a group that there is not": plan(blocks=(BlockGrant(SeqId(1), GroupId(3), 0, (BlockId(60),)),)),
    "a token that was never sampled": new(2, next_chunk(2, 0)),
    "a prefix that nobody computed": new(2, prompt_chunk(2, BLOCK)),
    "a move out of empty slots": new(
        2, prompt_chunk(2), moves=(Move(GroupId(0), BlockId(60), 0, blocks_of(2)[0], 0, 3),)
    ),
    "a move into a block of nobody": plan(moves=(Move(GroupId(0), blocks_of(1)[0], 0, BlockId(60), 0, 3),)),
    "a lane that there is not": plan(ONE_MORE, lane=LaneId(5)),
    "a step that was already submitted": plan(ONE_MORE, step=StepId(0)),
}

# What only an executor with numbers can see; or does not do, and must not pass over.
COMPUTING_FAULTS: Mapping[str, StepPlan] = {
    "a token outside the vocabulary": plan(ONE_MORE._replace(tokens=(VOCAB_SIZE,))),
    "a negative token": plan(ONE_MORE._replace(tokens=(-1,))),
    "a target outside the vocabulary": plan(
        ONE_MORE._replace(outputs=(Outputs(0, 1, OutputKind.LOGPROBS, (VOCAB_SIZE,)),))
    ),
    "a position that the model does not have": plan(ONE_MORE._replace(positions=(MAX_POSITIONS,))),
    "a negative position": plan(ONE_MORE._replace(positions=(-1,))),
    "a mask for half of the vocabulary": plan(ONE_MORE, sampling=(RowMask(SeqId(1), 0, b"\xff" * 6),)),
    "a mask for a row that samples nothing": plan(ONE_MORE, sampling=(RowMask(SeqId(1), 1, b"\xff" * 13),)),
    "penalties without the tokens behind a hit": plan(
        prompt_chunk(2, BLOCK),
        roster=(joined(2, SamplingParams(presence_penalty=1.0)),),
        blocks=(BlockGrant(SeqId(2), GroupId(0), 0, (blocks_of(1)[0], *blocks_of(2)[1:])),),
    ),
}

SAMPLED = Outputs(0, 3, OutputKind.SAMPLE)

# What executors with numbers do not do yet: they must not pass over it.
MISSING: Mapping[str, StepPlan] = {
    "a tree of drafts": plan(Chunk(SeqId(1), AT, 3, (7,), Drafts((8, 9), (-1, -1)), (SAMPLED,))),
    "drafts out of the vocabulary": plan(Chunk(SeqId(1), AT, 3, (7,), Drafts((8, VOCAB_SIZE), (-1, 0)), (SAMPLED,))),
    "drafts that not every row verifies": plan(Chunk(SeqId(1), AT, 2, (7,), Drafts((8,), (-1,)), sampling(1))),
    "snapshots": plan(ONE_MORE._replace(snapshots=(Snapshot(0, GroupId(0), BlockId(60)),))),
    "pooled rows": plan(ONE_MORE._replace(outputs=(Outputs(0, 1, OutputKind.POOL),))),
    "taps": plan(ONE_MORE._replace(outputs=(Outputs(0, 1, OutputKind.TAPS),))),
    "images": plan(ONE_MORE, encodes=(Encode(SeqId(1), b"image", 1, GroupId(0), (BlockId(60),)),)),
    "adapters": plan(prompt_chunk(2), roster=(replace(joined(2), adapter="tiny"),), blocks=own(2)),
}


def refuses(scene: Scene, faulty: StepPlan) -> None:
    with pytest.raises(InvariantError) as refusal:
        scene.executor.submit(faulty)
    assert "\n" not in str(refusal.value)


def prepared(executor: str) -> Scene:
    scene = Scene(executor)
    scene.wait(scene.start(1))
    return scene


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_plan_that_breaks_a_rule_is_refused(executor: str, fault: str) -> None:
    refuses(prepared(executor), FAULTS[fault])


@pytest.mark.parametrize("fault", COMPUTING_FAULTS)
@pytest.mark.parametrize("executor", [name for name in EXECUTORS if name != "simulated"])
def test_a_plan_with_numbers_that_cannot_be_is_refused(executor: str, fault: str) -> None:
    refuses(prepared(executor), COMPUTING_FAULTS[fault])


@pytest.mark.parametrize("what", MISSING)
@pytest.mark.parametrize("executor", [name for name in ("reference", "native") if name in EXECUTORS])
def test_what_an_executor_does_not_do_it_refuses(executor: str, what: str) -> None:
    refuses(prepared(executor), MISSING[what])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_sound_plans_that_the_faulty_ones_were_made_of_are_taken(executor: str) -> None:
    """Guards the tests above: it is the fault that is refused."""
    sound: list[Callable[[Scene], StepPlan]] = [
        lambda scene: plan(ONE_MORE._replace(tokens=(scene.right_token(1, PROMPT),))),
        lambda scene: new(2, prompt_chunk(2)),
        lambda scene: new(2, prompt_chunk(2, 3), moves=(Move(GroupId(0), blocks_of(1)[0], 0, blocks_of(2)[0], 0, 3),)),
        lambda scene: plan(next_chunk(1, AT)),
    ]
    for make in sound:
        scene = prepared(executor)
        scene.executor.submit(make(scene))
        scene.wait(StepId(1))
