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
from plait.kv.hit import NO_BLOCK
from plait.kv.images import Images, Picture
from plait.kv.index import PrefixIndex
from plait.kv.keeps import Keeps, KeepsRows
from plait.kv.nodes import Node, Piece
from plait.kv.pages import PagePool
from plait.kv.planned import PlannedBlocks
from plait.kv.tables import Copy, SeqTable


def audit(
    pages: PagePool,
    pools: Sequence[BlockPool],
    index: PrefixIndex,
    planned: PlannedBlocks,
    images: Images,
    tables: Mapping[SeqId, SeqTable],
    quarantined: Iterable[SeqTable],
    flights: Mapping[StepId, Flight],
    keeps: Sequence[Keeps],
    tokens_per_block: int,
) -> None:
    """Raise `InvariantError` naming the first broken one of these.

    pages    free + lent == all; a lent page has one borrower and holds something
    blocks   a block is in one table unless published; used exactly if referenced; every count follows from the states
    dead     entries behind which nobody looks have no block, all others have one
    index    references are those of the users; children are evicted before parents; no two nodes own one block
    tables   lengths of table, committed and planned slots agree; a table begins with its hit's blocks; a copy still to
             be made goes behind them, and nothing is planned there yet
    flights  a sequence in flight is on one lane, its steps are consecutive, and none writes a shared block (H6, H7)
    images   of an image a group has all rows or none; references are those of the tables
    planned  an announced block belongs to a step in flight of a live sequence
    """
    everyone = [*tables.values(), *quarantined]
    pages.check()
    index.check(_expected_refs(everyone, flights), _expected_piece_refs(everyone, flights, index, keeps))
    for g, pool in enumerate(pools):
        published = _pictured(g, images) if g in images.groups else _published(g, index, keeps[g])
        pool.check(_expected_states(g, pool, published, keeps[g], tables.values(), quarantined))
    images.check(_picture_refs(everyone))
    for table in everyone:
        _check_table(table, tokens_per_block, keeps)
        _check_writing(table, tokens_per_block, flights)
    _check_flights(everyone, flights)
    _check_planned(planned, tables, tokens_per_block)


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


def _expected_piece_refs(
    tables: Iterable[SeqTable], flights: Mapping[StepId, Flight], index: PrefixIndex, keeps: Sequence[Keeps]
) -> dict[Piece, int]:
    refs: dict[Piece, int] = {}
    users = [piece for flight in flights.values() for piece in flight.pieces]
    for table in tables:
        users += table.states.values() if table.keeps_states else ()
        users += table.copy.pieces if isinstance(table.copy, Copy) else ()
        for g, one in enumerate(keeps):
            if not one.keeps_all and not one.is_state and not isinstance(one, KeepsRows):
                users += [piece for block in table.blocks[g] if (piece := index.piece(g, block)) is not None]
    for piece in users:
        refs[piece] = refs.get(piece, 0) + 1
    return refs


def _expected_states(
    g: int,
    pool: BlockPool,
    published: Mapping[BlockId, tuple[Node | None, bool]],
    keeps: Keeps,
    live: Iterable[SeqTable],
    quarantined: Iterable[SeqTable],
) -> bytearray:
    """`published`: whose a block is, of nodes, and whether somebody uses it."""
    states = bytearray(pool.layout.num_blocks)
    for block, (_, is_used) in published.items():
        states[block] = BlockState.SHARED if is_used else BlockState.EVICTABLE
    for tables, state in ((live, BlockState.PRIVATE), (quarantined, BlockState.QUARANTINED)):
        for table in tables:
            chain = _chain(table)
            for place, block in enumerate(_blocks_of(table, g, keeps)):
                if block in published:
                    node = published[block][0]
                    if node is not None and (keeps.is_state or place >= len(chain) or chain[place] is not node):
                        raise InvariantError(
                            f"tables: sequence {table.seq} holds published block {block} out of its place {place}"
                        )
                    continue
                if block == NO_BLOCK:
                    continue
                name = f"blocks of group {pool.group}: block {block}"
                if states[block] != BlockState.FREE:
                    raise InvariantError(f"{name} is private but stands in two tables or twice in one")
                if pool.holder(block) != table.seq:
                    raise InvariantError(f"{name} of sequence {table.seq} is held by {pool.holder(block)}")
                states[block] = state
    return states


def _published(g: int, index: PrefixIndex, keeps: Keeps) -> dict[BlockId, tuple[Node | None, bool]]:
    found: dict[BlockId, tuple[Node | None, bool]] = {}
    for node in index.nodes():
        user = node if keeps.keeps_all else node.pieces.get(g)
        if user is not None:
            found[node.block(g)] = node, user.num_refs > 0
    for node in [*index.roots(), *index.nodes()] if keeps.is_state else ():
        inner = [of_groups[g] for of_groups in node.inner.values() if g in of_groups]
        found |= {piece.block: (node, piece.num_refs > 0) for piece in inner}
    return found


def _pictured(g: int, images: Images) -> dict[BlockId, tuple[Node | None, bool]]:
    pictures = [picture for picture in images.pictures() if picture.group == g]
    return {block: (None, picture.num_refs > 0) for picture in pictures for block in picture.blocks}


def _picture_refs(tables: Iterable[SeqTable]) -> dict[Picture, int]:
    refs: dict[Picture, int] = {}
    for table in tables:
        for pictures in table.pictures.values():
            for picture in pictures:
                if picture is not None:
                    refs[picture] = refs.get(picture, 0) + 1
    return refs


def _blocks_of(table: SeqTable, g: int, keeps: Keeps) -> list[BlockId]:
    return [*table.blocks[g], *(table.own_states(g) if keeps.is_state else ())]


def _check_table(table: SeqTable, tokens_per_block: int, keeps: Sequence[Keeps]) -> None:
    name = f"tables: sequence {table.seq}"
    chain = _chain(table)
    for g, one in enumerate(keeps):
        blocks, slots = table.blocks[g], table.kept_slots if one.keeps_all else table.num_slots
        if one.is_state:
            if len(blocks) > 1 or bool(blocks) == table.is_new:
                raise InvariantError(f"{name} has {len(blocks)} running states")
            continue
        if isinstance(one, KeepsRows):
            continue
        if len(blocks) * tokens_per_block != slots:
            raise InvariantError(f"{name} has {len(blocks)} blocks for {slots} slots")
        _check_dead(name, table, g, one.dead(table.num_committed))
        for place, node in enumerate(chain[: table.num_hit_blocks]):
            if blocks[place] not in (node.block(g), NO_BLOCK):
                raise InvariantError(f"{name} does not begin with the blocks of its hit")
    marks = (table.node.length, table.num_committed, table.planned_end, table.num_slots, table.kept_slots)
    if sorted(marks) != list(marks):
        raise InvariantError(f"{name}: published, committed, planned and granted slots do not ascend: {marks}")
    if (table.scratch and not table.writing and table.released_s is None) or len(table.stale) > len(keeps):
        raise InvariantError(
            f"{name} has scratch states and no step that writes them, or was told of no change of state"
        )
    granted = zip(table.num_granted, table.blocks, strict=True)
    if len(chain) < table.num_hit_blocks or any(not 0 <= count <= len(blocks) for count, blocks in granted):
        raise InvariantError(f"{name} lost part of its hit or granted more than it holds")
    hit_end, copy = table.num_hit_blocks * tokens_per_block, table.copy
    follows = not isinstance(copy, Copy) or copy.source.parent is table.node
    if copy is not None and not (follows and table.node.length == hit_end == marks[2]):
        source = copy.blocks(len(keeps))
        raise InvariantError(f"{name} has still to copy block {source} but goes on at slot {marks[2]}")
    if table.publishes and len(table.tail) != table.num_committed - table.node.length:
        raise InvariantError(f"{name} keeps {len(table.tail)} ids behind {table.node.length} published tokens")
    if table.publishes and len(table.tail) >= tokens_per_block:
        raise InvariantError(f"{name} has a full block that is not published")


def _check_dead(name: str, table: SeqTable, g: int, dead: range) -> None:
    """What is dead has no block; but a step that names the table beside its own may have been in the way."""
    gone = [place for place, block in enumerate(table.blocks[g]) if block == NO_BLOCK]
    if len(gone) != table.num_dead[g] or any(place not in dead for place in gone):
        raise InvariantError(f"{name} has no block of group {g} at {gone}, of which {table.num_dead[g]} are dead")


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
