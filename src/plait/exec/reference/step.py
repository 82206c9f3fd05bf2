"""One step of the reference executor: a plan carried out op by op.

Owns the values of a step in flight. Yields after every op, so that whoever drives it can suspend the lane or cancel
rows in between; the order inside is that of `plait.core.step`. Knows nothing about lanes or threads.
Invariant: a cancelled chunk writes nothing from the next op on, and what a sequence keeps between steps changes only
in `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, SeqId
from plait.core.step import Chunk, Drafts, FromDevice, OutputKind, SeqResult, SeqStatus, StepPlan, TokenLogprob
from plait.exec.reference import mixture, sampler
from plait.exec.reference import ops as math_of
from plait.exec.reference.attention import attend, whole_tiles
from plait.exec.reference.memory import CacheMemory
from plait.exec.reference.ops import RopeTable
from plait.exec.reference.recurrence import Keep, conv, scan
from plait.exec.reference.rwkv import shift
from plait.exec.roster import Seat
from plait.model.checks import root_of
from plait.model.ops import (
    Act,
    Add,
    Attend,
    CacheWrite,
    Conv,
    Embed,
    EmbedSource,
    Experts,
    Glu,
    Linear,
    Mul,
    Norm,
    Op,
    Pool,
    Rope,
    Route,
    Sample,
    Scale,
    Scan,
    Select,
    Shift,
    ValueId,
)
from plait.model.program import Program
from plait.model.rope import RopeSpec

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
RopeKey = tuple[RopeSpec, float]
"""What rope tables depend on: the spec and mscale."""

SUPPORTED = (
    *(Embed, Norm, Linear, Rope, CacheWrite, Attend, Glu, Act, Add, Mul, Scale),
    *(Conv, Shift, Scan, Route, Experts, Select, Pool, Sample),
)


@dataclass(frozen=True, slots=True, eq=False)
class RowPool:
    """Rows that were pooled: their sum in double precision, added in token order, and how many they are."""

    total: npt.NDArray[np.float64]
    count: int

    def with_row(self, row: Floats) -> RowPool:
        return RowPool(self.total + row, self.count + 1)

    def mean(self) -> tuple[float, ...]:
        return tuple((self.total / self.count).astype(np.float32).tolist())


@dataclass(slots=True, eq=False)
class RowState:
    """What a joined sequence keeps between steps. `history`: its tokens by slot, kept only if its parameters have
    penalties.
    """

    history: list[int]
    last_sampled: int | None = None
    pool: RowPool | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A program with its numbers: float32 weights by name, rope tables, cache memory."""

    program: Program
    weights: Mapping[str, Floats]
    ropes: Mapping[RopeKey, RopeTable]
    last_use: Mapping[ValueId, int]
    memory: CacheMemory
    poison: bool
    observe_logits: Callable[[StepPlan, Floats], None] | None


@dataclass(slots=True, eq=False)
class StepRun:
    """A plan under way. `cancelled` is written from outside, at any time."""

    loaded: Loaded
    plan: StepPlan
    seats: Sequence[Seat]
    rows: Mapping[SeqId, RowState]
    cancelled: set[SeqId] = field(default_factory=set)
    _results: dict[SeqId, SeqResult] = field(default_factory=dict)
    _pools: dict[SeqId, RowPool] = field(default_factory=dict)
    """Of chunks that pool, with their own rows."""
    _values: dict[ValueId, Floats] = field(default_factory=dict)
    _first_row: list[int] = field(default_factory=list)
    _tokens: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    _positions: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    _angles: dict[RopeKey, tuple[Floats, Floats]] = field(default_factory=dict)

    @property
    def is_dead(self) -> bool:
        """Every chunk was cancelled. A step that never had a chunk is not dead: it only moves tokens or rows."""
        return bool(self.plan.chunks) and all(chunk.seq in self.cancelled for chunk in self.plan.chunks)

    def run(self) -> Iterator[None]:
        """Carry the plan out; yields between ops, ends early when dead."""
        # Moves are the step's, not a chunk's: a cancelled sequence goes on from the tokens that were moved for it.
        for move in self.plan.moves:
            self.loaded.memory.move(move)
        if not self.plan.chunks:
            return
        self._begin()
        for index, op in enumerate(self.loaded.program.ops):
            yield
            if self.is_dead:
                return
            self._execute(op)
            for value in op.inputs:
                root = root_of(self.loaded.program.values, value)
                if self.loaded.last_use[root] == index:
                    self._values.pop(root, None)  # an op may name a value twice

    def finish(self, fault: str | None = None) -> tuple[SeqResult, ...]:
        """One result per chunk, in plan order; `fault` says why the step could not be carried through."""
        return tuple(self._finish(chunk, fault) for chunk in self.plan.chunks)

    def _finish(self, chunk: Chunk, fault: str | None) -> SeqResult:
        if chunk.seq in self.cancelled:
            return SeqResult(chunk.seq, SeqStatus.CANCELLED)
        if fault is not None:
            return SeqResult(chunk.seq, SeqStatus.FAILED, error=fault)
        result = self._results[chunk.seq]
        if result.tokens:
            self.rows[chunk.seq].last_sampled = result.tokens[-1]
        if result.pooled is not None:
            self.rows[chunk.seq].pool = self._pools[chunk.seq]
        return result

    def _begin(self) -> None:
        num_tokens = sum(chunk.num_tokens for chunk in self.plan.chunks)
        self._tokens = np.zeros(num_tokens, np.int64)
        self._positions = np.zeros(math_of.padded(num_tokens), np.int64)
        row = 0
        for chunk, seat in zip(self.plan.chunks, self.seats, strict=True):
            rows, row = slice(row, row + chunk.num_tokens), row + chunk.num_tokens
            self._first_row.append(rows.start)
            if chunk.seq not in self.cancelled:
                self._tokens[rows] = self._chunk_tokens(chunk, seat)
                self._positions[rows] = chunk.positions or range(chunk.start, chunk.end)
        self._angles = {key: table.at(self._positions) for key, table in self.loaded.ropes.items()}

    def _chunk_tokens(self, chunk: Chunk, seat: Seat) -> Sequence[int]:
        state = self.rows[chunk.seq]
        tokens: Sequence[int]
        if isinstance(chunk.tokens, FromDevice):
            if state.last_sampled is None:
                raise InvariantError(f"sequence {chunk.seq} continues from a token that was never sampled")
            tokens = (state.last_sampled,)
        else:
            tokens = chunk.tokens
        if chunk.drafts is not None:
            tokens = (*tokens, *chunk.drafts.ids)
        if seat.join.params.has_penalties:
            state.history[chunk.start :] = tokens
        if self.loaded.poison:
            for group in self.loaded.program.cache_groups:
                self.loaded.memory.poison(group.id, seat.tables[group.id], chunk.start)
            for snapshot in chunk.snapshots:
                self.loaded.memory.poison(snapshot.group, (snapshot.block,), 0)
        return tokens

    def _execute(self, op: Op) -> None:
        weights = self.loaded.weights
        inputs = [self._value(value) for value in op.inputs]
        match op:
            case Embed():
                self._put(op.output, self._embed(op))
            case Norm():
                self._put(op.output, math_of.norm(op, inputs[0], weights))
            case Linear():
                bias = None if op.bias is None else weights[op.bias]
                self._put(op.output, math_of.linear(inputs[0], weights[op.weight], bias, op.out_scale))
            case Rope():
                self._put(op.output, math_of.rope(op, inputs[0], *self._angles[op.spec, op.mscale]))
            case CacheWrite():
                self._cache_write(op, *inputs)
            case Attend():
                self._put(op.output, self._attend(op, inputs[0]))
            case Glu():
                self._put(op.output, math_of.activate(op.activation, inputs[0]) * inputs[1])
            case Act():
                self._put(op.output, math_of.activate(op.activation, inputs[0]))
            case Add():
                added = inputs[1] if op.factor == 1.0 else np.float32(op.factor) * inputs[1]
                self._put(op.output, inputs[0] + added)
            case Mul():
                self._put(op.output, inputs[0] * inputs[1])
            case Scale():
                self._put(op.output, inputs[0] * np.float32(op.factor))
            case Conv() | Shift() | Scan():
                self._put(op.output, self._recur(op, inputs))
            case Route():
                self._put(op.output, mixture.route(op, inputs[0], weights))
            case Experts():
                self._put(op.output, mixture.experts(op, inputs[0], inputs[1], weights))
            case Select():
                self._put(op.output, self._select(inputs[0]))
            case Pool():
                self._pool(inputs[0])
            case Sample():
                self._sample(op, inputs[0])
            case _:
                raise InvariantError(f"{type(op).__name__} was loaded but cannot be executed")

    def _value(self, value: ValueId) -> Floats:
        seen = self.loaded.program.values[value]
        if seen.base is None:
            return self._values[value]
        return self._values[seen.base][:, seen.offset : seen.offset + seen.width]

    def _put(self, value: ValueId, array: Floats) -> None:
        self._values[value] = array

    def _live_chunks(self) -> Iterator[tuple[Chunk, Seat, int]]:
        for chunk, seat, row in zip(self.plan.chunks, self.seats, self._first_row, strict=True):
            if chunk.seq not in self.cancelled:
                yield chunk, seat, row

    def _embed(self, op: Embed) -> Floats:
        table = self.loaded.weights[op.table]
        num_tokens = len(self._tokens)
        x = np.zeros((math_of.padded(num_tokens), table.shape[1]), np.float32)
        x[:num_tokens] = table[self._tokens if op.source is EmbedSource.TOKENS else self._positions[:num_tokens]]
        return x if op.scale == 1.0 else x * np.float32(op.scale)

    def _cache_write(self, op: CacheWrite, k: Floats, v: Floats) -> None:
        group = self.loaded.program.cache_groups[op.group]
        keys = k.reshape(-1, group.num_kv_heads, group.head_dim_k)
        values = v.reshape(-1, group.num_kv_heads, group.head_dim_v)
        for chunk, seat, row in self._live_chunks():
            rows = slice(row, row + chunk.num_tokens)
            self.loaded.memory.write(op.group, op.slot, seat.tables[op.group], chunk.start, keys[rows], values[rows])

    def _attend(self, op: Attend, q: Floats) -> Floats:
        if op.group is None:
            raise InvariantError("attention without a cache was loaded but cannot be executed")
        y = np.zeros((len(q), op.heads * op.head_dim_v), np.float32)
        sinks = None if op.sinks is None else self.loaded.weights[op.sinks]
        for chunk, seat, row in self._live_chunks():
            seen = range(op.visibility.first(chunk.start), chunk.end)
            tiles = whole_tiles(seen)
            keys, values = self.loaded.memory.read(op.group, op.slot, seat.tables[op.group], seen, tiles)
            rows = slice(row, row + chunk.num_tokens)
            y[rows] = attend(op, q[rows], keys, values, tiles.start, chunk.start, sinks)
        return y

    def _recur(self, op: Conv | Shift | Scan, inputs: Sequence[Floats]) -> Floats:
        """Chunk by chunk from the sequence's running state; where the plan has a snapshot, the state goes there too."""
        memory, weights = self.loaded.memory, self.loaded.weights
        y = np.zeros((len(inputs[0]), self.loaded.program.values[op.output].width), np.float32)
        for chunk, seat, row in self._live_chunks():
            running = memory.state(op.group, op.slot, op.part, seat.tables[op.group][0])
            state = running.copy() if chunk.start else np.zeros_like(running)
            kept = {one.offset: one.block for one in chunk.snapshots if one.group == op.group}
            rows = [of[row : row + chunk.num_tokens] for of in inputs]
            offsets = (*(offset for offset in kept if offset != chunk.num_tokens - 1), chunk.num_tokens - 1)
            keep = self._keeper(op, running, chunk.num_tokens - 1, kept)
            match op:
                case Conv():
                    made = conv(op, rows[0], weights, state, offsets, keep)
                case Shift():
                    made = shift(op, rows[0], weights, state, offsets, keep)
                case Scan():
                    made = scan(op, rows, weights, state, offsets, keep)
            y[row : row + chunk.num_tokens] = made
        return y

    def _keeper(self, op: Conv | Shift | Scan, running: Floats, last: int, blocks: Mapping[int, BlockId]) -> Keep:
        """Puts the state behind a token into its snapshot, and the one behind the chunk's last into `running`."""

        def keep(offset: int, state: Floats) -> None:
            if offset in blocks:
                self.loaded.memory.state(op.group, op.slot, op.part, blocks[offset])[:] = state
            if offset == last:
                running[:] = state

        return keep

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

    def _pool(self, x: Floats) -> None:
        row = 0
        for chunk in self.plan.chunks:
            for output in chunk.outputs:
                if output.kind is OutputKind.POOL:
                    pool = self._pools.get(chunk.seq) or self.rows[chunk.seq].pool
                    pool = pool or RowPool(np.zeros(x.shape[1]), 0)
                    for place in range(row, row + output.num_rows):
                        pool = pool.with_row(x[place])
                    self._pools[chunk.seq] = pool
                row += output.num_rows

    def _sample(self, op: Sample, logits: Floats) -> None:
        logits = logits[:, : op.vocab_size]  # the columns behind belong to no token
        if op.logit_scale != 1.0:
            logits = logits * np.float32(op.logit_scale)
        if op.softcap is not None:
            logits = np.float32(op.softcap) * np.tanh(logits / np.float32(op.softcap))
        if self.loaded.observe_logits is not None:
            self.loaded.observe_logits(self.plan, logits[: sum(chunk.num_outputs for chunk in self.plan.chunks)])
        row = 0
        for chunk, seat in zip(self.plan.chunks, self.seats, strict=True):
            # Cancelled chunks too: a cancellation that comes meanwhile is `finish`'s business.
            self._results[chunk.seq] = self._result(chunk, seat, logits[row : row + chunk.num_outputs])
            row += chunk.num_outputs

    def _result(self, chunk: Chunk, seat: Seat, logits: Floats) -> SeqResult:
        masks = {mask.row: mask.allowed for mask in self.plan.sampling if mask.seq == chunk.seq}
        history = self.rows[chunk.seq].history
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        scored: list[TokenLogprob] = []
        outputs = [(output, offset) for output in chunk.outputs for offset in range(output.num_rows)]
        for (output, offset), row_logits in zip(outputs, logits, strict=True):
            if output.kind is OutputKind.POOL:
                continue
            index = output.first + offset
            behind = f"behind token {chunk.start + index} of the sequence"
            if not np.isfinite(row_logits).all():
                if chunk.drafts is not None and tokens:
                    break  # it is asked when everything before it has ended well: then it fails in a step of its own
                error = f"the model gave a logit that is not a number {behind}"
                return SeqResult(chunk.seq, SeqStatus.FAILED, error=error)
            if output.kind is OutputKind.LOGPROBS:
                scored.append(sampler.log_probability(row_logits, output.targets[offset], output.top))
                continue
            position = chunk.start + index + 1
            row = sampler.Row(seat.join, history[:position], position, masks.get(index))
            token = sampler.sample(row_logits, row)
            if token is None and chunk.drafts is not None and tokens:
                break
            if token is None:
                error = f"bias, penalties and masks leave no token to choose {behind}"
                return SeqResult(chunk.seq, SeqStatus.FAILED, error=error)
            tokens.append(token)
            if seat.join.params.logprobs is not None:
                logprobs.append(sampler.log_probability(row_logits, token, seat.join.params.logprobs))
            if chunk.drafts is not None and _is_rejected(chunk, chunk.drafts, index, token):
                break
        return self._good(chunk, tokens, logprobs, scored)

    def _good(
        self, chunk: Chunk, tokens: list[int], logprobs: list[TokenLogprob], scored: list[TokenLogprob]
    ) -> SeqResult:
        pool = self._pools.get(chunk.seq)
        if pool is not None and not np.isfinite(pool.total).all():
            error = f"the model gave a hidden state that is not a number up to token {chunk.end - 1} of the sequence"
            return SeqResult(chunk.seq, SeqStatus.FAILED, error=error)
        num_accepted = 0 if chunk.drafts is None else len(tokens) - 1
        return SeqResult(
            chunk.seq,
            SeqStatus.OK,
            chunk.num_tokens - chunk.num_drafts + num_accepted,
            tuple(tokens),
            tuple(logprobs),
            prompt_logprobs=tuple(scored),
            num_accepted=num_accepted,
            pooled=None if pool is None else pool.mean(),
        )


def _is_rejected(chunk: Chunk, drafts: Drafts, row: int, token: int) -> bool:
    """Whether the token that a row of the chunk sampled is another than the draft behind it."""
    place = row + 1 - (chunk.num_tokens - len(drafts.ids))
    return 0 <= place < len(drafts.ids) and drafts.ids[place] != token
