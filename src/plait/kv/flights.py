"""Flights: steps between submitted and collected, and what each of them names.

Owns the rules for running ahead (docs/concepts/memory.md): H4 a plan references every block it names, H5 copies read
committed slots only, H6 a block has at most one writing sequence and a published block none, H7 a sequence is on one
lane and its steps are consecutive. References are held per sequence and step, never per block: a decode step costs the
same at any length.
Invariant: a table's `writing` and `num_readers` agree with the flights that name it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, LaneId, SeqId, StepId
from plait.core.step import FROM_DEVICE, BlockGrant, Chunk, Encode, Move, StepPlan
from plait.kv.blocks import PRIVATE, BlockPool
from plait.kv.index import PrefixIndex
from plait.kv.nodes import Node, Piece
from plait.kv.tables import SeqTable, Writing
from plait.model.parts import OF_IMAGES


@dataclass(slots=True)
class Flight:
    """Whose blocks a step writes, whose it only names, and the published blocks it copies from."""

    step: StepId
    lane: LaneId
    writers: list[SeqTable] = field(default_factory=list)
    readers: list[SeqTable] = field(default_factory=list)
    sources: list[Node] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    """The same of groups that do not keep everything; `sources` has their nodes."""


class Flights:
    """All steps in flight. Submitting raises `InvariantError` for a plan that reads or writes what it must not."""

    def __init__(
        self, pools: Sequence[BlockPool], index: PrefixIndex, tables: Mapping[SeqId, SeqTable], tokens_per_block: int
    ) -> None:
        self._pools = tuple(pools)
        self._of_tokens = tuple(
            (g, pool)
            for g, pool in enumerate(pools)
            if pool.layout.tokens_per_block and pool.layout.group.kind not in OF_IMAGES
        )
        self._states_of = tuple((pool.states, g) for g, pool in self._of_tokens)
        self._of_states = tuple((g, pool) for g, pool in enumerate(pools) if not pool.layout.tokens_per_block)
        self._index = index
        self._tables = tables
        self._tokens_per_block = tokens_per_block
        self._by_step: dict[StepId, Flight] = {}
        self._newest = StepId(-1)

    def __len__(self) -> int:
        return len(self._by_step)

    @property
    def holds_others(self) -> bool:
        """Whether a step in flight holds blocks that it only reads."""
        return any(flight.sources or flight.readers for flight in self._by_step.values())

    def by_step(self) -> Mapping[StepId, Flight]:
        return self._by_step

    def submit(self, plan: StepPlan) -> Flight:
        if plan.step <= self._newest:
            raise InvariantError(f"step {plan.step} is submitted after step {self._newest}; steps ascend")
        self._newest = plan.last_step
        flight = self._by_step[plan.step] = Flight(plan.step, plan.lane)
        moved: dict[SeqId, list[int]] = {}
        for move in plan.moves:
            self._move(move, flight, moved)
        goes_on = None if moved or self._of_states else self._goes_on
        for chunk in plan.chunks:
            if goes_on is not None and chunk.tokens is FROM_DEVICE and goes_on(chunk, flight):
                continue
            num_moved = self._num_moved(moved.pop(chunk.seq)) if moved and chunk.seq in moved else 0
            self._write(chunk, flight, num_moved)
        for encode in plan.encodes:
            self._encode(encode, flight)
        if moved:
            raise InvariantError(f"step {plan.step} copies into sequence {next(iter(moved))} but has no chunk of it")
        for grant in plan.blocks:
            self._name(grant, flight)
        return flight

    def collect(self, step: StepId) -> Flight:
        """The step is over. Its tables do not count on it any more; its sources are still referenced."""
        flight = self._by_step.pop(step, None)
        if flight is None:
            raise InvariantError(f"step {step} is collected but not in flight")
        for table in flight.writers:
            del table.writing[step]
        for table in flight.readers:
            table.num_readers -= 1
        return flight

    def commit(self, step: StepId, seq: SeqId, tokens: Sequence[int]) -> SeqTable:
        """Tokens that a step in flight wrote are accepted; returns whose they are."""
        table = self._tables.get(seq)
        writing = None if table is None else table.writing.get(step)
        if table is None or writing is None:
            raise InvariantError(f"sequence {seq} commits step {step}, which is not in flight with it")
        start, end, _, snapshots = writing
        if start != table.num_committed or len(tokens) > end - start or step <= table.committed_step:
            written = f"step {step}, which writes slots [{start}, {end})"
            raise InvariantError(
                f"sequence {seq} commits {len(tokens)} tokens of {written}, behind {table.num_committed} committed ones"
            )
        table.committed_step = step
        table.num_committed = committed = start + len(tokens)
        if len(table.writing) == 1:
            table.planned_end = committed
        if table.publishes:
            table.tail += tokens
        if snapshots:
            for checkpoint in table.checkpoints:
                if checkpoint.length in snapshots and checkpoint.length <= committed:
                    checkpoint.is_written = True
        return table

    def _goes_on(self, chunk: Chunk, flight: Flight) -> bool:
        """`_write` of a chunk that goes on inside one block with a token that the device has; False: it is none, or
        something about it is wrong, and nothing has changed.
        """
        seq, start, num_tokens, *_ = chunk
        table = self._tables.get(seq)
        if table is None or table.planned_end != start:
            return False
        end, size = start + num_tokens, self._tokens_per_block
        place = start // size
        is_elsewhere = table.writing and table.lane != flight.lane
        if end > table.num_slots or end > (place + 1) * size or is_elsewhere:
            return False
        for states, g in self._states_of:
            if states[table.blocks[g][place]] != PRIVATE:
                return False
        table.lane = flight.lane
        table.writing[flight.step] = Writing.of_unknown(start, end)
        table.planned_end = end
        flight.writers.append(table)
        return True

    def _write(self, chunk: Chunk, flight: Flight, num_moved: int) -> None:
        table = self._tables.get(chunk.seq)
        if table is None:
            raise InvariantError(f"step {flight.step} has a chunk of sequence {chunk.seq}, which has no table")
        start, end = table.planned_end, chunk.start + chunk.num_tokens
        if chunk.start != start + num_moved or end > table.num_slots:
            raise InvariantError(
                f"step {flight.step} writes slots [{chunk.start}, {end}) of sequence {chunk.seq}, which goes on at "
                f"{start + num_moved} and has {table.num_slots} slots"
            )
        if table.writing and table.lane != flight.lane:
            there = f"lane {table.lane}, step {flight.step} is on lane {flight.lane}"
            raise InvariantError(f"sequence {chunk.seq} is in flight on {there} (H7)")
        first, last = start // self._tokens_per_block, (end - 1) // self._tokens_per_block
        for g, pool in self._of_tokens:
            blocks = table.blocks[g]
            if first == last and pool.is_private(blocks[first]):
                continue
            written = blocks[first : last + 1]
            if not pool.are_private(written):
                block = next(block for block in written if not pool.is_private(block))
                raise InvariantError(f"step {flight.step} writes {_described(pool, block)} (H6)")
        snapshots = self._write_states(chunk, table, flight) if self._of_states else ()
        known: Sequence[int] = () if num_moved or chunk.tokens is FROM_DEVICE else chunk.tokens
        table.lane = flight.lane
        table.writing[flight.step] = Writing(start, end, known, snapshots)
        table.planned_end = end
        flight.writers.append(table)

    def _write_states(self, chunk: Chunk, table: SeqTable, flight: Flight) -> tuple[int, ...]:
        """Running states, and the copies of them that the chunk makes on its way."""
        for g, pool in self._of_states:
            if len(table.blocks[g]) != 1 or not pool.is_private(table.blocks[g][0]):
                raise InvariantError(f"step {flight.step} has a chunk of sequence {chunk.seq}, which has no state (H6)")
        made = {(chunk.start + one.offset + 1, one.group): one.block for one in chunk.snapshots}
        wanted = {(one.length, g): block for one in table.checkpoints for g, block in one.blocks.items()}
        wanted |= {(length, g): block for length, blocks in table.scratch.items() for g, block in blocks.items()}
        if not made.items() <= wanted.items():
            raise InvariantError(f"step {flight.step} writes snapshots {made} of sequence {chunk.seq}, not {wanted}")
        return tuple(one.length for one in table.checkpoints if all((one.length, g) in made for g in one.blocks))

    def _encode(self, encode: Encode, flight: Flight) -> None:
        """Rows of an image go into blocks of a sequence that is in the same step and alone has them."""
        table, pool = self._tables.get(encode.seq), self._pools[encode.group]
        if table is None or flight.step not in table.writing or pool.layout.group.kind not in OF_IMAGES:
            raise InvariantError(
                f"step {flight.step} encodes an image of sequence {encode.seq}, which has no use for it"
            )
        held = table.blocks[encode.group]
        if not pool.are_private(encode.blocks) or any(block not in held for block in encode.blocks):
            raise InvariantError(f"step {flight.step} encodes into blocks {encode.blocks} of others (H6)")

    def _name(self, grant: BlockGrant, flight: Flight) -> None:
        table = self._tables.get(grant.seq)
        held = table.blocks[grant.group][grant.first : grant.first + len(grant.blocks)] if table else []
        if table is None or tuple(held) != grant.blocks:
            raise InvariantError(f"step {flight.step} names {grant}, but the sequence holds {held} there")
        if flight.step not in table.writing:
            _read(table, flight)

    def _move(self, move: Move, flight: Flight, moved: dict[SeqId, list[int]]) -> None:
        """A copy reads committed slots, and writes exactly behind what its target has committed or planned."""
        pool = self._pools[move.group]
        if not pool.layout.tokens_per_block:
            self._move_state(move, flight, moved)
            return
        readable = self._tokens_per_block
        node = self._index.owner(move.group, move.src_block)
        if node is not None:
            self._refer(move, node, flight)
        else:
            source, first = self._holder(pool, move.src_block, flight)
            readable = min(readable, source.num_committed - first)
            _read(source, flight)
        if move.num_tokens < 1 or not 0 <= move.src_slot <= readable - move.num_tokens:
            raise InvariantError(f"step {flight.step} copies slots that are not committed: {move} (H5)")
        target, first = self._holder(pool, move.dst_block, flight)
        done = moved.setdefault(target.seq, [0] * len(self._pools))
        goes_on = target.planned_end + done[move.group]
        if first + move.dst_slot != goes_on or move.dst_slot + move.num_tokens > self._tokens_per_block:
            raise InvariantError(
                f"step {flight.step} copies into sequence {target.seq}, which goes on at slot {goes_on}: {move} (H6)"
            )
        done[move.group] += move.num_tokens

    def _refer(self, move: Move, node: Node, flight: Flight) -> None:
        self._index.acquire(node)
        flight.sources.append(node)
        piece = self._index.piece(move.group, move.src_block)
        if piece is not None:
            self._index.take(piece)
            flight.pieces.append(piece)

    def _move_state(self, move: Move, flight: Flight, moved: dict[SeqId, list[int]]) -> None:
        """A checkpoint becomes the running state of a sequence that has computed exactly as much, or will have when its
        hit's tail is copied.
        """
        pool = self._pools[move.group]
        piece = self._index.piece(move.group, move.src_block)
        seq = pool.holder(move.dst_block)
        table = self._tables.get(seq) if seq is not None and pool.is_private(move.dst_block) else None
        if piece is None or table is None or table.blocks[move.group] != [move.dst_block]:
            raise InvariantError(f"step {flight.step} moves a state that is none, or to nobody: {move} (H5)")
        num_copied = table.copy.num_tokens if table.copy is not None else 0
        if (
            table.planned_end + num_copied != piece.length
            or table.writing
            or (move.src_slot, move.dst_slot, move.num_tokens) != (0, 0, 1)
        ):
            raise InvariantError(
                f"step {flight.step} moves the state behind {piece.length} tokens to sequence {table.seq}, which goes "
                f"on at {table.planned_end + num_copied}: {move} (H5)"
            )
        if num_copied:
            moved.setdefault(table.seq, [0] * len(self._pools))[move.group] = num_copied
        self._refer(move, piece.node, flight)

    def _num_moved(self, by_group: list[int]) -> int:
        counts = [by_group[g] for g, _ in self._of_tokens or self._of_states]
        if any(count != counts[0] for count in counts):
            raise InvariantError(f"copies bring {counts} tokens, group by group; they must be equal")
        return counts[0]

    def _holder(self, pool: BlockPool, block: BlockId, flight: Flight) -> tuple[SeqTable, int]:
        """The live sequence whose private block this is, and the slot at which the block begins."""
        seq = pool.holder(block)
        table = self._tables.get(seq) if seq is not None and pool.is_private(block) else None
        if table is None:
            raise InvariantError(f"step {flight.step} copies {_described(pool, block)} (H5, H6)")
        return table, table.blocks[pool.group].index(block) * self._tokens_per_block


def _described(pool: BlockPool, block: BlockId) -> str:
    return f"block {block} of group {pool.group}, which is {pool.state(block).name}"


def _read(table: SeqTable, flight: Flight) -> None:
    table.num_readers += 1
    flight.readers.append(table)
