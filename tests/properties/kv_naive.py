"""A naive model of a memory: what must be there, who uses it, and what goes next.

Knows nothing of nodes, heaps, page counts or reference counts. Keeps whole prefixes as tuples, recomputes from scratch
who uses what and which pages are whose, and looks at all there is to know what goes next. `kv_world` plays.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import prod

from tests.unit.kv.kit import make_layout, mixed_groups

from plait.core.ids import BlockId, LaneId, SeqId, StepId
from plait.core.step import Move
from plait.kv.cache import KVCache, Root
from plait.kv.hit import NO_BLOCK
from plait.kv.leases import LEASED_FRACTION
from plait.kv.nodes import LEASED_S
from plait.kv.rules import MemoryRules

Kind = str
"""Of a group: "full", "window 5", "chunked 4" or "state"."""
Memory = tuple[int, tuple[int, ...], int, bool] | tuple[int, tuple[int, ...], int, bool, tuple[Kind, ...]]
"""Pages, blocks per page and group, tokens per block, prefix index on, and the groups' kinds if not all are full."""

Prefix = tuple[Root, tuple[int, ...]]
PieceKey = tuple[Prefix, int]
"""What a group that does not keep everything has of a prefix."""
Key = tuple[float, int, int]
ROOTS = (Root("fingerprint"), Root("fingerprint", tenant="other"))
KEPT_BEHIND = 3
"""Tokens behind a window that are no older than when they left it."""
LANES = (LaneId(0), LaneId(1))


@dataclass
class Published:
    """A published prefix: the block that holds its last tokens, in every group that keeps all."""

    blocks: dict[int, BlockId]
    born: int
    last_access_s: float


@dataclass
class Piece:
    """The same in one other group, or a checkpoint of a state."""

    block: BlockId
    born: int
    last_access_s: float
    was_hit: bool = False


@dataclass
class Flying:
    step: StepId
    start: int
    end: int
    known: bool
    snapshots: tuple[int, ...] = ()


@dataclass(frozen=True)
class Copy:
    """What a sequence takes from a partly matched block, in the first step that computes it. Where there are states
    alone, tokens that they have seen: nothing is copied from.
    """

    source: Prefix | None
    num_tokens: int


@dataclass(eq=False)
class Talker:
    """A sequence. `tokens` is all it will ever say; what is decided by chance is only how far it gets."""

    seq: SeqId
    root: Root
    tokens: list[int]
    publish: bool
    tables: list[list[BlockId]]
    committed: int
    published: int
    flying: list[Flying] = field(default_factory=list)
    readers: int = 0
    lane: LaneId | None = None
    copy: Copy | None = None
    moves: tuple[Move, ...] = ()
    moved: bool = False
    states: dict[int, Prefix] = field(default_factory=dict)
    """The newest checkpoint, by group; perhaps gone."""
    keeps_states: bool = False
    """It is the hit's, and still to be copied."""
    born: dict[int, int] = field(default_factory=dict)
    """Of the newest checkpoint."""
    checkpoints: dict[int, tuple[dict[int, BlockId], bool]] = field(default_factory=dict)
    """By length: blocks by group, and whether a committed step has written them."""
    slots: int = 0
    """Granted in every group."""
    matched: int = 0
    """Tokens with which a published prefix began too."""
    num_prompt: int = 0
    left: list[tuple[Piece, Prefix, int]] = field(default_factory=list)
    """Pieces that left the window a short while ago, and their group."""
    branch: Prefix | None = None
    """What it had in common with others when it came."""
    branch_node: int | None = None
    released_s: float | None = None

    @property
    def planned_end(self) -> int:
        return self.flying[-1].end if self.flying else self.committed

    @property
    def in_flight(self) -> bool:
        return bool(self.flying) or self.readers > 0


@dataclass
class Lease:
    """What somebody who waits will want, and when that was born: what comes again in its place is another's."""

    nodes: dict[Prefix, int]
    pieces: dict[PieceKey, int]
    until_s: float


@dataclass
class Flight:
    lane: LaneId
    chunks: list[tuple[Talker, Flying]] = field(default_factory=list)
    readers: list[Talker] = field(default_factory=list)
    sources: list[Prefix] = field(default_factory=list)
    pieces: list[PieceKey] = field(default_factory=list)


class Naive:
    """The model, beside the memory that it is a model of, and the dice."""

    def __init__(self, memory: Memory, dice: random.Random) -> None:
        self.num_pages, self.blocks_per_page, self.size, self.enable_prefix = memory[:4]
        kinds = memory[4] if len(memory) == 5 else ("full",) * len(self.blocks_per_page)
        self.kinds = [(kind.split()[0], int((kind + " 0").split()[1])) for kind in kinds]
        self.whole = [g for g, (kind, _) in enumerate(self.kinds) if kind == "full"]
        self.windows = [g for g, (kind, _) in enumerate(self.kinds) if kind in ("window", "chunked")]
        self.states = [g for g, (kind, _) in enumerate(self.kinds) if kind == "state"]
        groups = mixed_groups(self.blocks_per_page, self.kinds, self.size)
        layout = make_layout(self.num_pages, groups, prod(self.blocks_per_page), self.size)
        rules = MemoryRules(kept_behind=KEPT_BEHIND)
        self.block_bytes = [one.block_bytes for one in layout.groups]
        self.most_kept_bytes = int(rules.kept_fraction * layout.pool_bytes)
        self.kv = KVCache(layout, groups, self.enable_prefix, node_tokens=self.size, rules=rules)
        self.dice = dice
        self.now_s = self.told_s = 0.0
        self.published: dict[Prefix, Published] = {}
        self.pieces: dict[PieceKey, Piece] = {}
        self.keeping: dict[Prefix, set[PieceKey]] = {}
        """Trunks in use, in the order in which they began to keep pieces at which their users look no more, and which
        ones each of them wants.
        """
        self.leases: dict[SeqId, Lease] = {}
        self.most_leased_bytes = int(LEASED_FRACTION * layout.pool_bytes)
        self.live: dict[SeqId, Talker] = {}
        self.quarantined: list[Talker] = []
        self.flights: dict[StepId, Flight] = {}
        self.num_seqs = self.num_steps = self.num_born = self.num_evicted = 0
        self.seen: dict[str, int] = {}

    def prefixes(self, talker: Talker) -> list[Prefix]:
        """The published prefixes a sequence stands on."""
        ends = range(self.size, talker.published + 1, self.size)
        return [(talker.root, tuple(talker.tokens[:end])) for end in ends]

    def used_prefixes(self) -> set[Prefix]:
        used = {prefix for talker in [*self.live.values(), *self.quarantined] for prefix in self.prefixes(talker)}
        copies = [talker.copy for talker in self.live.values() if talker.copy is not None]
        sources = [copy.source for copy in copies if copy.source is not None]
        sources += [source for flight in self.flights.values() for source in flight.sources]
        for root, tokens in sources:
            used |= {(root, tokens[:end]) for end in range(self.size, len(tokens) + 1, self.size)}
        return used

    def used_pieces(self) -> set[PieceKey]:
        used = {key for flight in self.flights.values() for key in flight.pieces} | self.kept()
        for talker in [*self.live.values(), *self.quarantined]:
            used |= {(prefix, g) for g, prefix in talker.states.items() if talker.keeps_states}
            if talker.copy is not None and talker.copy.source is not None:
                used |= {(talker.copy.source, g) for g in self.windows}
            for place, prefix in enumerate(self.prefixes(talker)):
                for g in self.windows:
                    piece = self.pieces.get((prefix, g))
                    if piece is not None and talker.tables[g][place] == piece.block:
                        used.add((prefix, g))
        return used

    def kept(self) -> set[PieceKey]:
        """What any trunk wants."""
        return {key for wanted in self.keeping.values() for key in wanted}

    def settle_kept(self) -> None:
        """Trunks that nobody uses keep nothing."""
        used = self.used_prefixes()
        for trunk in [trunk for trunk in self.keeping if trunk not in used]:
            del self.keeping[trunk]

    def cached(self, group: int) -> dict[BlockId, Key]:
        """Published blocks of a group and when they go, used ones too."""
        if group in self.whole:
            nodes = self.leased_nodes()
            return {one.blocks[group]: self.key(prefix, one, prefix in nodes) for prefix, one in self.published.items()}
        pieces, of_group = self.leased_pieces(), [key for key in self.pieces if key[1] == group]
        return {self.pieces[key].block: self.key(key[0], self.pieces[key], key in pieces) for key in of_group}

    def key(self, prefix: Prefix, entry: Published | Piece, is_leased: bool) -> Key:
        return entry.last_access_s + LEASED_S * is_leased, -len(prefix[1]), entry.born

    def leased_nodes(self) -> set[Prefix]:
        named = [item for lease in self.leases.values() for item in lease.nodes.items()]
        return {prefix for prefix, born in named if prefix in self.published and self.published[prefix].born == born}

    def leased_pieces(self) -> set[PieceKey]:
        named = [item for lease in self.leases.values() for item in lease.pieces.items()]
        return {key for key, born in named if key in self.pieces and self.pieces[key].born == born}

    def bytes_of(self, nodes: set[Prefix], pieces: set[PieceKey]) -> int:
        of_node = sum(self.block_bytes[g] for g in self.whole)
        return of_node * len(nodes) + sum(self.block_bytes[g] for _, g in pieces)

    def private(self, talker: Talker, group: int) -> list[BlockId]:
        shared = self.cached(group)
        more = [blocks[group] for blocks, _ in talker.checkpoints.values() if group in blocks]
        return [block for block in [*talker.tables[group], *more] if block not in shared and block != NO_BLOCK]

    def pinned(self, group: int) -> set[BlockId]:
        if group in self.whole:
            blocks = {self.published[prefix].blocks[group] for prefix in self.used_prefixes()}
        else:
            blocks = {self.pieces[key].block for key in self.used_pieces() if key[1] == group}
        for talker in [*self.live.values(), *self.quarantined]:
            blocks |= set(self.private(talker, group))
        return blocks

    def idle(self, group: int) -> dict[BlockId, Key]:
        pinned = self.pinned(group)
        return {block: key for block, key in self.cached(group).items() if block not in pinned}

    def room(self) -> tuple[int, list[int], int, list[int]]:
        """Free pages and free blocks on others by group; and both after evicting everything."""
        pages = loose = self.num_pages
        free, most = [], []
        for group, k in enumerate(self.blocks_per_page):
            pinned, idle = self.pinned(group), self.idle(group)
            taken, kept = {block // k for block in [*pinned, *idle]}, {block // k for block in pinned}
            pages -= len(taken)
            loose -= len(kept)
            free.append(len(taken) * k - len(pinned) - len(idle))
            most.append(len(kept) * k - len(pinned))
        return pages, free, loose, most

    def num_pages_for(self, demand: list[int], have: list[int]) -> int:
        short = [max(0, count - free) for count, free in zip(demand, have, strict=True)]
        return sum(-(-blocks // k) for blocks, k in zip(short, self.blocks_per_page, strict=True))

    def make_room(self, demand: list[int]) -> bool:
        """Evict as the memory should; False if that cannot help."""
        _, _, loose, most = self.room()
        if self.num_pages_for(demand, most) > loose:
            return False
        while True:
            pages, free, _, _ = self.room()
            if self.num_pages_for(demand, free) <= pages:
                return True
            self.evict_one([g for g in range(len(demand)) if demand[g] > free[g]])
            self.count("evicted")

    def evict_one(self, short: list[int]) -> None:
        """The smallest key of: unused blocks of a group that is short, and pages on which everything is unused."""
        idle = [self.idle(g) for g in range(len(self.kinds))]
        own = [(key, g, [block]) for g in short for block, key in idle[g].items()]
        pages = []
        for g, k in enumerate(self.blocks_per_page):
            pinned_pages = {block // k for block in self.pinned(g)}
            for page in {block // k for block in idle[g]} - pinned_pages:
                blocks = [block for block in range(page * k, page * k + k) if block in idle[g]]
                pages.append((max(idle[g][BlockId(block)] for block in blocks), g, blocks))
        best = min(own, default=None)
        page = min(pages, default=None) if len(self.kinds) > 1 else None
        if page is not None and (best is None or page[0] < best[0]):
            self.count("whole page")
            for block in page[2]:
                self.evict_block(page[1], BlockId(block))
        else:
            assert best is not None
            self.evict_block(best[1], best[2][0])

    def evict_block(self, group: int, block: BlockId) -> None:
        if group not in self.whole:
            key = next((key for key, piece in self.pieces.items() if key[1] == group and piece.block == block), None)
            if key is not None:
                del self.pieces[key]
                self.num_evicted += 1
            return
        gone = next((prefix for prefix, entry in self.published.items() if entry.blocks[group] == block), None)
        if gone is None:
            return  # went with another block of its page
        root, tokens = gone
        below = [one for one in self.published if one[0] == root and one[1][: len(tokens)] == tokens]
        for prefix in below:
            del self.published[prefix]
            self.num_evicted += 1
        for key in [key for key in self.pieces if self.whole_blocks(key[0]) in below]:
            del self.pieces[key]
            self.num_evicted += 1

    def whole_blocks(self, prefix: Prefix) -> Prefix:
        """What goes, goes with the checkpoints inside the next block."""
        root, tokens = prefix
        return root, tokens[: len(tokens) // self.size * self.size]

    def obtainable_tokens(self) -> int:
        """By trying every number of blocks against pages whose pinned blocks stay."""
        _, _, loose, most = self.room()
        count = 0
        while count < 3 * self.num_pages * max(self.blocks_per_page):
            if self.num_pages_for(self.kv._room.needed((count + 1) * self.size), most) > loose:
                return count * self.size
            count += 1
        return -1

    def is_dead(self, group: int, place: int, num_tokens: int) -> bool:
        """Whether no row from `num_tokens` on sees a slot of a table entry."""
        kind, size = self.kinds[group]
        last = (place + 1) * self.size - 1
        first = num_tokens - size + 1 if kind == "window" else num_tokens - num_tokens % size
        return last < first

    def exists(self, prefix: Prefix) -> bool:
        """Whether the index must still lead to a prefix."""
        if self.whole:
            return prefix in self.published
        root, tokens = prefix
        ends = [key[0] for key in self.pieces] + list(self.used_prefixes())
        return any(one[0] == root and one[1][: len(tokens)] == tokens for one in ends)

    def expected_chain(self, tokens: list[int], root: Root, cap: int) -> int:
        end = 0
        while end + self.size <= cap and self.exists((root, tuple(tokens[: end + self.size]))):
            end += self.size
        return end

    def expected_hit(self, tokens: list[int], root: Root, cap: int) -> int:
        """The longest that is possible, by trying all."""
        return max(
            end
            for end in range(0, self.expected_chain(tokens, root, cap) + 1, self.size)
            if all(self.is_possible(tokens, root, end, g) for g in [*self.windows, *self.states])
        )

    def is_possible(self, tokens: list[int], root: Root, end: int, group: int) -> bool:
        if group in self.states:
            return end == 0 or ((root, tuple(tokens[:end])), group) in self.pieces
        return all(
            self.is_dead(group, place, end) or ((root, tuple(tokens[: (place + 1) * self.size])), group) in self.pieces
            for place in range(end // self.size)
        )

    def checkpoints_inside(self, tokens: list[int], root: Root, start: int, cap: int) -> list[int]:
        """Lengths beyond `start` inside blocks where a hit may end: every state was copied there, and something that
        begins so is published, where there are blocks of tokens.
        """
        most, found = self.expected_chain(tokens, root, cap), []
        for length in range(start + 1, cap + 1):
            end, prefix = length // self.size * self.size, tuple(tokens[:length])
            if length == end or end > most or any(((root, prefix), g) not in self.pieces for g in self.states):
                continue
            blocks = [
                tokens
                for other, tokens in self.published
                if other == root and len(tokens) == end + self.size and tokens[:length] == prefix
            ]
            is_there = any(all(((root, block), g) in self.pieces for g in self.windows) for block in blocks)
            if (is_there or not (self.whole or self.windows)) and all(
                self.is_possible(tokens, root, end, g) for g in self.windows
            ):
                found.append(length)
        return found

    def expected_tail(self, tokens: list[int], root: Root, start: int, cap: int) -> int:
        best = 0
        for other, prefix in self.published:
            if any(((other, prefix), g) not in self.pieces for g in self.windows):
                continue
            if other == root and len(prefix) == start + self.size and prefix[:start] == tuple(tokens[:start]):
                shared = 0
                while start + shared < cap and shared < self.size and prefix[start + shared] == tokens[start + shared]:
                    shared += 1
                best = max(best, shared)
        return best

    def expected_pending(self, tokens: list[int], root: Root, start: int, cap: int) -> StepId | None:
        wanted = start + self.size
        if wanted > cap or self.expected_chain(tokens, root, cap) > start:
            return None
        steps = []
        for talker in self.live.values():
            if not talker.publish or talker.root != root or talker.published != start:
                continue
            if talker.tokens[:wanted] != tokens[:wanted]:
                continue
            end = talker.committed
            for flying in talker.flying:
                if flying.end <= end:
                    continue
                if flying.start != end or not flying.known:
                    break
                end = flying.end
                if end >= wanted:
                    steps.append(flying.step)
                    break
        return min(steps, default=None)

    def count(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1
