"""Two executors as one: plans go where their program is, on the cache memory of the first."""

from __future__ import annotations

import pytest
from tests.conformance.models import tiny_model
from tests.conformance.scene import GREEDY

from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import DRAFT_PROGRAM, STEP_PROGRAM, BlockGrant, Chunk, Join, OutputKind, Outputs, StepPlan
from plait.exec.paired import PairedExecutor

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from plait.exec.native.executor import NativeConfig, NativeExecutor

MODEL = tiny_model(seed=3)
LAYOUT = MODEL.layout(8)
CONFIG = NativeConfig((-1,), max_step_tokens=16, max_rows=4, poison=True)
LANE = LaneId(1)
PROMPT = (5, 6, 7)


def loaded(pool_of: NativeExecutor | None = None) -> NativeExecutor:
    executor = NativeExecutor(CONFIG, pool_of)
    executor.load({STEP_PROGRAM: MODEL.program}, MODEL.table(), LAYOUT)
    return executor


def plan(step: int, program: str, block: int) -> StepPlan:
    """Sequence 0 of the program joins on a lane, and says a token behind its prompt."""
    seq = SeqId(0)
    return StepPlan(
        StepId(step),
        LANE,
        (Join(seq, 0, GREEDY, 1, 0, len(PROMPT)),),
        (BlockGrant(seq, GroupId(0), 0, (BlockId(block),)),),
        (),
        (Chunk(seq, 0, len(PROMPT), PROMPT, None, (Outputs(2, 1, OutputKind.SAMPLE),)),),
        program=program,
    )


def test_a_plan_is_carried_out_by_the_executor_of_its_program() -> None:
    target = loaded()
    draft = loaded(target)
    pair = PairedExecutor(target, draft)
    target.assign({LaneId(0): (), LANE: (0,)})
    assert pair.info == target.info
    pair.submit(plan(0, STEP_PROGRAM, 0))
    pair.submit(plan(1, DRAFT_PROGRAM, 1))
    assert target.wait_finished(10.0)
    assert draft.wait_finished(10.0)
    first, second = pair.collect()
    assert [(one.step, one.lane) for one in (first, second)] == [(0, LANE), (1, LANE)]
    assert first.seqs[0].tokens == second.seqs[0].tokens
    assert not pair.ready()
    pair.close()


def test_memory_lives_as_long_as_whoever_has_it() -> None:
    target = loaded()
    draft = loaded(target)
    target.close()
    del target
    draft.assign({LaneId(0): (), LANE: (0,)})
    draft.submit(plan(0, STEP_PROGRAM, 1))
    assert draft.wait_finished(10.0)
    assert len(draft.collect()[0].seqs[0].tokens) == 1
    draft.close()


def test_memory_of_another_size_is_refused() -> None:
    target = loaded()
    other = NativeExecutor(CONFIG, target)
    with pytest.raises(ValueError, match=rf"the pool has {LAYOUT.pool_bytes} bytes, not {2 * LAYOUT.pool_bytes}"):
        other.load({STEP_PROGRAM: MODEL.program}, MODEL.table(), MODEL.layout(16))
    target.close()
