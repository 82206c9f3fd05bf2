"""RWKV-7 of the reference executor: the model's equations in double precision, wherever chunks end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from tests.conformance.rwkv_forward import Forward
from tests.unit.exec.test_reference_recurrence import chunk, join, run, state_in
from tests.unit.exec.test_reference_step import TEXT, load
from tests.unit.model.programs import rwkv_program

from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import Leave, Move, Snapshot, StepPlan

Floats = npt.NDArray[np.float32]
STATES = GroupId(0)


def weights() -> dict[str, Floats]:
    """Large enough that decays, rates and gates are far from where they start."""
    random = np.random.default_rng(11)
    return {
        name: (random.standard_normal(spec.shape) / np.sqrt(spec.shape[-1] if len(spec.shape) > 1 else 4)).astype("f4")
        for name, spec in rwkv_program().weights.items()
    }


def logits_in_chunks(cuts: Sequence[int]) -> Floats:
    seen: list[Floats] = []
    executor = load(rwkv_program(), weights(), seen)
    for step, (start, end) in enumerate(pairwise(cuts)):
        new = (join(0),) if step == 0 else ()
        grants = (state_in(0, 3),) if step == 0 else ()
        run(executor, StepPlan(StepId(step), LaneId(0), new, grants, (), (chunk(0, start, end),)))
    return np.concatenate(seen)


def test_the_program_is_the_models_equations() -> None:
    expected = Forward(weights(), head_dim=4).logits(TEXT)
    assert np.abs(logits_in_chunks((0, len(TEXT))) - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("cuts", [(0, 4, 5, 11), (0, 1, 2, 3, 10, 11), tuple(range(len(TEXT) + 1))])
def test_where_chunks_end_changes_no_bit(cuts: tuple[int, ...]) -> None:
    assert logits_in_chunks(cuts).tobytes() == logits_in_chunks((0, len(TEXT))).tobytes()


def test_a_snapshot_holds_the_shifted_rows_too() -> None:
    seen: list[Floats] = []
    executor = load(rwkv_program(), weights(), seen)
    whole = chunk(0, 0, len(TEXT), [Snapshot(3, STATES, BlockId(5))])
    run(executor, StepPlan(StepId(0), LaneId(0), (join(0),), (state_in(0, 3),), (), (whole,)))
    moves = (Move(STATES, BlockId(5), 0, BlockId(7), 0, 1),)
    roster = (Leave(SeqId(0)), join(1))
    run(executor, StepPlan(StepId(1), LaneId(0), roster, (state_in(1, 7),), moves, (chunk(1, 4, len(TEXT)),)))
    assert seen[1].tobytes() == seen[0][4:].tobytes()
