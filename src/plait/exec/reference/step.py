"""One step of the reference executor: a plan carried out op by op.

Owns the values of a step in flight. Yields after every op, so that whoever drives it can suspend the lane or cancel
rows in between; the order inside is that of `plait.core.step`. Knows nothing about lanes or threads.
Invariant: a cancelled chunk writes nothing from the next op on, and every chunk of the plan has exactly one result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np
import numpy.typing as npt

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, SeqId
from plait.core.step import Chunk, FromDevice, OutputKind, Outputs, SeqResult, SeqStatus, StepPlan, TokenLogprob
from plait.exec.reference import ops as math_of
from plait.exec.reference import sampler
from plait.exec.reference.attention import attend, first_visible
from plait.exec.reference.memory import CacheMemory
from plait.exec.reference.ops import RopeTable
from plait.exec.roster import Seat
from plait.model.ops import (
    Act,
    Add,
    Attend,
    CacheWrite,
    Embed,
    Glu,
    Linear,
    Mul,
    Norm,
    Op,
    Rope,
    Sample,
    Scale,
    Select,
    ValueId,
)
from plait.model.program import Program

Floats = npt.NDArray[np.float32]
SUPPORTED = (Embed, Norm, Linear, Rope, CacheWrite, Attend, Glu, Act, Add, Mul, Scale, Select, Sample)


@dataclass(slots=True, eq=False)
class RowState:
    """What a joined sequence keeps between steps. `history`: its tokens so far, complete if its parameters have
    penalties.
    """

    history: list[int]
    last_sampled: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A program with its numbers: float32 weights by name, rope tables, cache memory."""

    program: Program
    weights: Mapping[str, Floats]
    ropes: Mapping[Rope, RopeTable]
    last_use: Mapping[ValueId, int]
    memory: CacheMemory
    poison: bool
    observe_logits: Callable[[StepPlan, Floats], None] | None


@dataclass(slots=True, eq=False)
class StepRun:
    """A plan under way. `cancelled` is written from outside between two ops."""

    loaded: Loaded
    plan: StepPlan
    seats: Sequence[Seat]
    rows: Mapping[SeqId, RowState]
    cancelled: set[SeqId] = field(default_factory=set)
    results: dict[SeqId, SeqResult] = field(default_factory=dict)
    _values: dict[ValueId, Floats] = field(default_factory=dict)
    _tokens: list[int] = field(default_factory=list)
    _first_row: list[int] = field(default_factory=list)

    @property
    def is_dead(self) -> bool:
        """Every chunk was cancelled."""
        return all(chunk.seq in self.cancelled for chunk in self.plan.chunks)

    def run(self) -> Iterator[None]:
        """Carry the plan out; yields between ops."""
        for move in self.plan.moves:
            self.loaded.memory.move(move)
        self._begin()
        yield
        for index, op in enumerate(self.loaded.program.ops):
            self._execute(op)
            for value in op.inputs:
                if self.loaded.last_use[value] == index:
                    self._values.pop(value, None)  # an op may name a value twice
            yield

    def seq_results(self) -> tuple[SeqResult, ...]:
        """One result per chunk, in plan order."""
        return tuple(
            SeqResult(chunk.seq, SeqStatus.CANCELLED) if chunk.seq in self.cancelled else self.results[chunk.seq]
            for chunk in self.plan.chunks
        )

    def _begin(self) -> None:
        for chunk, seat in zip(self.plan.chunks, self.seats, strict=True):
            self._first_row.append(len(self._tokens))
            self._tokens += self._chunk_tokens(chunk)
            if self.loaded.poison:
                for group in self.loaded.program.cache_groups:
                    self.loaded.memory.poison(group.id, seat.tables[group.id], chunk.start)

    def _chunk_tokens(self, chunk: Chunk) -> Sequence[int]:
        state = self.rows[chunk.seq]
        if isinstance(chunk.tokens, FromDevice):
            if state.last_sampled is None:
                raise InvariantError(f"sequence {chunk.seq} continues from a token that was never sampled")
            tokens: tuple[int, ...] = (state.last_sampled,)
        else:
            tokens = chunk.tokens
        if chunk.drafts is not None and not chunk.drafts.is_chain:
            raise InvariantError("draft trees are not executed by the reference executor yet")
        state.history += tokens
        return tokens if chunk.drafts is None else tokens + chunk.drafts.ids

    def _execute(self, op: Op) -> None:
        weights = self.loaded.weights
        inputs: tuple[ValueId, ...] = op.inputs
        x = self._values[inputs[0]] if inputs else np.empty((0, 0), np.float32)
        match op:
            case Embed():
                self._put(op.output, self._embed(op))
            case Norm():
                self._put(op.output, math_of.norm(op, x, weights))
            case Linear():
                bias = None if op.bias is None else weights[op.bias]
                self._put(op.output, math_of.linear(x, weights[op.weight], bias, op.out_scale))
            case Rope():
                self._put(op.output, math_of.rope(op, x, *self.loaded.ropes[op].at(self._positions())))
            case CacheWrite():
                self._cache_write(op)
            case Attend():
                self._put(op.output, self._attend(op, x))
            case Glu():
                self._put(op.output, math_of.activate(op.activation, x) * self._values[op.inputs[1]])
            case Act():
                self._put(op.output, math_of.activate(op.activation, x))
            case Add():
                other = self._values[op.inputs[1]]
                self._put(op.output, x + (other if op.factor == 1.0 else np.float32(op.factor) * other))
            case Mul():
                self._put(op.output, x * self._values[op.inputs[1]])
            case Scale():
                self._put(op.output, x * np.float32(op.factor))
            case Select():
                self._put(op.output, self._select(x))
            case Sample():
                self._sample(op, x)
            case _:
                raise InvariantError(f"{type(op).__name__} was loaded but cannot be executed")

    def _put(self, value: ValueId, array: Floats) -> None:
        self._values[value] = array

    def _live_chunks(self) -> Iterator[tuple[Chunk, Seat, int]]:
        for chunk, seat, row in zip(self.plan.chunks, self.seats, self._first_row, strict=True):
            if chunk.seq not in self.cancelled:
                yield chunk, seat, row

    def _embed(self, op: Embed) -> Floats:
        table = self.loaded.weights[op.table]
        x = np.zeros((math_of.padded(len(self._tokens)), table.shape[1]), np.float32)
        x[: len(self._tokens)] = table[self._tokens]
        return x if op.scale == 1.0 else x * np.float32(op.scale)

    def _positions(self) -> npt.NDArray[np.int64]:
        positions = np.zeros(math_of.padded(len(self._tokens)), np.int64)
        for chunk, row in zip(self.plan.chunks, self._first_row, strict=True):
            positions[row : row + chunk.num_tokens] = chunk.positions or np.arange(chunk.start, chunk.end)
        return positions

    def _cache_write(self, op: CacheWrite) -> None:
        group = self.loaded.program.cache_groups[op.group]
        if len(op.inputs) != 2:
            raise InvariantError("an embedding group was loaded but cannot be written")
        k, v = op.inputs
        keys = self._values[k].reshape(-1, group.num_kv_heads, group.head_dim_k)
        values = self._values[v].reshape(-1, group.num_kv_heads, group.head_dim_v)
        for chunk, seat, row in self._live_chunks():
            rows = slice(row, row + chunk.num_tokens)
            self.loaded.memory.write(op.group, op.slot, seat.tables[op.group], chunk.start, keys[rows], values[rows])

    def _attend(self, op: Attend, q: Floats) -> Floats:
        if op.group is None:
            raise InvariantError("attention without a cache was loaded but cannot be executed")
        y = np.zeros((len(q), op.heads * op.head_dim_v), np.float32)
        sinks = None if op.sinks is None else self.loaded.weights[op.sinks]
        for chunk, seat, row in self._live_chunks():
            first = first_visible(op, chunk.start)
            table: Sequence[BlockId] = seat.tables[op.group]
            keys, values = self.loaded.memory.read(op.group, op.slot, table, first, chunk.end)
            rows = slice(row, row + chunk.num_tokens)
            y[rows] = attend(op, q[rows], keys, values, first, chunk.start, sinks)
        return y

    def _select(self, x: Floats) -> Floats:
        rows = [
            row + output.first + offset
            for chunk, row in zip(self.plan.chunks, self._first_row, strict=True)
            for output in chunk.outputs
            for offset in range(output.num_rows)
        ]
        selected = np.zeros((math_of.padded(len(rows)), x.shape[1]), np.float32)
        selected[: len(rows)] = x[rows]
        return selected

    def _sample(self, op: Sample, logits: Floats) -> None:
        if op.logit_scale != 1.0:
            logits = logits * np.float32(op.logit_scale)
        if op.softcap is not None:
            logits = np.float32(op.softcap) * np.tanh(logits / np.float32(op.softcap))
        if self.loaded.observe_logits is not None:
            self.loaded.observe_logits(self.plan, logits[: sum(chunk.num_outputs for chunk in self.plan.chunks)])
        row = 0
        for chunk, seat in zip(self.plan.chunks, self.seats, strict=True):
            rows = logits[row : row + chunk.num_outputs]
            row += chunk.num_outputs
            if chunk.seq not in self.cancelled:
                self.results[chunk.seq] = self._result(chunk, seat, rows)

    def _result(self, chunk: Chunk, seat: Seat, logits: Floats) -> SeqResult:
        if not np.isfinite(logits).all():
            error = f"the model gave a logit that is not a number behind token {chunk.end - 1}"
            return SeqResult(chunk.seq, SeqStatus.FAILED, error=error)
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        scored: list[TokenLogprob] = []
        row = 0
        for output in chunk.outputs:
            rows = logits[row : row + output.num_rows]
            row += output.num_rows
            match output.kind:
                case OutputKind.SAMPLE:
                    tokens += self._sample_rows(chunk, output, seat, rows, logprobs)
                case OutputKind.LOGPROBS:
                    pairs = zip(rows, output.targets, strict=True)
                    scored += [sampler.log_probability(one, target, output.top) for one, target in pairs]
                case OutputKind.POOL | OutputKind.TAPS:
                    raise InvariantError(
                        f"outputs of kind {output.kind} are not executed by the reference executor yet"
                    )
                case _:
                    assert_never(output.kind)
        return SeqResult(
            chunk.seq, SeqStatus.OK, chunk.num_tokens, tuple(tokens), tuple(logprobs), prompt_logprobs=tuple(scored)
        )

    def _sample_rows(
        self, chunk: Chunk, output: Outputs, seat: Seat, logits: Floats, logprobs: list[TokenLogprob]
    ) -> list[int]:
        if chunk.drafts is not None:
            raise InvariantError("drafts are not verified by the reference executor yet")
        state, params = self.rows[chunk.seq], seat.join.params
        masks = {mask.row: mask.allowed for mask in self.plan.sampling if mask.seq == chunk.seq}
        tokens = []
        for offset, row_logits in enumerate(logits):
            index = output.first + offset
            row = sampler.Row(seat.join, state.history, chunk.start + index + 1, masks.get(index))
            token = sampler.sample(row_logits, row)
            tokens.append(token)
            if params.logprobs is not None:
                logprobs.append(sampler.log_probability(row_logits, token, params.logprobs))
        state.last_sampled = tokens[-1]
        return tokens
