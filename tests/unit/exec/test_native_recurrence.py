"""Recurrences of the native executor: near the reference, the same bits wherever chunks end and whatever the target,
and checkpoints from which other sequences go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.unit.exec.test_reference_recurrence import (
    STATES,
    TEXT,
    Floats,
    chunk,
    defined,
    join,
    program,
    state_in,
)
from tests.unit.exec.test_reference_step import random_weights, table_of

from plait import _native
from plait.core.errors import ModelError
from plait.core.ids import BlockId, LaneId, SeqId, StepId
from plait.core.step import Join, Leave, Move, Snapshot, StepPlan, StepStatus
from plait.exec.native.executor import NativeConfig, NativeExecutor
from plait.exec.native.recurrence import by_tap
from plait.model.cache_layout import plan_layout
from plait.model.ops import Activation, Conv
from plait.model.program import Program

TWO_WORKERS = NativeConfig((-1, -1))
WHOLE = (0, len(TEXT))


def load(seen: list[Floats], config: NativeConfig = TWO_WORKERS) -> NativeExecutor:
    watched = replace(config, poison=True, observe_logits=lambda _, logits: seen.append(logits.copy()))
    executor = NativeExecutor(watched)
    made = program()
    executor.load({"step": made}, table_of(random_weights(made)), plan_layout(made, memory_bytes=1 << 16))
    return executor


def run(executor: NativeExecutor, plan: StepPlan) -> None:
    executor.submit(plan)
    while not executor.ready():
        time.sleep(0.0005)
    (result,) = executor.collect()
    assert result.status is StepStatus.COMPLETED


def logits_in_chunks(cuts: Sequence[int], config: NativeConfig = TWO_WORKERS) -> Floats:
    seen: list[Floats] = []
    executor = load(seen, config)
    for step, (start, end) in enumerate(pairwise(cuts)):
        new = (join(0),) if step == 0 else ()
        grants = (state_in(0, 3),) if step == 0 else ()
        run(executor, StepPlan(StepId(step), LaneId(0), new, grants, (), (chunk(0, start, end),)))
    executor.close()
    return np.concatenate(seen)


def test_a_recurrent_layer_is_what_its_definition_says() -> None:
    expected = defined(random_weights(program()))
    assert np.abs(logits_in_chunks(WHOLE) - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("cuts", [(0, 4, 5, 11), (0, 1, 2, 3, 10, 11), tuple(range(len(TEXT) + 1))])
@pytest.mark.parametrize("target", _native.targets())
def test_neither_chunks_nor_the_target_nor_the_cut_of_work_change_a_bit(cuts: tuple[int, ...], target: str) -> None:
    config = NativeConfig((-1, -1), target=target, blocking_seed=len(cuts))
    assert logits_in_chunks(cuts, config).tobytes() == logits_in_chunks(WHOLE).tobytes()


def test_a_snapshot_inside_a_chunk_is_where_another_sequence_goes_on() -> None:
    seen: list[Floats] = []
    executor = load(seen)
    places = [Snapshot(len(TEXT) - 1, STATES, BlockId(6)), Snapshot(3, STATES, BlockId(5))]
    whole = chunk(0, 0, len(TEXT), places)
    run(executor, StepPlan(StepId(0), LaneId(0), (join(0),), (state_in(0, 3),), (), (whole,)))
    moves = (Move(STATES, BlockId(5), 0, BlockId(7), 0, 1),)
    roster: tuple[Join | Leave, ...] = (Leave(SeqId(0)), join(1))
    run(executor, StepPlan(StepId(1), LaneId(0), roster, (state_in(1, 7),), moves, (chunk(1, 4, len(TEXT)),)))
    executor.close()
    assert seen[1].tobytes() == seen[0][4:].tobytes()


def test_sequences_of_a_step_keep_their_states_apart() -> None:
    """One begins in a block that another left, one goes on, both in one step."""
    seen: list[Floats] = []
    executor = load(seen)
    first = StepPlan(StepId(0), LaneId(0), (join(0), join(1)), (state_in(0, 3), state_in(1, 4)), (), (chunk(0, 0, 5),))
    run(executor, replace(first, chunks=(chunk(0, 0, 5), chunk(1, 0, 2))))
    roster: tuple[Join | Leave, ...] = (Leave(SeqId(1)), join(2))
    both = (chunk(2, 0, len(TEXT)), chunk(0, 5, len(TEXT)))
    run(executor, StepPlan(StepId(1), LaneId(0), roster, (state_in(2, 4),), (), both))
    executor.close()
    expected = logits_in_chunks(WHOLE)
    assert seen[1].tobytes() == np.concatenate([expected, expected[5:]]).tobytes()


def test_the_weights_of_a_convolution_lie_tap_after_tap() -> None:
    assert by_tap(np.arange(6, dtype=np.float32), 3).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("changed", [{"activation": Activation.GELU}, {"width": 17}])
def test_a_form_of_convolution_that_it_does_not_have_is_refused(changed: dict[str, object]) -> None:
    made = program()
    ops = tuple(replace(op, **changed) if isinstance(op, Conv) else op for op in made.ops)  # type: ignore[arg-type]
    refused = Program(made.name, ops, made.values, made.spans, made.weights, made.cache_groups)
    with pytest.raises(ModelError, match="needs the operation Conv, which the native executor does not have in this"):
        NativeExecutor(NativeConfig((-1,))).load(
            {"step": refused}, table_of(random_weights(made)), plan_layout(made, memory_bytes=1 << 16)
        )
