"""Step bench: how long one step of a shape takes on a share of this machine, beside another or alone.

Owns plans made up for shapes, the memory that stands before their tokens, and the two lanes on which steps run side by
side. Steps are those of the executor that serves, outputs and sampling included; no engine is in between.
Invariant: what a step reads and where it writes was written before, because the first step that writes a page takes up
to twice as long, and a server has written all of them soon. Blocks of different sequences lie at different places of
memory as far as it reaches, so that reading them takes what it takes in earnest. Decode goes on with the same
sequences, the next step behind the running one, as in an engine: what caches keep of their keys from step to step is
kept here too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count

from plait.core.errors import InvariantError, PlaitError, UsageError
from plait.core.ids import BlockId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import (
    FROM_DEVICE,
    BlockGrant,
    Chunk,
    Join,
    Leave,
    Move,
    OutputKind,
    Outputs,
    StepPlan,
    StepResult,
    StepShape,
)
from plait.cost.solo import Sample
from plait.exec.native.executor import NativeExecutor
from plait.model.cache_layout import CacheLayout, GroupLayout

LANES = (LaneId(0), LaneId(1))
"""Those of the executor that are used."""
PATIENCE_S = 120.0
_MOVES_AT_ONCE = 128
_COMPUTED_BLOCKS = 4
"""Of which all others are copies."""
_WARM_STEPS, _WARM_S = 8, 0.1
"""Decode steps that go before those that count, and for how long at most. One row of a model of 90 MB takes a tenth
less by then than at first, eight rows the same.
"""
LONG_S = 0.25
"""From when on a step counts from the first and is not repeated: what it takes is no matter of caches, and the moments
in which a machine is disturbed are within it.
"""
_SAMPLING = SamplingParams(seed=1)
"""As requests that ask for nothing special."""


class StepBench:
    """An executor of which nothing else makes use. `layout`: its memory, which the bench fills."""

    def __init__(self, executor: NativeExecutor, layout: CacheLayout, vocab_size: int) -> None:
        self._executor = executor
        self._layout = layout
        self._vocab_size = vocab_size
        self._next_seq, self._next_step = count(), count()
        self._rows = executor.info.max_rows // len(LANES)
        """Of a lane: each has executor rows and blocks for new tokens of its own."""
        self._turn = dict.fromkeys(LANES, 0)
        self._joined: dict[LaneId, list[SeqId]] = {lane: [] for lane in LANES}
        self._decoding: dict[LaneId, tuple[StepShape, int]] = {}
        """What a lane's sequences do, and for how many steps."""
        self._first: set[StepId] = set()
        """Steps in flight with which sequences begin to decode: they read what no cache has kept."""
        self._fill()

    @property
    def units(self) -> int:
        return self._executor.info.share_units

    @property
    def most_rows(self) -> int:
        return self._rows

    @property
    def most_tokens(self) -> int:
        """Of one step."""
        return self._executor.info.max_step_tokens

    @property
    def most_context(self) -> int:
        """Tokens that can stand before a chunk."""
        return min(self._num_filled(one) * one.tokens_per_block for one in self._layout.groups)

    def alone(self, shape: StepShape, share: int, repeats: int) -> list[Sample]:
        """Steps of the shape, one after the other. Those with which it begins do not count: caches still hold what was
        computed before, and keep more of the weights the longer equal steps go on. Long steps all count, and are not
        repeated.
        """
        self._assign(share, 0)
        at_once, warm_steps = _in_flight(shape), _warm_steps(shape)
        found: list[Sample] = []
        began_s = time.monotonic()
        in_flight = num_warm = 0
        while len(found) < repeats or in_flight:
            while in_flight < at_once and len(found) < repeats:
                self._submit(LANES[0], shape)
                in_flight += 1
            for result in self._wait():
                in_flight -= 1
                is_first = self._is_first(result)
                if result.end_s - result.start_s >= LONG_S:
                    found.append(Sample(shape, share, result.end_s - result.start_s))
                    repeats = 1
                elif num_warm < warm_steps and (not num_warm or result.start_s - began_s < _WARM_S):
                    num_warm += 1
                elif not is_first:
                    found.append(Sample(shape, share, result.end_s - result.start_s))
        return found

    def side_by_side(
        self, decode: StepShape, prefill: StepShape, share: int, repeats: int, limit_s: float
    ) -> list[Sample]:
        """Steps of both shapes on disjoint shares, `share` units for `decode`, both lanes always busy. A step counts
        only if the other lane had one all the while.
        """
        self._assign(share, self.units - share)
        shapes = {LANES[0]: decode, LANES[1]: prefill}
        results: dict[LaneId, list[StepResult]] = {lane: [] for lane in LANES}
        for lane, shape in shapes.items():
            self._submit(lane, shape)
            self._submit(lane, shape)
        in_flight = 2 * len(shapes)
        until_s = time.monotonic() + limit_s
        while in_flight:
            for result in self._wait():
                results[result.lane].append(result)
                in_flight -= 1
                enough = all(len(of_lane) >= repeats for of_lane in results.values())
                if not enough and time.monotonic() < until_s:
                    self._submit(result.lane, shapes[result.lane])
                    in_flight += 1
        return self._covered(results, shapes, share)

    def _covered(
        self, results: dict[LaneId, list[StepResult]], shapes: dict[LaneId, StepShape], share: int
    ) -> list[Sample]:
        first, second = LANES
        shares = {first: share, second: self.units - share}
        found = []
        for lane, other in ((first, second), (second, first)):
            busy_from = min(result.start_s for result in results[other])
            busy_to = max(result.end_s for result in results[other])
            found += [
                Sample(shapes[lane], shares[lane], result.end_s - result.start_s, (shapes[other],))
                for result in results[lane]
                if busy_from <= result.start_s and result.end_s <= busy_to and not self._is_first(result)
            ]
        return found

    def _is_first(self, result: StepResult) -> bool:
        is_first = result.step in self._first
        self._first.discard(result.step)
        return is_first

    def _assign(self, first: int, second: int) -> None:
        units = tuple(range(self.units))
        shares = dict.fromkeys(self._executor.info.lanes, units[:0])
        self._executor.assign({**shares, LANES[0]: units[:first], LANES[1]: units[first : first + second]})

    def _wait(self) -> list[StepResult]:
        if not self._executor.wait_finished(PATIENCE_S):
            raise PlaitError(f"a step did not end within {PATIENCE_S:.0f} s; is the machine busy?")
        return self._executor.collect()

    def _submit(self, lane: LaneId, shape: StepShape) -> None:
        """The next step of the lane's sequences if they decode in this shape; else of new ones, in their place."""
        if self._goes_on(lane, shape):
            return
        seqs = [SeqId(next(self._next_seq)) for _ in shape.chunks]
        roster: list[Join | Leave] = [Leave(seq) for seq in self._joined[lane]]
        first_row = LANES.index(lane) * self._rows
        chunks, grants = [], []
        tables = [self._tables(one, lane, shape) for one in self._layout.groups]
        for place, (seq, size) in enumerate(zip(seqs, shape.chunks, strict=True)):
            roster.append(Join(seq, first_row + place, _SAMPLING, 0, 0, size.start + size.num_tokens))
            grants += [
                BlockGrant(seq, one.group.id, 0, of_group[place])
                for one, of_group in zip(self._layout.groups, tables, strict=True)
            ]
            outputs = (Outputs(size.num_tokens - 1, 1, OutputKind.SAMPLE),) if size.num_outputs else ()
            chunks.append(Chunk(seq, size.start, size.num_tokens, self._ids(seq, size.num_tokens), outputs=outputs))
        self._joined[lane] = seqs
        self._turn[lane] = 1 - self._turn[lane]
        self._decoding.pop(lane, None)
        step = self._run_plan(lane, roster, grants, [], chunks)
        if _is_decode(shape):
            self._decoding[lane] = (shape, 1)
            self._first.add(step)

    def _goes_on(self, lane: LaneId, shape: StepShape) -> bool:
        """Whether there was a next step, which takes the token that the one before says. A sequence decodes until its
        own block is full.
        """
        decoded, steps = self._decoding.get(lane, (None, 0))
        if decoded != shape or steps >= min(one.tokens_per_block for one in self._layout.groups):
            return False
        chunks = [
            Chunk(seq, chunk.start + steps, 1, FROM_DEVICE, outputs=(Outputs(0, 1, OutputKind.SAMPLE),))
            for seq, chunk in zip(self._joined[lane], shape.chunks, strict=True)
        ]
        self._decoding[lane] = (shape, steps + 1)
        self._run_plan(lane, [], [], [], chunks)
        return True

    def _run_plan(
        self,
        lane: LaneId,
        roster: Sequence[Join | Leave],
        grants: Sequence[BlockGrant],
        moves: Sequence[Move],
        chunks: Sequence[Chunk],
    ) -> StepId:
        step = StepId(next(self._next_step))
        self._executor.submit(StepPlan(step, lane, tuple(roster), tuple(grants), tuple(moves), tuple(chunks)))
        return step

    def _ids(self, seq: int, num_tokens: int) -> tuple[int, ...]:
        return tuple((seq * 31 + place * 7) % self._vocab_size for place in range(num_tokens))

    def _tables(self, layout: GroupLayout, lane: LaneId, shape: StepShape) -> list[tuple[BlockId, ...]]:
        """Of each chunk: filled blocks, from another place for each, then blocks of its own. A lane's two steps in
        flight have different ones.
        """
        size, filled = layout.tokens_per_block, self._num_filled(layout)
        own = filled + (2 * LANES.index(lane) + self._turn[lane]) * self._own_blocks(layout)
        found = []
        first = 0
        for chunk in shape.chunks:
            if chunk.start % size:
                raise InvariantError(f"a chunk starts at {chunk.start}; the bench's start at a multiple of {size}")
            behind = chunk.start // size
            table = [BlockId((first + place) % filled) for place in range(behind)]
            first += behind + 1
            new = layout.blocks_for(chunk.num_tokens)
            found.append((*table, *(BlockId(own + place) for place in range(new))))
            own += new
        return found

    def _own_blocks(self, layout: GroupLayout) -> int:
        """What the chunks of a step need for their own tokens: of each, the last block is not full."""
        return self.most_tokens // layout.tokens_per_block + self._rows

    def _num_filled(self, layout: GroupLayout) -> int:
        return layout.num_blocks - 2 * len(LANES) * self._own_blocks(layout)

    def _fill(self) -> None:
        """Compute a few blocks, copy them into all others, those for new tokens included."""
        blocks = min(_COMPUTED_BLOCKS, *map(self._num_filled, self._layout.groups))
        if blocks < _COMPUTED_BLOCKS:
            raise UsageError(
                f"{self._layout.pool_bytes >> 20:,} MiB of KV cache are too little to measure steps in; give more with "
                "--kv-cache-memory, or fewer --max-num-seqs"
            )
        self._assign(self.units, 0)
        seq, tokens = SeqId(next(self._next_seq)), blocks * self._layout.groups[0].tokens_per_block
        grants = [
            BlockGrant(seq, one.group.id, 0, tuple(map(BlockId, range(one.blocks_for(tokens)))))
            for one in self._layout.groups
        ]
        roster: list[Join | Leave] = [Join(seq, 0, _SAMPLING, 0, 0, tokens)]
        for start in range(0, tokens, self.most_tokens):
            count = min(self.most_tokens, tokens - start)
            self._run_plan(LANES[0], roster, grants, [], [Chunk(seq, start, count, self._ids(seq + start, count))])
            self._wait()
            roster, grants = [], []
        self._joined[LANES[0]] = [seq]
        for one in self._layout.groups:
            for first in range(blocks, one.num_blocks, _MOVES_AT_ONCE):
                self._copy(one, blocks, range(first, min(first + _MOVES_AT_ONCE, one.num_blocks)))

    def _copy(self, layout: GroupLayout, sources: int, targets: Sequence[int]) -> None:
        """The first blocks into others, which a sequence must hold meanwhile."""
        group, seq = layout.group.id, SeqId(next(self._next_seq))
        moves = [
            Move(group, BlockId(block % sources), 0, BlockId(block), 0, layout.tokens_per_block) for block in targets
        ]
        roster: list[Join | Leave] = [*map(Leave, self._joined[LANES[0]]), Join(seq, 0, _SAMPLING, 0, 0, 0)]
        self._run_plan(LANES[0], roster, [BlockGrant(seq, group, 0, tuple(map(BlockId, targets)))], moves, [])
        self._joined[LANES[0]] = [seq]
        self._wait()


def _is_decode(shape: StepShape) -> bool:
    return all(chunk.num_tokens == chunk.num_outputs == 1 for chunk in shape.chunks)


def _in_flight(shape: StepShape) -> int:
    return 2 if _is_decode(shape) else 1


def _warm_steps(shape: StepShape) -> int:
    return _WARM_STEPS if _is_decode(shape) else 1


def steps_alone(shape: StepShape, step_s: float, repeats: int) -> int:
    """How many `StepBench.alone` runs if each takes so long."""
    if step_s >= LONG_S:
        return _in_flight(shape)
    return min(_warm_steps(shape), 1 + int(_WARM_S / step_s)) + repeats + _in_flight(shape) - 1


def bench_memory(token_bytes: int, tokens_per_block: int, rows: int, most_tokens: int) -> int:
    """Bytes of the smallest cache that steps can be measured in: room for their own tokens, and what is copied."""
    own = 2 * len(LANES) * (most_tokens + rows * tokens_per_block)
    return token_bytes * (own + 2 * _COMPUTED_BLOCKS * tokens_per_block)
