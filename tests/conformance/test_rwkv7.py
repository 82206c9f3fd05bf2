"""The real tiny RWKV-7 on every executor: the logits published with it, and the same bits however a text is cut.

The model (829,888 parameters, a token a byte) and its logits are in tests/data/rwkv7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from time import monotonic

import numpy as np
import numpy.typing as npt
import pytest
from tests.conformance.rwkv_forward import Forward

from plait.core.clock import RealClock
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import (
    STEP_PROGRAM,
    BlockGrant,
    Chunk,
    Join,
    Leave,
    Move,
    OutputKind,
    Outputs,
    Snapshot,
    StepPlan,
    StepStatus,
)
from plait.exec.loading import LoadableExecutor, LogitsObserver
from plait.exec.native import presence
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor
from plait.model.cache_layout import plan_layout
from plait.model.config import config_from_hf
from plait.model.families import build_program
from plait.model.program import Program, expected_weights
from plait.weights.hf_names import load_hf_weights
from plait.weights.safetensors import read_checkpoint
from plait.weights.table import WeightTable

Floats = npt.NDArray[np.float32]
FOLDER = Path(__file__).parents[1] / "data" / "rwkv7"
STATES = GroupId(0)
TEXT = tuple(b'"Well," said the old man, "it was in the spring that they came over the hills."')
PUBLISHED_TEXT = tuple(b'"in')
TARGETS = ("baseline", "avx2", "avx512")


def reference(observe: LogitsObserver) -> LoadableExecutor:
    return ReferenceExecutor(ReferenceConfig(poison=True, observe_logits=observe), monotonic)


def native(target: str) -> Callable[[LogitsObserver], LoadableExecutor]:
    def make(observe: LogitsObserver) -> LoadableExecutor:
        from plait.exec.native.executor import NativeConfig, NativeExecutor

        config = NativeConfig((-1, -1), target=target, blocking_seed=5, poison=True, observe_logits=observe)
        return NativeExecutor(config)

    return make


def _executors() -> dict[str, Callable[[LogitsObserver], LoadableExecutor]]:
    made = {"reference": reference}
    if presence.missing() is None:
        from plait.exec.native.executor import usable_targets

        made |= {f"native {target}": native(target) for target in usable_targets()}
    return made


EXECUTORS = _executors()


@cache
def model() -> tuple[Program, WeightTable]:
    checkpoint = read_checkpoint(FOLDER)
    config = config_from_hf(checkpoint.config)
    program = build_program(config)
    weights = load_hf_weights(checkpoint.tensors, expected_weights(program), config, FOLDER, "0" * 64)
    return program, weights


class Run:
    """An executor with the model in it; `logits` are those of the last step."""

    def __init__(self, executor: str) -> None:
        self._clock = RealClock()
        self._steps = 0
        self.logits: Floats = np.zeros((0, 0), np.float32)
        program, weights = model()
        self._executor = EXECUTORS[executor](self._see)
        self._executor.load({STEP_PROGRAM: program}, weights, plan_layout(program, memory_bytes=8 << 20))

    def _see(self, _: StepPlan, logits: Floats) -> None:
        self.logits = logits.copy()

    def step(
        self,
        *chunks: Chunk,
        roster: Sequence[Join | Leave] = (),
        moves: Sequence[Move] = (),
        into: Mapping[SeqId, int] | None = None,
    ) -> Floats:
        """Sequence s has its state in block s, if `into` says nothing else."""
        blocks = into or {}
        grants = tuple(
            BlockGrant(one.seq, STATES, 0, (BlockId(blocks.get(one.seq, one.seq)),))
            for one in roster
            if isinstance(one, Join)
        )
        plan = StepPlan(StepId(self._steps), LaneId(0), tuple(roster), grants, tuple(moves), chunks)
        self._steps += 1
        self._executor.submit(plan)
        while not self._executor.ready():
            self._clock.wait(until=self._clock.now() + 0.0005)
        (result,) = self._executor.collect()
        assert result.status is StepStatus.COMPLETED
        return self.logits

    def close(self) -> None:
        self._executor.close()


def joined(seq: int) -> Join:
    return Join(SeqId(seq), seq, SamplingParams(temperature=0.0), 0, 0, len(TEXT))


def part(seq: int, start: int, end: int, text: Sequence[int] = TEXT, snapshots: Sequence[Snapshot] = ()) -> Chunk:
    rows = Outputs(0, end - start, OutputKind.LOGPROBS, (0,) * (end - start))
    return Chunk(SeqId(seq), start, end - start, tuple(text[start:end]), outputs=(rows,), snapshots=tuple(snapshots))


@pytest.fixture(params=EXECUTORS)
def run(request: pytest.FixtureRequest) -> object:
    made = Run(request.param)
    yield made
    made.close()


def test_logits_are_those_that_were_published_with_the_model(run: Run) -> None:
    published = np.fromfile(FOLDER / "expected_logits.bin", "<f4")
    logits = run.step(part(0, 0, 3, PUBLISHED_TEXT), roster=[joined(0)])
    assert np.abs(logits[-1] - published).max() < 2e-5


def test_logits_of_a_longer_text_are_the_models_equations(run: Run) -> None:
    program, weights = model()
    exact = Forward({name: weights[name].dequantize() for name in program.weights}, head_dim=64).logits(TEXT)
    logits = run.step(part(0, 0, len(TEXT)), roster=[joined(0)])
    assert np.abs(logits - exact).max() < 1e-4 * np.abs(exact).max()


@pytest.mark.parametrize("cuts", [(0, 1, 2, 3, 79), (0, 40, 41, 79), tuple(range(80))], ids=len)
def test_where_chunks_end_and_what_is_beside_them_changes_no_bit(run: Run, cuts: tuple[int, ...]) -> None:
    whole = run.step(part(0, 0, len(TEXT)), roster=[joined(0)])
    pieces = []
    other = 0
    for number, (start, end) in enumerate(pairwise(cuts)):
        roster = [joined(1), joined(2)] if number == 0 else []
        beside = part(2, other, other + 1 + number % 7) if other + 8 < len(TEXT) else None
        other = beside.start + beside.num_tokens if beside is not None else other
        mine = part(1, start, end)
        logits = run.step(*([mine] if beside is None else [beside, mine]), roster=roster)
        pieces.append(logits[-(end - start) :])
    assert np.concatenate(pieces).tobytes() == whole.tobytes()


def test_snapshots_inside_a_chunk_are_where_others_go_on(run: Run) -> None:
    kept = [Snapshot(9, STATES, BlockId(5)), Snapshot(10, STATES, BlockId(6)), Snapshot(78, STATES, BlockId(7))]
    whole = run.step(part(0, 0, len(TEXT), snapshots=kept), roster=[joined(0)])
    for seq, (block, start) in enumerate(((5, 10), (6, 11)), start=1):
        behind = run.step(
            part(seq, start, len(TEXT)),
            roster=[joined(seq)],
            moves=[Move(STATES, BlockId(block), 0, BlockId(seq), 0, 1)],
        )
        assert behind.tobytes() == whole[start:].tobytes()


def test_who_leaves_and_joins_anew_gets_the_same_bits(run: Run) -> None:
    """What a preemption is to an executor: the state is given up, its block used by another, all computed again."""
    whole = run.step(part(0, 0, len(TEXT)), roster=[joined(0)])
    run.step(part(1, 0, 33), roster=[joined(1)])
    run.step(part(3, 0, 20, TEXT[::-1]), roster=[Leave(SeqId(1)), joined(3)], into={SeqId(3): 1})
    run.step(part(1, 0, 50), roster=[Leave(SeqId(3)), joined(1)])
    assert run.step(part(1, 50, len(TEXT))).tobytes() == whole[50:].tobytes()


@pytest.mark.skipif(presence.missing() is not None, reason="needs the native runtime, and that a C++ compiler")
def test_every_instruction_set_gives_the_same_bits() -> None:
    made = []
    for name in EXECUTORS:
        if name != "reference":
            run = Run(name)
            made.append(run.step(part(0, 0, len(TEXT)), roster=[joined(0)]).tobytes())
            run.close()
    assert len(set(made)) == 1
