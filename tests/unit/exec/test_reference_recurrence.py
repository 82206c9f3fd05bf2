"""Convolutions and scans of the reference executor: the written definition in double precision, wherever chunks end,
and checkpoints from which another sequence goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from tests.unit.exec.test_reference_step import TEXT, VOCAB_SIZE, WIDTH, Doubles, Weights, load, random_weights

from plait.core.errors import InvariantError, ModelError
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import BlockGrant, Chunk, Join, Leave, Move, OutputKind, Outputs, Snapshot, StepPlan, StepStatus
from plait.exec.reference.executor import ReferenceExecutor
from plait.model.builder import ProgramBuilder
from plait.model.ops import Activation, ScanKind
from plait.model.program import CacheGroup, GroupKind, Program

Floats = npt.NDArray[np.float32]
HEADS, HEAD_DIM, STATE_DIM, GROUPS, CONV = 4, 2, 6, 2, 4
INNER, CHANNELS = HEADS * HEAD_DIM, HEADS * HEAD_DIM + 2 * GROUPS * STATE_DIM
STATES = GroupId(0)


def program(kind: ScanKind = ScanKind.MAMBA2) -> Program:
    """One recurrent layer: everything that a Mamba-2 mixer has before its norm."""
    b = ProgramBuilder("made-up")
    b.span("all", "all")
    x = b.embed("embed", VOCAB_SIZE, WIDTH)
    parts = (CHANNELS * (CONV - 1), INNER * STATE_DIM)
    group = b.group(CacheGroup(STATES, "states", GroupKind.STATE, 1, state_parts=parts))
    mixed = b.linear(x, "in", CHANNELS + HEADS)
    rows = b.view(mixed, 0, CHANNELS, "rows")
    rows = b.conv(rows, "conv", CONV, group, 0, bias="conv.bias", activation=Activation.SILU)
    inputs = (
        b.view(rows, 0, INNER, "x"),
        b.view(mixed, CHANNELS, HEADS, "dt"),
        b.view(rows, INNER, GROUPS * STATE_DIM, "b"),
        b.view(rows, INNER + GROUPS * STATE_DIM, GROUPS * STATE_DIM, "c"),
    )
    weights = {"a_log": (HEADS,), "skip": (HEADS,), "dt_bias": (HEADS,)}
    y = b.scan(inputs, kind, weights, (HEADS, HEAD_DIM, STATE_DIM), group, 0, part=1, groups=GROUPS)
    b.sample(b.linear(b.select(b.add(x, b.linear(y, "out", WIDTH))), "head", VOCAB_SIZE))
    return b.finish()


def defined(weights: Weights) -> Doubles:
    """Logits behind every token of TEXT, as the definitions read."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = w["embed"][list(TEXT)]
    mixed = x @ w["in"].T
    padded = np.concatenate([np.zeros((CONV - 1, CHANNELS)), mixed[:, :CHANNELS]])
    rows = sum(padded[tap : tap + len(TEXT)] * w["conv"][:, tap] for tap in range(CONV)) + w["conv.bias"]
    rows = rows / (1 + np.exp(-rows))
    state = np.zeros((HEADS, HEAD_DIM, STATE_DIM))
    ys = []
    for row, dt in zip(rows, mixed[:, CHANNELS:], strict=True):
        heads = row[:INNER].reshape(HEADS, HEAD_DIM)
        b, c = row[INNER:].reshape(2, GROUPS, STATE_DIM)
        y = np.zeros((HEADS, HEAD_DIM))
        for h in range(HEADS):
            g = h // (HEADS // GROUPS)
            delta = np.log1p(np.exp(dt[h] + w["dt_bias"][h]))
            state[h] = np.exp(-delta * np.exp(w["a_log"][h])) * state[h] + delta * np.outer(heads[h], b[g])
            y[h] = state[h] @ c[g] + w["skip"][h] * heads[h]
        ys.append(y.ravel())
    return np.asarray((x + np.asarray(ys) @ w["out"].T) @ w["head"].T)


def chunk(seq: int, start: int, end: int, snapshots: Sequence[Snapshot] = ()) -> Chunk:
    rows = Outputs(0, end - start, OutputKind.LOGPROBS, (0,) * (end - start))
    return Chunk(SeqId(seq), start, end - start, TEXT[start:end], outputs=(rows,), snapshots=tuple(snapshots))


def join(seq: int) -> Join:
    return Join(SeqId(seq), seq, SamplingParams(temperature=0.0), 0, 0, len(TEXT))


def state_in(seq: int, block: int) -> BlockGrant:
    return BlockGrant(SeqId(seq), STATES, 0, (BlockId(block),))


def run(executor: ReferenceExecutor, plan: StepPlan) -> None:
    executor.submit(plan)
    while executor.advance():
        pass
    (result,) = executor.collect()
    assert result.status is StepStatus.COMPLETED


def logits_in_chunks(cuts: Sequence[int]) -> Floats:
    seen: list[Floats] = []
    executor = load(program(), random_weights(program()), seen)
    for step, (start, end) in enumerate(pairwise(cuts)):
        new = (join(0),) if step == 0 else ()
        grants = (state_in(0, 3),) if step == 0 else ()
        run(executor, StepPlan(StepId(step), LaneId(0), new, grants, (), (chunk(0, start, end),)))
    return np.concatenate(seen)


def test_a_recurrent_layer_is_what_its_definition_says() -> None:
    expected = defined(random_weights(program()))
    assert np.abs(logits_in_chunks((0, len(TEXT))) - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("cuts", [(0, 4, 5, 11), (0, 1, 2, 3, 10, 11), tuple(range(len(TEXT) + 1))])
def test_where_chunks_end_changes_no_bit(cuts: tuple[int, ...]) -> None:
    assert logits_in_chunks(cuts).tobytes() == logits_in_chunks((0, len(TEXT))).tobytes()


def test_a_snapshot_inside_a_chunk_is_where_another_sequence_goes_on() -> None:
    seen: list[Floats] = []
    executor = load(program(), random_weights(program()), seen)
    whole = chunk(0, 0, len(TEXT), [Snapshot(3, STATES, BlockId(5)), Snapshot(len(TEXT) - 1, STATES, BlockId(6))])
    run(executor, StepPlan(StepId(0), LaneId(0), (join(0),), (state_in(0, 3),), (), (whole,)))
    moves = (Move(STATES, BlockId(5), 0, BlockId(7), 0, 1),)
    roster = (Leave(SeqId(0)), join(1))
    run(executor, StepPlan(StepId(1), LaneId(0), roster, (state_in(1, 7),), moves, (chunk(1, 4, len(TEXT)),)))
    assert seen[1].tobytes() == seen[0][4:].tobytes()


def test_a_block_is_used_again_as_if_it_were_new() -> None:
    seen: list[Floats] = []
    executor = load(program(), random_weights(program()), seen)
    for step in range(2):
        roster = (Leave(SeqId(0)), join(1)) if step else (join(0),)
        plan = StepPlan(StepId(step), LaneId(0), roster, (state_in(step, 3),), (), (chunk(step, 0, len(TEXT)),))
        run(executor, plan)
    assert seen[1].tobytes() == seen[0].tobytes()


@pytest.mark.parametrize(
    ("snapshots", "fault"),
    [
        ([Snapshot(0, STATES, BlockId(1 << 20))], "no state"),
        ([Snapshot(0, GroupId(1), BlockId(1))], "no state"),
        ([Snapshot(0, STATES, BlockId(1)), Snapshot(0, STATES, BlockId(2))], "two snapshots"),
        ([Snapshot(0, STATES, BlockId(1)), Snapshot(1, STATES, BlockId(1))], "two snapshots"),
    ],
)
def test_snapshots_that_lead_nowhere_are_refused(snapshots: list[Snapshot], fault: str) -> None:
    executor = load(program(), random_weights(program()), [])
    plan = StepPlan(StepId(0), LaneId(0), (join(0),), (state_in(0, 3),), (), (chunk(0, 0, 4, snapshots),))
    with pytest.raises(InvariantError, match=fault):
        executor.submit(plan)


def test_a_kind_of_scan_that_is_not_there_is_refused() -> None:
    b = ProgramBuilder("made-up")
    b.span("all", "all")
    x = b.embed("embed", VOCAB_SIZE, 4)
    group = b.group(CacheGroup(STATES, "states", GroupKind.STATE, 1, state_parts=(4 * 3,)))
    weights = {"a_log": (4, 3), "skip": (4,), "dt_bias": (4,)}
    inputs = (x, x, b.linear(x, "b", 3), b.linear(x, "c", 3))
    y = b.scan(inputs, ScanKind.MAMBA1, weights, (4, 1, 3), group, 0)
    b.sample(b.linear(b.select(y), "head", VOCAB_SIZE))
    made = b.finish()
    with pytest.raises(ModelError, match="Scan"):
        load(made, random_weights(made), [])
