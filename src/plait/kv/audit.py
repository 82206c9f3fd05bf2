"""Audit: are the parts of the memory consistent with each other?

Owns no state. Recomputes from tables, flights and index what every block's state and every node's references must be,
and has each part compare itself with that. Slow on purpose: nothing incremental is trusted.
Invariants: see `audit`; each is named in the error it raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, SeqId, StepId
from plait.kv.blocks import BlockPool, BlockState
from plait.kv.flights import Flight
from plait.kv.index import Node, PrefixIndex
from plait.kv.pages import PagePool
from plait.kv.planned import PlannedBlocks
from plait.kv.tables import Copy, SeqTable


def audit(
    pages: PagePool,
    pools: Sequence[BlockPool],
    index: PrefixIndex,
    planned: PlannedBlocks,
    tables: Mapping[SeqId, SeqTable],
    quarantined: Iterable[SeqTable],
    flights: Mapping[StepId, Flight],
) -> None:
    """Raise `InvariantError` naming the first broken one of these.

    pages    free + lent == all; a lent page has one borrower and holds something
    blocks   a block is in one table unless published; used exactly if referenced; every count follows from the states
    index    references are those of the users; children are evicted before parents; no two nodes own one block
    tables   lengths of table, committed and planned slots agree; a table begins with its hit's blocks; a copy still to
             be made goes behind them, and nothing is planned there yet
    flights  a sequence in flight is on one lane, its steps are consecutive, and none writes a shared block (H6, H7)
    planned  an announced block belongs to a step in flight of a live sequence
    """
    everyone = [*tables.values(), *quarantined]
    pages.check()
    index.check(_expected_refs(everyone, flights))
    for g, pool in enumerate(pools):
        pool.check(_expected_states(g, pool, index, tables.values(), quarantined))
    for table in everyone:
        _check_table(table, pools[0].layout.tokens_per_block)
        _check_writing(table, pools[0].layout.tokens_per_block, flights)
    _check_flights(everyone, flights)
    _check_planned(planned, tables, pools[0].layout.tokens_per_block)


def _expected_refs(tables: Iterable[SeqTable], flights: Mapping[StepId, Flight]) -> dict[Node, int]:
    refs: dict[Node, int] = {}
    users = [table.node for table in tables]
    users += [table.copy.source for table in tables if isinstance(table.copy, Copy)]
    users += [node for flight in flights.values() for node in flight.sources]
    for user in users:
        node: Node | None = user
        while node is not None:
            refs[node] = refs.get(node, 0) + 1
            node = node.parent
    return refs


def _expected_states(
    g: int, pool: BlockPool, index: PrefixIndex, live: Iterable[SeqTable], quarantined: Iterable[SeqTable]
) -> bytearray:
    states = bytearray(pool.layout.num_blocks)
    published: dict[BlockId, Node] = {}
    for node in index.nodes():
        block = node.blocks[g]
        published[block] = node
        states[block] = BlockState.SHARED if node.num_refs else BlockState.EVICTABLE
    for tables, state in ((live, BlockState.PRIVATE), (quarantined, BlockState.QUARANTINED)):
        for table in tables:
            chain = _chain(table)
            for place, block in enumerate(table.blocks[g]):
                if block in published:
                    if place >= len(chain) or chain[place] is not published[block]:
                        raise InvariantError(
                            f"tables: sequence {table.seq} holds published block {block} out of its place {place}"
                        )
                    continue
                name = f"blocks of group {pool.group}: block {block}"
                if states[block] != BlockState.FREE:
                    raise InvariantError(f"{name} is private but stands in two tables or twice in one")
                if pool.holder(block) != table.seq:
                    raise InvariantError(f"{name} of sequence {table.seq} is held by {pool.holder(block)}")
                states[block] = state
    return states


def _check_table(table: SeqTable, tokens_per_block: int) -> None:
    name = f"tables: sequence {table.seq}"
    chain = _chain(table)
    for blocks in table.blocks:
        if len(blocks) * tokens_per_block != table.num_slots:
            raise InvariantError(f"{name} has {len(blocks)} blocks for {table.num_slots} slots")
    for place, node in enumerate(chain[: table.num_hit_blocks]):
        if tuple(blocks[place] for blocks in table.blocks) != node.blocks:
            raise InvariantError(f"{name} does not begin with the blocks of its hit")
    marks = (table.node.length, table.num_committed, table.planned_end, table.num_slots)
    if sorted(marks) != list(marks):
        raise InvariantError(f"{name}: published, committed, planned and granted slots do not ascend: {marks}")
    if len(chain) < table.num_hit_blocks or not 0 <= table.num_granted <= len(table.blocks[0]):
        raise InvariantError(f"{name} lost part of its hit or granted more than it holds")
    hit_end, copy = table.num_hit_blocks * tokens_per_block, table.copy
    follows = not isinstance(copy, Copy) or copy.source.parent is table.node
    if copy is not None and not (follows and table.node.length == hit_end == marks[2]):
        source = copy.source.blocks if isinstance(copy, Copy) else copy.blocks
        raise InvariantError(f"{name} has still to copy block {source} but goes on at slot {marks[2]}")
    if table.publishes and len(table.tail) != table.num_committed - table.node.length:
        raise InvariantError(f"{name} keeps {len(table.tail)} ids behind {table.node.length} published tokens")
    if table.publishes and len(table.tail) >= tokens_per_block:
        raise InvariantError(f"{name} has a full block that is not published")


def _check_writing(table: SeqTable, tokens_per_block: int, flights: Mapping[StepId, Flight]) -> None:
    name = f"flights: sequence {table.seq}"
    end = None
    for step, writing in table.writing.items():
        flight = flights.get(step)
        if flight is None or table not in flight.writers:
            raise InvariantError(f"{name} counts on step {step}, which is not in flight with it")
        if flight.lane != table.lane:
            raise InvariantError(f"{name} of lane {table.lane} is in step {step} of lane {flight.lane} (H7)")
        if writing.start < table.num_hit_blocks * tokens_per_block:
            raise InvariantError(f"{name}: step {step} writes slot {writing.start}, which belongs to the hit (H6)")
        if end is not None and writing.start != end:
            raise InvariantError(f"{name}: step {step} starts at slot {writing.start}, the step before ends at {end}")
        end = writing.end
    if end is not None and table.planned_end not in (end, table.num_committed):
        raise InvariantError(f"{name} is planned up to slot {table.planned_end}, but its steps end at {end}")


def _check_flights(tables: Sequence[SeqTable], flights: Mapping[StepId, Flight]) -> None:
    readers: dict[SeqTable, int] = {}
    for step, flight in flights.items():
        for table in flight.writers:
            if step not in table.writing or table not in tables:
                raise InvariantError(
                    f"flights: step {step} writes sequence {table.seq}, which does not know or is gone (H1)"
                )
        for table in flight.readers:
            readers[table] = readers.get(table, 0) + 1
    for table in [*tables, *readers]:
        if table.num_readers != readers.get(table, 0) or table not in tables:
            raise InvariantError(
                f"flights: sequence {table.seq} is named by {readers.get(table, 0)} steps, not {table.num_readers}"
            )
        if table.released_s is not None and not table.is_in_flight:
            raise InvariantError(f"flights: sequence {table.seq} is in quarantine but no step in flight names it")


def _check_planned(planned: PlannedBlocks, tables: Mapping[SeqId, SeqTable], tokens_per_block: int) -> None:
    known = {seq: table.planned for seq, table in tables.items() if table.planned is not None}
    if planned.entries() != known:
        raise InvariantError(f"planned: entries {planned.entries()} but the tables know {known}")
    for seq, table in tables.items():
        block = table.next_planned(tokens_per_block) if table.publishes else None
        if table.planned != block:
            raise InvariantError(f"planned: sequence {seq} announces {table.planned}, not {block}")


def _chain(table: SeqTable) -> list[Node]:
    """The nodes of a table's published prefix, shortest first, without the root."""
    chain = []
    node = table.node
    while node.parent is not None:
        chain.append(node)
        node = node.parent
    return chain[::-1]
