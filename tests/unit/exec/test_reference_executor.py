"""The reference executor when things go wrong: cancellations, bad numbers, no memory, faults in its thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from tests.conformance.models import VOCAB_SIZE, TinyModel, tiny_model

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import (
    FROM_DEVICE,
    BlockGrant,
    Chunk,
    Join,
    Leave,
    OutputKind,
    Outputs,
    RowMask,
    SeqResult,
    SeqStatus,
    StepPlan,
    StepResult,
    StepStatus,
)
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor
from plait.exec.reference.fingerprint import fingerprint
from plait.model.ops import CacheWrite

Floats = npt.NDArray[np.float32]
Observe = Callable[[StepPlan, Floats], None]

MODEL = tiny_model()
LANE = LaneId(0)
BLOCK = 8
PROMPT = (5, 80, 41, 7, 66, 12, 93, 28, 3, 55, 71)
BAD = 99
"""A token whose embedding some tests replace by something that is not a number."""

ENOUGH_S = 30.0


def wait_until(happened: Callable[[], bool]) -> None:
    end_s = time.monotonic() + ENOUGH_S
    while not happened():
        assert time.monotonic() < end_s, "nothing happened"
        time.sleep(0.001)


def with_bad_token(value: float, model: TinyModel = MODEL) -> dict[str, Floats]:
    embed = model.arrays["embed"].copy()
    embed[BAD] = value
    return {"embed": embed}


@dataclass(slots=True)
class Rig:
    """An executor with the tiny model; sequence s sits on row s and owns blocks 4 s to 4 s + 3."""

    executor: ReferenceExecutor
    num_steps: int = 0
    ended: list[StepResult] = field(default_factory=list)

    def submit(self, *chunks: Chunk, joins: Sequence[int] = (), **parts: object) -> StepId:
        step, self.num_steps = StepId(self.num_steps), self.num_steps + 1
        params = parts.pop("params", SamplingParams(temperature=0.0))
        assert isinstance(params, SamplingParams)
        roster = [Join(SeqId(seq), seq, params, 9, 0, len(PROMPT)) for seq in joins]
        grants = [
            BlockGrant(SeqId(seq), GroupId(0), 0, tuple(BlockId(4 * seq + at) for at in range(4))) for seq in joins
        ]
        leaves = [Leave(SeqId(seq)) for seq in parts.pop("leaves", ())]  # type: ignore[attr-defined]
        plan = StepPlan(step, LANE, (*leaves, *roster), tuple(grants), (), chunks, **parts)  # type: ignore[arg-type]
        self.executor.submit(plan)
        return step

    def run(self) -> StepResult:
        """Carry everything out; the last step's result."""
        while self.executor.advance():
            pass
        self.ended += self.executor.collect()
        return self.ended[-1]


def rig(
    observe: Observe | None = None,
    *,
    threaded: bool = False,
    poison: bool = True,
    weights: dict[str, Floats] | None = None,
) -> Rig:
    config = ReferenceConfig(threaded=threaded, poison=poison, observe_logits=observe)
    executor = ReferenceExecutor(config, time.monotonic)
    executor.load({"step": MODEL.program}, MODEL.table(weights), MODEL.layout(64, BLOCK))
    return Rig(executor)


def prompt(seq: int, tokens: Sequence[int] = PROMPT, start: int = 0) -> Chunk:
    outputs = (Outputs(len(tokens) - 1, 1, OutputKind.SAMPLE),)
    return Chunk(SeqId(seq), start, len(tokens), tuple(tokens), outputs=outputs)


def behind(seq: int, start: int = len(PROMPT)) -> Chunk:
    return Chunk(SeqId(seq), start, 1, FROM_DEVICE, outputs=(Outputs(0, 1, OutputKind.SAMPLE),))


def alone(tokens: Sequence[int] = PROMPT) -> SeqResult:
    """What a sequence gives when nothing goes wrong and nobody is beside it."""
    quiet = rig()
    quiet.submit(prompt(0, tokens), joins=[0])
    return quiet.run().seqs[0]


# Cancelling


NUM_OPS = len(MODEL.program.ops)


@pytest.mark.parametrize("num_done", range(NUM_OPS + 1))
def test_a_chunk_cancelled_behind_any_op_writes_nothing_from_the_next_op_on(num_done: int) -> None:
    stopped = rig()
    step = stopped.submit(prompt(1), prompt(2), joins=[1, 2])
    for _ in range(num_done + 1):  # the first turn makes moves and reads the tokens
        stopped.executor.advance()
    assert stopped.executor.collect() == [] or num_done == NUM_OPS
    stopped.executor.cancel(step, [SeqId(1)])
    while stopped.executor.advance():
        pass
    writes = [op for op in MODEL.program.ops[:num_done] if isinstance(op, CacheWrite)]
    assert stopped.executor._loaded is not None
    memory = stopped.executor._loaded.memory
    for slot in range(MODEL.config.num_layers):
        table = [BlockId(4), BlockId(5)]
        keys, values = memory.read(GroupId(0), slot, table, range(len(PROMPT)), range(len(PROMPT)))
        was_written = any(op.slot == slot for op in writes)
        assert np.isfinite(keys).all() == np.isfinite(values).all() == was_written
        assert np.isnan(keys).all() == (not was_written)
        keys, _ = memory.read(GroupId(0), slot, [BlockId(8), BlockId(9)], range(len(PROMPT)), range(len(PROMPT)))
        assert np.isfinite(keys).all()


@pytest.mark.parametrize("num_done", [0, 1, NUM_OPS // 2, NUM_OPS - 1])
def test_a_cancelled_chunk_gives_nothing_and_its_neighbour_everything(num_done: int) -> None:
    stopped = rig()
    step = stopped.submit(prompt(1), prompt(2), joins=[1, 2])
    for _ in range(num_done + 1):
        stopped.executor.advance()
    stopped.executor.cancel(step, [SeqId(1)])
    result = stopped.run()
    assert result.status is StepStatus.COMPLETED
    assert result.seqs[0] == SeqResult(SeqId(1), SeqStatus.CANCELLED)
    assert result.seqs[1].tokens == alone().tokens


@pytest.mark.parametrize("num_done", range(0, NUM_OPS, 7))
def test_a_step_whose_last_chunk_is_cancelled_ends_with_the_next_turn(num_done: int) -> None:
    stopped = rig()
    step = stopped.submit(prompt(1), joins=[1])
    for _ in range(num_done + 1):
        stopped.executor.advance()
    stopped.executor.cancel(step, [SeqId(1)])
    stopped.executor.advance()
    (result,) = stopped.executor.collect()
    assert result.status is StepStatus.CANCELLED


def test_a_cancelled_chunk_is_computed_again_with_the_same_penalties() -> None:
    """Its tokens were seen once already; they count once."""
    params = SamplingParams(temperature=0.0, frequency_penalty=-2.0)
    calm, stopped = rig(), rig()
    for one in (calm, stopped):
        one.submit(prompt(1), joins=[1], params=params)
        one.run()
    for _ in range(6):
        step = stopped.submit(behind(1))
        for _ in range(20):
            stopped.executor.advance()
        stopped.executor.cancel(step, [SeqId(1)])
        assert stopped.run().status is StepStatus.CANCELLED
    for start in range(len(PROMPT), len(PROMPT) + 6):
        calm.submit(behind(1, start))
        stopped.submit(behind(1, start))
        assert stopped.run().seqs == calm.run().seqs


# Numbers that are none


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_logit_that_is_not_a_number_fails_its_sequence_only(value: float) -> None:
    broken = rig(weights=with_bad_token(value))
    bad = (*PROMPT[:4], BAD, *PROMPT[5:])
    broken.submit(prompt(1), prompt(2, bad), prompt(3), joins=[1, 2, 3])
    broken.submit(behind(1), behind(2), behind(3))
    last = broken.run()
    first = broken.ended[0]
    assert first.status is last.status is StepStatus.COMPLETED
    assert [one.status for one in first.seqs] == [SeqStatus.OK, SeqStatus.FAILED, SeqStatus.OK]
    assert first.seqs[1].error == "the model gave a logit that is not a number behind token 10 of the sequence"
    assert first.seqs[1].tokens == ()
    # What was queued behind it has no token to begin with.
    assert [one.status for one in last.seqs] == [SeqStatus.OK, SeqStatus.CANCELLED, SeqStatus.OK]
    assert first.seqs[0].tokens == first.seqs[2].tokens == alone().tokens
    assert last.seqs[0].tokens == last.seqs[2].tokens == alone([*PROMPT, *alone().tokens]).tokens


def test_memory_that_a_broken_sequence_left_behind_harms_nobody() -> None:
    """Its NaN stay in the blocks: nothing is cleared when they are granted again."""
    broken = rig(weights=with_bad_token(np.nan), poison=False)
    broken.submit(prompt(1, [BAD] * 30), joins=[1])
    assert broken.run().seqs[0].status is SeqStatus.FAILED
    broken.submit(prompt(1), joins=[1], leaves=[1])
    assert broken.run().seqs[0].tokens == alone().tokens


def test_rows_in_front_of_a_bad_token_are_scored_as_without_it() -> None:
    scored = Outputs(0, 4, OutputKind.LOGPROBS, (1, 2, 3, 4))
    clean, broken = rig(), rig(weights=with_bad_token(np.nan))
    for one, tokens in ((clean, PROMPT), (broken, (*PROMPT[:4], BAD, *PROMPT[5:]))):
        one.submit(Chunk(SeqId(1), 0, len(tokens), tokens, outputs=(scored,)), joins=[1])
    good = [one.logprob for one in clean.run().seqs[0].prompt_logprobs]
    assert [one.logprob for one in broken.run().seqs[0].prompt_logprobs] == pytest.approx(good, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_an_allowed_token_fails_its_sequence_only(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    nothing = RowMask(SeqId(2), len(PROMPT) - 1, bytes(-(-VOCAB_SIZE // 8)))
    masked = rig()
    masked.submit(prompt(1), prompt(2), joins=[1, 2], params=params, sampling=(nothing,))
    first, second = masked.run().seqs
    free = rig()
    free.submit(prompt(1), joins=[1], params=params)
    assert first.tokens == free.run().seqs[0].tokens
    assert second.status is SeqStatus.FAILED
    assert second.error == "bias, penalties and masks leave no token to choose behind token 10 of the sequence"


# Faults


def raising(fault: Exception, at: Sequence[int]) -> Observe:
    """Looks at the logits, and fails at some steps."""

    def observe(plan: StepPlan, _: Floats) -> None:
        if plan.step in at:
            raise fault

    return observe


def test_a_step_without_memory_fails_and_the_next_one_runs() -> None:
    short = rig(raising(MemoryError("1.5 GiB for logits"), at=[0]))
    short.submit(prompt(1), prompt(2), joins=[1, 2])
    short.submit(behind(1))
    last, first = short.run(), short.ended[0]
    error = "not enough memory for a step of 2 chunks: 1.5 GiB for logits"
    assert first.status is StepStatus.FAILED
    assert first.seqs == tuple(SeqResult(SeqId(seq), SeqStatus.FAILED, error=error) for seq in (1, 2))
    assert last.status is StepStatus.CANCELLED
    short.submit(prompt(2))
    assert short.run().seqs[0].tokens == alone().tokens


def test_a_chunk_that_was_cancelled_before_its_step_failed_stays_cancelled() -> None:
    short = rig(raising(MemoryError("no"), at=[0]))
    step = short.submit(prompt(1), prompt(2), joins=[1, 2])
    short.executor.cancel(step, [SeqId(2)])
    assert [one.status for one in short.run().seqs] == [SeqStatus.FAILED, SeqStatus.CANCELLED]


def test_a_fault_in_the_thread_is_raised_by_collect_and_nothing_hangs() -> None:
    broken = rig(raising(ZeroDivisionError("our mistake"), at=[0]), threaded=True)
    woken = threading.Event()
    broken.executor.subscribe(woken.set)
    broken.submit(prompt(1), joins=[1])
    assert woken.wait(ENOUGH_S)
    assert broken.executor.ready()
    for _ in range(2):
        with pytest.raises(InvariantError, match="the reference executor stopped: ZeroDivisionError: our mistake"):
            broken.executor.collect()
    with pytest.raises(InvariantError, match="stopped"):
        broken.submit(prompt(2), joins=[2])
    broken.executor.close()


def test_without_a_thread_a_fault_is_raised_where_it_happens() -> None:
    broken = rig(raising(ZeroDivisionError("our mistake"), at=[0]))
    broken.submit(prompt(1), joins=[1])
    with pytest.raises(ZeroDivisionError):
        broken.run()


# The thread


def test_the_thread_gives_what_turns_by_hand_give_and_wakes_whoever_waits() -> None:
    threaded = rig(threaded=True)
    wakes: list[int] = []
    threaded.executor.subscribe(lambda: wakes.append(1))
    threaded.submit(prompt(1), joins=[1])
    threaded.submit(behind(1))
    results: list[StepResult] = []

    def both() -> bool:
        results.extend(threaded.executor.collect())
        return len(results) == 2

    wait_until(both)
    threaded.executor.close()
    assert len(wakes) == 2
    assert results[0].seqs[0].tokens == alone().tokens
    assert results[1].seqs[0].tokens == alone([*PROMPT, *alone().tokens]).tokens


def test_closing_while_a_step_runs_ends_the_thread_after_its_op() -> None:
    reached, go_on = threading.Event(), threading.Event()

    def observe(plan: StepPlan, _: Floats) -> None:
        reached.set()
        assert go_on.wait(ENOUGH_S)

    busy = rig(observe, threaded=True)
    busy.submit(prompt(1), joins=[1])
    busy.submit(behind(1))
    assert reached.wait(ENOUGH_S)
    closing = threading.Thread(target=busy.executor.close)
    closing.start()
    go_on.set()
    closing.join(ENOUGH_S)
    assert not closing.is_alive()
    assert busy.executor._thread not in threading.enumerate()
    assert len(busy.executor.collect()) <= 1
    with pytest.raises(InvariantError, match="closed executor"):
        busy.submit(prompt(2), joins=[2])


def test_closing_an_idle_executor_twice_is_harmless() -> None:
    idle = rig(threaded=True)
    idle.executor.close()
    idle.executor.close()


# Loading


def test_nothing_is_submitted_before_a_model_is_there_and_a_model_is_loaded_once() -> None:
    executor = ReferenceExecutor(ReferenceConfig(threaded=False), time.monotonic)
    with pytest.raises(InvariantError, match="before a model was loaded"):
        executor.submit(StepPlan(StepId(0), LANE, (), (), (), ()))
    loaded = rig()
    with pytest.raises(InvariantError, match="loaded already"):
        loaded.executor.load({"step": MODEL.program}, MODEL.table(), MODEL.layout(4))


def test_the_fingerprint_names_the_numbers_and_the_model() -> None:
    info = rig().executor.info
    assert info.fingerprint == fingerprint("0" * 16)
    assert not info.bit_exact
