"""Trials: how long steps take on the real runtime when operations are cut this way or that.

Owns a tape of one product over and over, with the model's own weights, and steps of the whole model. Chooses nothing
(`search.py` does). Times are the runtime's own, from the start of a step to its end.
Invariant: weights of one product's trial are as cold as they are when the whole model runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plait import _native
from plait.core.errors import PlaitError
from plait.core.ids import BlockId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import BlockGrant, Chunk, Join, Leave, StepPlan
from plait.exec.native.blocking import Blocking, GemmBlocks, UnitSizes, product_names, row_bucket
from plait.exec.native.executor import NativeExecutor
from plait.exec.native.packing import pack
from plait.exec.native.tape import (
    NO_OPERAND,
    NONE,
    BufferSpec,
    Indices,
    Operand,
    Operands,
    OpKind,
    OpSpec,
    RowSpace,
    Scheme,
    Tape,
    row_bytes,
)
from plait.model.cache_layout import CacheLayout, GroupLayout
from plait.model.ops import KEY_TILE
from plait.weights.table import WeightTable

COLD_BYTES = 96 << 20
"""More than the caches of most machines. A smaller model is that warm when it serves, too."""
FEW_BYTES = 8 << 20
"""Where many rows multiply the same weights, it hardly matters where these come from, and time does."""
MANY_ROWS = 32
PATIENCE_S = 60.0
PANEL_COLUMNS = 16
MOST_FILLED = 8
FILL_S = 3.0
"""Contexts that are computed for steps to stand behind, and how long that may take."""
MOST_TOKENS = 128
"""Of one sequence in a step of a mix."""

_NO_SAMPLING = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Model:
    """What trials of products are made from."""

    tape: Tape
    weights: WeightTable
    schemes: Mapping[str, Scheme]
    cores: tuple[int, ...]
    target: str
    max_step_tokens: int

    def products(self) -> dict[str, list[OpSpec]]:
        """Operations of the tape by the name of their product, in order."""
        found: dict[str, list[OpSpec]] = {}
        for index, name in product_names(self.tape, self.schemes, self.weights).items():
            found.setdefault(name, []).append(self.tape.ops[index])
        return found

    def num_bytes(self, op: OpSpec) -> int:
        return sum(self.weights[self.tape.matrices[matrix]].num_bytes for matrix in op.matrix if matrix != NONE)


class ProductTrial:
    """A product of a model, with `ops` that all have its name."""

    def __init__(self, model: Model, ops: Sequence[OpSpec]) -> None:
        whole = sum(model.weights[name].num_bytes for name in model.tape.matrices)
        copies = -(-min(COLD_BYTES, whole) // model.num_bytes(ops[0]))
        repeated = [ops[index % len(ops)] for index in range(max(1, copies))]
        few = max(1, FEW_BYTES // model.num_bytes(ops[0]))
        names = tuple(model.tape.matrices[matrix] for op in repeated for matrix in op.matrix if matrix != NONE)
        cold, vectors = _product_tape(model, repeated, names)
        panels = pack(cold, model.weights, model.schemes, len(model.cores))
        self._cold = _Runner(model, cold, panels, vectors)
        self._warm = _Runner(model, _shortened(cold, few), panels, vectors) if few < copies else self._cold
        of_one = names[: len(names) // len(repeated)]
        counts = [-(-model.weights[name].shape[0] // PANEL_COLUMNS) for name in of_one]
        self.num_panels = counts[0] if ops[0].kind is OpKind.GEMM_GLU else sum(counts)
        """Of all its matrices; a unit of a gated product takes the same panels of both."""

    def seconds(self, num_rows: int, blocks: GemmBlocks | None) -> float:
        """Of one step; None: cut by rough cost."""
        return self._runner(num_rows).seconds(num_rows, blocks)

    def num_products(self, num_rows: int) -> int:
        """How many products such a step has; what fills their input takes a little of it, too."""
        return len(self._runner(num_rows).products)

    def _runner(self, num_rows: int) -> _Runner:
        return self._cold if num_rows <= MANY_ROWS else self._warm

    def close(self) -> None:
        self._cold.runtime.close()
        self._warm.runtime.close()


class _Runner:
    """A runtime for one tape."""

    def __init__(self, model: Model, tape: Tape, panels: _native.Panels, vectors: list[np.ndarray]) -> None:
        cores, most = list(model.cores), model.max_step_tokens
        self.runtime = _native.Runtime(
            tape, panels, vectors, [], [], 0, cores, 1, most, model.target, 0, False, False, 0
        )
        self.products = [index for index, op in enumerate(tape.ops) if op.kind in (OpKind.GEMM, OpKind.GEMM_GLU)]
        self._seat = self.runtime.join(Join(SeqId(0), 0, _NO_SAMPLING, 0, 0, 0))
        self._plans: dict[int, StepPlan] = {}
        self._blocks: tuple[int, GemmBlocks | None] | None = None

    def seconds(self, num_rows: int, blocks: GemmBlocks | None) -> float:
        if num_rows not in self._plans:
            chunk = Chunk(SeqId(0), 0, num_rows, (0,) * num_rows)
            self._plans[num_rows] = StepPlan(StepId(0), LaneId(0), (), (), (), (chunk,))
        if self._blocks != (num_rows, blocks):
            bucket = row_bucket(num_rows)
            numbers = () if blocks is None else (blocks.most_rows, blocks.panels_per_block)
            self.runtime.retune(UnitSizes(), [(op, bucket, *numbers) for op in self.products if len(numbers) == 2])
            self._blocks = (num_rows, blocks)
        self.runtime.submit(self._plans[num_rows], [self._seat], [])
        if not self.runtime.wait_finished(PATIENCE_S):
            raise PlaitError(
                f"a product of {num_rows} rows did not end within {PATIENCE_S:.0f} s; is the machine busy?"
            )
        ((_, _, start_s, end_s, _, _),) = self.runtime.collect()
        return end_s - start_s


def _product_tape(model: Model, ops: Sequence[OpSpec], names: tuple[str, ...]) -> tuple[Tape, list[np.ndarray]]:
    """Operations alike, each with matrices of its own, behind what fills their input."""
    made = _TapeMaker(model)
    first = ops[0]
    depth = model.weights[names[0]].shape[1]
    floats = made.filled(depth)
    x = floats
    row_group = model.schemes[names[0]].row_group
    if row_group:
        x = made.buffer(depth, group_size=row_group)
        made.ops.append(OpSpec(OpKind.QUANTIZE, in_=_operands(floats), out=_operands(NO_OPERAND, x)))
    out = [made.like(operand) for operand in first.out]
    residual = NO_OPERAND
    if first.in_[1].buffer != NONE:
        in_place = first.in_[1].buffer == first.out[0].buffer
        residual = made.filled(first.in_[1].width, out[0] if in_place else None)
    biases = [made.vector(first.out[i].width) if first.weight[i] != NONE else NONE for i in range(3)]
    matrix = 0
    for op in ops:
        used = sum(one != NONE for one in op.matrix)
        numbers = [*range(matrix, matrix + used), NONE, NONE][:3]
        matrix += used
        made.ops.append(
            replace(
                op,
                space=RowSpace.TOKENS,
                in_=_operands(x, residual),
                out=(out[0], out[1], out[2]),
                matrix=_three(numbers),
                weight=_three(biases),
            )
        )
    return made.finish(floats, names), made.vectors


class _TapeMaker:
    def __init__(self, model: Model) -> None:
        self.ops: list[OpSpec] = []
        self.vectors: list[np.ndarray] = []
        self._model = model
        self._buffers: list[BufferSpec] = []
        self._next_byte = 0

    def buffer(self, width: int, *, group_size: int = 0) -> Operand:
        self._buffers.append(BufferSpec(RowSpace.TOKENS, group_size, width, self._next_byte))
        self._next_byte += row_bytes(width, group_size)
        return Operand(len(self._buffers) - 1, 0, width)

    def like(self, operand: Operand) -> Operand:
        """A buffer of its own for what an operation of the model's tape writes."""
        if operand.buffer == NONE:
            return NO_OPERAND
        return self.buffer(operand.width, group_size=self._model.tape.buffers[operand.buffer].group_size)

    def vector(self, size: int) -> int:
        self.vectors.append(np.linspace(-1.0, 1.0, size, dtype=np.float32))
        return len(self.vectors) - 1

    def filled(self, width: int, into: Operand | None = None) -> Operand:
        """Floats that are the same in every row."""
        operand = self.buffer(width) if into is None else into
        self.ops.append(OpSpec(OpKind.EMBED, out=_operands(operand), weight=(self.vector(width), NONE, NONE)))
        return operand

    def finish(self, x: Operand, names: tuple[str, ...]) -> Tape:
        """With the end that a tape must have, which steps without outputs never reach."""
        self._buffers.append(BufferSpec(RowSpace.OUTPUTS, 0, x.width, 0))
        selected = Operand(len(self._buffers) - 1, 0, x.width)
        first_output_op = len(self.ops)
        self.ops += [
            OpSpec(OpKind.SELECT, RowSpace.OUTPUTS, in_=_operands(x), out=_operands(selected)),
            OpSpec(OpKind.SAMPLE, RowSpace.OUTPUTS, in_=_operands(selected), vocab_size=x.width),
        ]
        return Tape(tuple(self.ops), tuple(self._buffers), names, (), (), first_output_op, x.width)


def _shortened(tape: Tape, num_products: int) -> Tape:
    """With the first products only."""
    ends = [index + 1 for index, op in enumerate(tape.ops) if op.kind in (OpKind.GEMM, OpKind.GEMM_GLU)]
    end = ends[num_products - 1]
    return replace(tape, ops=(*tape.ops[:end], *tape.ops[tape.first_output_op :]), first_output_op=end)


def _operands(first: Operand, second: Operand = NO_OPERAND) -> Operands:
    return (first, second, NO_OPERAND)


def _three(numbers: Sequence[int]) -> Indices:
    first, second, third = numbers
    return (first, second, third)


@dataclass(frozen=True, slots=True)
class Mix:
    """A step of the whole model: `chunks` are tokens and how many stand before them, whole key tiles."""

    name: str
    chunks: tuple[tuple[int, int], ...]
    is_shared: bool = False
    """All stand behind the same tokens."""


def mixes_for(max_positions: int, max_step_tokens: int, max_rows: int) -> tuple[Mix, ...]:
    """Steps as they occur when a server decodes, reads prompts, and does both."""
    few, many = min(8, max_step_tokens, max_rows), min(32, max_step_tokens, max_rows)
    chunk = max(1, min(MOST_TOKENS, max_step_tokens - few, max_positions // 2))
    behind = min(1024, max_positions - chunk) // KEY_TILE * KEY_TILE
    beside = ((1, behind),) * min(few, max_step_tokens - chunk, max_rows - 1)
    return (
        Mix(f"{few} decodes", ((1, behind),) * few),
        Mix(f"a chunk of {chunk} tokens", ((chunk, behind),)),
        Mix(f"a chunk of {chunk} tokens and {len(beside)} decodes", ((chunk, behind), *beside)),
        Mix(f"{many} decodes that share a prefix", ((1, behind),) * many, True),
    )


class StepTrials:
    """Steps of mixes on a loaded executor, without outputs: the head's product has a trial of its own.

    What stands before their tokens is computed once, for a few sequences; more read it in another order of blocks.
    """

    def __init__(self, executor: NativeExecutor, layout: CacheLayout, mixes: Sequence[Mix]) -> None:
        self._executor = executor
        self._layout = layout
        self._mixes = mixes
        self._blocking = Blocking()
        self._next_seq = 0
        self._next_step = 0
        self._joined: list[SeqId] = []
        self._behind = max(behind for mix in mixes for _, behind in mix.chunks)
        self._num_filled = 0
        self._fill()
        # Twice, because the first one takes memory from the system.
        self._usual_s = [min(self._run(mix), self._run(mix)) for mix in mixes]

    @property
    def sample_s(self) -> float:
        """How long one sample of `seconds` takes."""
        return sum(self._usual_s)

    def seconds(self, blocking: Blocking) -> float:
        """One step of every mix, each by how long it usually takes."""
        return statistics.fmean(
            self.seconds_of(mix, blocking) / usual for mix, usual in zip(self._mixes, self._usual_s, strict=True)
        )

    def seconds_of(self, mix: Mix, blocking: Blocking) -> float:
        if blocking != self._blocking:
            self._executor.retune(blocking)
            self._blocking = blocking
        return self._run(mix)

    def _fill(self) -> None:
        took_s = 0.0
        most = self._executor.info.max_step_tokens
        while self._behind > 0 and self._num_filled < MOST_FILLED and took_s < FILL_S:
            blocks = [self._filled_blocks(one, self._num_filled) for one in self._layout.groups]
            self._num_filled += 1
            for start in range(0, self._behind, most):
                chunk = (min(most, self._behind - start), start)
                took_s += self._step("filling the cache", [chunk], [blocks], joins=start == 0)

    def _run(self, mix: Mix) -> float:
        tables = [
            [self._table(one, place, behind, tokens, is_shared=mix.is_shared) for one in self._layout.groups]
            for place, (tokens, behind) in enumerate(mix.chunks)
        ]
        return self._step(mix.name, mix.chunks, tables, joins=True)

    def _step(
        self, name: str, sizes: Sequence[tuple[int, int]], tables: list[list[list[int]]], *, joins: bool
    ) -> float:
        """Seconds of a step of chunks; with `joins` of new sequences, in the place of those of the step before."""
        roster: list[Join | Leave] = []
        grants: list[BlockGrant] = []
        if joins:
            roster += [Leave(seq) for seq in self._joined]
            self._joined = [SeqId(self._next_seq + place) for place in range(len(sizes))]
            self._next_seq += len(sizes)
            for place, seq in enumerate(self._joined):
                roster.append(Join(seq, place, _NO_SAMPLING, 0, 0, sum(sizes[place])))
                grants += [
                    BlockGrant(seq, one.group.id, 0, tuple(map(BlockId, table)))
                    for one, table in zip(self._layout.groups, tables[place], strict=True)
                ]
        chunks = [
            Chunk(seq, start, tokens, (0,) * tokens) for seq, (tokens, start) in zip(self._joined, sizes, strict=True)
        ]
        self._executor.submit(
            StepPlan(StepId(self._next_step), LaneId(0), tuple(roster), tuple(grants), (), tuple(chunks))
        )
        self._next_step += 1
        if not self._executor.wait_finished(PATIENCE_S):
            raise PlaitError(f"{name} did not end within {PATIENCE_S:.0f} s; is the machine busy?")
        (result,) = self._executor.collect()
        return result.end_s - result.start_s

    def _filled_blocks(self, layout: GroupLayout, context: int) -> list[int]:
        count = layout.blocks_for(self._behind)
        return list(range(context * count, (context + 1) * count))

    def _table(self, layout: GroupLayout, place: int, behind: int, num_tokens: int, *, is_shared: bool) -> list[int]:
        """Blocks that were filled, then some of its own."""
        filled: list[int] = []
        if behind > 0:
            filled = self._filled_blocks(layout, 0 if is_shared else place % self._num_filled)
            turned = 0 if is_shared else place // self._num_filled
            filled = [*filled[turned:], *filled[:turned]][: layout.blocks_for(behind)]
        own = layout.blocks_for(num_tokens)
        first = self._num_filled * layout.blocks_for(self._behind) + place * layout.blocks_for(MOST_TOKENS)
        return [*filled, *range(first, first + own)]


def memory_for(bytes_per_token: int, tokens_per_block: int, num_groups: int, mixes: Sequence[Mix]) -> int:
    """Of a cache in which all of them have room."""
    sequences = max(len(mix.chunks) for mix in mixes)
    behind = max(behind for mix in mixes for _, behind in mix.chunks)
    slots = MOST_FILLED * behind + sequences * (MOST_TOKENS + tokens_per_block) + tokens_per_block
    return num_groups * bytes_per_token * slots
