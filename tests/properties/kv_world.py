"""A memory, a naive model of it, and dice: each operation is done to both and compared.

The model knows nothing of nodes, heaps, page counts or reference counts. It keeps whole prefixes as tuples, recomputes
from scratch who uses what and which pages are whose, and looks at all there is to know what goes next.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import prod

from tests.unit.kv.kit import make_layout, mixed_groups

from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import FROM_DEVICE, BlockGrant, Chunk, Move, Snapshot, StepPlan
from plait.kv.cache import Grants, Hit, KVCache, Root
from plait.kv.hit import NO_BLOCK
from plait.kv.index import OUTLIVED_S
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
    """What a sequence takes from a partly matched block, in the first step that computes it."""

    source: Prefix
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
    released_s: float | None = None

    @property
    def planned_end(self) -> int:
        return self.flying[-1].end if self.flying else self.committed

    @property
    def in_flight(self) -> bool:
        return bool(self.flying) or self.readers > 0


@dataclass
class Flight:
    lane: LaneId
    chunks: list[tuple[Talker, Flying]] = field(default_factory=list)
    readers: list[Talker] = field(default_factory=list)
    sources: list[Prefix] = field(default_factory=list)
    pieces: list[PieceKey] = field(default_factory=list)


class World:
    """The memory, its model, and the dice."""

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
        self.kv = KVCache(layout, groups, self.enable_prefix, node_tokens=self.size, rules=rules)
        self.dice = dice
        self.now_s = self.told_s = 0.0
        self.published: dict[Prefix, Published] = {}
        self.pieces: dict[PieceKey, Piece] = {}
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
        sources = [talker.copy.source for talker in self.live.values() if talker.copy is not None]
        sources += [source for flight in self.flights.values() for source in flight.sources]
        for root, tokens in sources:
            used |= {(root, tokens[:end]) for end in range(self.size, len(tokens) + 1, self.size)}
        return used

    def used_pieces(self) -> set[PieceKey]:
        used = {key for flight in self.flights.values() for key in flight.pieces}
        for talker in [*self.live.values(), *self.quarantined]:
            used |= {(prefix, g) for g, prefix in talker.states.items() if talker.keeps_states}
            if talker.copy is not None:
                used |= {(talker.copy.source, g) for g in self.windows}
            for place, prefix in enumerate(self.prefixes(talker)):
                for g in self.windows:
                    piece = self.pieces.get((prefix, g))
                    if piece is not None and talker.tables[g][place] == piece.block:
                        used.add((prefix, g))
        return used

    def cached(self, group: int) -> dict[BlockId, Key]:
        """Published blocks of a group and when they go, used ones too."""
        if group in self.whole:
            return {entry.blocks[group]: self.key(prefix) for prefix, entry in self.published.items()}
        return {piece.block: self.piece_key(key) for key, piece in self.pieces.items() if key[1] == group}

    def key(self, prefix: Prefix) -> Key:
        return self.published[prefix].last_access_s, -len(prefix[1]), self.published[prefix].born

    def piece_key(self, key: PieceKey) -> Key:
        return self.pieces[key].last_access_s, -len(key[0][1]), self.pieces[key].born

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
        for key in [key for key in self.pieces if key[0] in below]:
            del self.pieces[key]
            self.num_evicted += 1

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

    def expected_tail(self, tokens: list[int], root: Root, start: int, cap: int) -> int:
        best = 0
        if self.states:
            return 0
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

    def tell(self) -> float:
        """The time, which the memory knows only from its callers."""
        self.told_s = self.now_s
        return self.told_s

    def look(self, tokens: list[int], root: Root, limit: int | None = None) -> None:
        hit = self.kv.lookup(tokens, root, limit)
        if not self.enable_prefix:
            assert hit.num_tokens == 0
            return
        cap = len(tokens) - 1 if limit is None else min(limit, len(tokens) - 1)
        end = self.expected_hit(tokens, root, cap)
        assert hit.num_tokens == end
        for group, blocks in enumerate(hit.blocks):
            assert list(blocks) == self.expected_blocks(tokens, root, end, group)
        found, best = hit.tail.num_tokens if hit.tail else 0, self.expected_tail(tokens, root, end, cap)
        # Of several that share the most, one may be without a window's block.
        assert found == best if not self.windows else found in (best, 0)
        assert hit.pending == self.expected_pending(tokens, root, end, cap)
        if hit.tail:
            self.count("tail")
        if hit.pending is not None:
            self.count("pending")

    def expected_blocks(self, tokens: list[int], root: Root, end: int, group: int) -> list[BlockId]:
        prefixes = [(root, tuple(tokens[:e])) for e in range(self.size, end + 1, self.size)]
        if group in self.states:
            return [self.pieces[prefix, group].block for prefix in prefixes[-1:]]
        if group in self.whole:
            return [self.published[prefix].blocks[group] for prefix in prefixes]
        dead = [self.is_dead(group, place, end) for place in range(len(prefixes))]
        return [NO_BLOCK if d else self.pieces[p, group].block for p, d in zip(prefixes, dead, strict=True)]

    def random_tokens(self, most: int) -> list[int]:
        return self.babble(self.dice.randint(1, most))

    def babble(self, num_tokens: int) -> list[int]:
        """Tokens of a vocabulary of two words."""
        bits = self.dice.getrandbits(num_tokens)
        return [bits >> place & 1 for place in range(num_tokens)]

    def admit(self) -> bool:
        root = ROOTS[self.dice.random() < 0.2]
        publish = self.enable_prefix and self.dice.random() < 0.9
        tokens = self.random_tokens(6 * self.size)
        self.look(tokens, root)
        hit = self.kv.lookup(tokens, root) if publish else self.kv.no_hit()
        hit = hit.without_tail() if self.dice.random() < 0.2 else hit
        room, fits = self.kv.room_behind(hit), self.kv.fits(hit, len(tokens), 0)
        seq = SeqId(self.num_seqs)
        self.num_seqs += 1
        self.kv.open(seq, root, hit, self.tell(), publish=publish)
        if not self.windows and not self.states:
            assert self.kv.available_tokens == room
        talker = self.live[seq] = Talker(
            seq=seq,
            root=root,
            tokens=tokens + self.babble(40 * self.size),
            publish=publish,
            tables=[[] if g in self.states else list(blocks) for g, blocks in enumerate(hit.blocks)],
            committed=hit.num_tokens,
            published=hit.num_tokens,
            slots=hit.num_tokens,
            num_prompt=len(tokens),
        )
        self.note_hit(talker, hit, len(tokens))
        if hit.num_tokens:
            talker.states = {g: (root, tuple(tokens[: hit.num_tokens])) for g in self.states}
            talker.keeps_states = bool(talker.states)
        if hit.tail is not None:
            talker.copy = Copy(self.prefix_of(hit), hit.tail.num_tokens)
            assert list(talker.copy.source[1][: hit.num_reused]) == tokens[: hit.num_reused]
            assert hit.num_reused < len(tokens)
        talker.moved = talker.copy is None and not talker.states
        end = self.kv.extent(seq, len(tokens), self.dice.randint(hit.num_reused + 1, len(tokens)))
        if fits:
            assert end > hit.num_reused, "what fits can begin"
        is_held = self.reserve(talker, len(tokens), max(end, hit.num_tokens))
        assert is_held or not fits, "what fits is granted"
        if not is_held:
            self.release(talker)
        return True

    def note_hit(self, talker: Talker, hit: Hit, num_prompt: int) -> None:
        """What others may hit again, because this one did, or because its prompt parts from another's there."""
        used = [self.prefix_of(hit)] if hit.tail is not None else []
        for end in range(self.size, hit.num_tokens + 1, self.size):
            used.append((talker.root, tuple(talker.tokens[:end])))
        for prefix in used:
            for g in self.windows:
                place = len(prefix[1]) // self.size - 1
                if len(prefix[1]) > hit.num_tokens or not self.is_dead(g, place, hit.num_tokens):
                    self.pieces[prefix, g].was_hit = True
        if talker.publish and self.enable_prefix:
            cap = num_prompt - 1
            talker.matched = self.expected_chain(talker.tokens, talker.root, cap)
            assert hit.num_matched == talker.matched

    def prefix_of(self, hit: Hit) -> Prefix:
        """The prefix whose last block is the hit's tail."""
        assert hit.tail is not None
        for prefix, entry in self.published.items():
            blocks = entry.blocks | {
                g: self.pieces[prefix, g].block for g in self.windows if (prefix, g) in self.pieces
            }
            if blocks == dict(enumerate(hit.tail.blocks)):
                return prefix
        raise AssertionError(f"{hit.tail} belongs to no prefix")

    def reserve(self, talker: Talker, num_tokens: int, up_to: int) -> bool:
        """Reserve, and hold the grants and evictions against the model."""
        demand = []
        for g, table in enumerate(talker.tables):
            end = num_tokens if g in self.whole else min(up_to, num_tokens)
            demand.append(1 - len(table) if g in self.states else max(0, -(-end // self.size) - len(table)))
        grants = self.kv.reserve(talker.seq, num_tokens, self.tell(), up_to)
        before = self.num_evicted
        granted = not any(demand) or self.make_room(demand)
        assert self.kv.explain().index.num_evictions == self.num_evicted
        assert (grants is not None) == granted
        if grants is None:
            return False
        if self.num_evicted > before:
            self.compare_index()
        self.take(talker, grants, demand)
        end = min(up_to, num_tokens) if self.windows else num_tokens
        talker.slots = max(talker.slots, -(-end // self.size) * self.size)
        return True

    def take(self, talker: Talker, grants: Grants, demand: list[int]) -> None:
        taken = {(g, b) for g in range(len(talker.tables)) for b in [*self.pinned(g), *self.cached(g)]}
        for grant in grants.blocks:
            table = talker.tables[grant.group]
            new = grant.blocks[len(table) - grant.first :] if grant.first < len(table) else grant.blocks
            assert list(grant.blocks[: max(0, len(table) - grant.first)]) == table[grant.first :]
            assert grant.first <= len(table)
            assert len(new) == demand[grant.group]
            assert NO_BLOCK not in grant.blocks
            assert not taken & {(grant.group, block) for block in new}, "a block in use or in quarantine was granted"
            table += new
            demand[grant.group] = 0
        assert not any(demand)
        if talker.moved:
            assert grants.moves == ()
            return
        place = talker.committed // self.size
        if talker.copy is not None and any(len(talker.tables[g]) <= place for g in [*self.whole, *self.windows]):
            assert grants.moves == (), "there is nothing to copy into yet"
            return
        talker.moved = True
        moves = [
            Move(GroupId(g), self.pieces[p, g].block, 0, talker.tables[g][0], 0, 1) for g, p in talker.states.items()
        ]
        for g in sorted([*self.whole, *self.windows]) if talker.copy is not None else ():
            source, count = talker.copy.source, talker.copy.num_tokens
            block = self.published[source].blocks[g] if g in self.whole else self.pieces[source, g].block
            moves.append(Move(GroupId(g), block, 0, talker.tables[g][place], 0, count))
        talker.moves = tuple(moves)
        assert grants.moves == talker.moves

    def compare_index(self) -> None:
        """The index holds exactly the model's prefixes."""
        if self.whole:
            assert self.kv.explain().index.num_nodes == len(self.published)
        for root, tokens in self.published:
            cap = len(tokens)
            assert self.kv.lookup([*tokens, 2], root).num_tokens == self.expected_hit([*tokens, 2], root, cap)

    def submit(self) -> bool:
        lane = self.dice.choice(LANES)
        ready = [
            talker
            for talker in self.live.values()
            if talker.planned_end < talker.slots
            and (not talker.flying or (talker.lane == lane and talker.flying[0].start >= talker.committed))
        ]
        if not ready:
            return False
        chosen = self.dice.sample(ready, min(len(ready), self.dice.randint(1, 3)))
        step = StepId(self.num_steps)
        self.num_steps += 1
        flight = Flight(lane)
        moves: list[Move] = []
        chunks = []
        for talker in chosen:
            first = talker.planned_end
            if talker.moves:
                start = first + self.copy_hit(talker, flight, moves)
            else:
                start = first + (self.copy_tail(talker, flight, moves) if self.dice.random() < 0.2 else 0)
            if start >= talker.slots:
                end = start  # the hit's tail alone, and no room behind it in a window yet
            end = self.dice.randint(start + 1, talker.slots)
            known = end - start > 1 or self.dice.random() < 0.6
            tokens = tuple(talker.tokens[start:end]) if known else FROM_DEVICE
            snapshots = self.make_checkpoints(talker, start, end)
            chunks.append(Chunk(talker.seq, start, end - start, tokens, snapshots=snapshots))
            lengths = tuple(dict.fromkeys(start + one.offset + 1 for one in snapshots))
            flying = Flying(step, first, end, known and start == first, lengths)
            talker.flying.append(flying)
            talker.lane = lane
            flight.chunks.append((talker, flying))
        blocks = self.name_another(chosen, flight)
        self.kv.submitted(StepPlan(step, lane, (), blocks, tuple(moves), tuple(chunks)))
        self.flights[step] = flight
        for talker in chosen:
            for g, prefix in talker.states.items() if talker.keeps_states else ():
                self.stamp_piece(prefix, g, self.told_s)
            talker.keeps_states = False
        self.count("submitted")
        return True

    def name_another(self, chosen: list[Talker], flight: Flight) -> tuple[BlockGrant, ...]:
        """Now and then a step also names the table of a sequence that it does not compute."""
        others = [talker for talker in self.live.values() if talker not in chosen and talker.tables[0]]
        if not others or self.dice.random() > 0.1:
            return ()
        other = self.dice.choice(others)
        other.readers += 1
        flight.readers.append(other)
        self.count("named")
        return (BlockGrant(other.seq, GroupId(0), 0, tuple(other.tables[0])),)

    def make_checkpoints(self, talker: Talker, start: int, end: int) -> tuple[Snapshot, ...]:
        """Now and then a chunk leaves copies of the states behind; or the blocks are there and it does not."""
        after = max([talker.planned_end, *talker.checkpoints])
        lengths = [length for length in range(self.size, end + 1, self.size) if length > max(start, after)]
        if not self.states or not talker.publish or not lengths or self.dice.random() < 0.5:
            return ()
        length = self.dice.choice(lengths)
        demand = [int(g in self.states) for g in range(len(self.kinds))]
        promised = self.kv._promises.made()
        _, _, loose, most = self.room()
        beside = self.num_pages_for([one + more for one, more in zip(demand, promised, strict=True)], most)
        given = self.kv.checkpoint(talker.seq, length, self.tell())
        made = beside <= loose and self.make_room(demand)
        assert (given is not None) == made
        if given is None:
            return ()
        for g, block in given:
            assert block not in [*self.pinned(g), *self.cached(g)]
        talker.checkpoints[length] = (dict(given), False)
        self.count("checkpoint")
        if self.dice.random() < 0.2:
            return ()
        return tuple(Snapshot(length - 1 - start, g, block) for g, block in given)

    def copy_hit(self, talker: Talker, flight: Flight, moves: list[Move]) -> int:
        """The copies that came with the hit; from now on their step references the sources. Returns how many tokens."""
        moves += talker.moves
        talker.moves = ()
        for g, prefix in talker.states.items():
            flight.sources.append(prefix)
            flight.pieces.append((prefix, g))
            self.count("state copied")
        copy, talker.copy = talker.copy, None
        if copy is None:
            return 0
        for g in [*self.whole, *self.windows]:
            flight.sources.append(copy.source)
            if g in self.windows:
                flight.pieces.append((copy.source, g))
                self.stamp_piece(copy.source, g, self.told_s)
        self.stamp(*copy.source, self.told_s)
        self.count("hit copied")
        return copy.num_tokens

    def copy_tail(self, talker: Talker, flight: Flight, moves: list[Move]) -> int:
        """Copy from a published block that says what this sequence says next; returns how many tokens."""
        start = talker.planned_end
        offset = start % self.size
        room = min(talker.slots - start - 1, self.size - offset)
        block_end = start - offset + self.size
        source = next(
            (
                (root, tokens)
                for root, tokens in self.published
                if root == talker.root
                and len(tokens) == block_end
                and list(tokens[: start + 1]) == talker.tokens[: start + 1]
                and all(((root, tokens), g) in self.pieces for g in self.windows)
            ),
            None,
        )
        if source is None or room < 1 or self.states:
            return 0
        count = 1
        while count < room and source[1][start + count] == talker.tokens[start + count]:
            count += 1
        for group, table in enumerate(talker.tables):
            src, dst = self.published[source].blocks.get(group), table[start // self.size]
            if src is None:
                src = self.pieces[source, group].block
                flight.pieces.append((source, group))
            moves.append(Move(GroupId(group), src, offset, dst, offset, count))
            flight.sources.append(source)
        self.count("copied")
        return count

    def collect(self) -> bool:
        """The oldest step of one lane is over; lanes overtake each other."""
        oldest = {flight.lane: step for step, flight in reversed(self.flights.items())}
        if not oldest:
            return False
        step = self.dice.choice(sorted(oldest.values()))
        flight = self.flights[step]
        cancelled = self.dice.random() < 0.15
        for talker, flying in flight.chunks:
            if talker.released_s is None and not cancelled and flying.start == talker.committed:
                self.commit(step, talker, flying)
            if talker.released_s is None and self.dice.random() < 0.1:
                self.release(talker)
        self.kv.collected(step)
        del self.flights[step]
        for talker, flying in flight.chunks:
            talker.flying.remove(flying)
        for talker in flight.readers:
            talker.readers -= 1
        for root, tokens in flight.sources:
            self.stamp(root, tokens, self.told_s)
        for prefix, g in flight.pieces:
            self.stamp_piece(prefix, g, self.told_s)
        self.quarantined = [talker for talker in self.quarantined if talker.in_flight]
        self.count("cancelled" if cancelled else "collected")
        return True

    def commit(self, step: StepId, talker: Talker, flying: Flying) -> None:
        end = flying.end
        if self.dice.random() < 0.15:
            end = self.dice.randint(flying.start, flying.end)
        self.kv.commit(step, talker.seq, talker.tokens[flying.start : end], self.tell())
        self.kv.check()
        talker.committed = end
        for length in flying.snapshots:
            if length <= end and length in talker.checkpoints:
                talker.checkpoints[length] = (talker.checkpoints[length][0], True)
        for first in range(talker.published, end - self.size + 1, self.size) if talker.publish else ():
            self.publish(talker, (talker.root, tuple(talker.tokens[: first + self.size])), first // self.size)
        self.drop_dead(talker)
        self.kv.check()

    def publish(self, talker: Talker, prefix: Prefix, place: int) -> None:
        if prefix not in self.published:
            blocks = {g: talker.tables[g][place] for g in self.whole}
            self.published[prefix] = Published(blocks, self.new_id(), self.now_s)
        else:
            self.count("duplicate")
        talker.published = len(prefix[1])
        for g in self.windows:
            if (prefix, g) not in self.pieces and talker.tables[g][place] != NO_BLOCK:
                self.pieces[prefix, g] = Piece(talker.tables[g][place], self.new_id(), self.now_s)
        for length in [length for length in talker.checkpoints if length <= talker.published]:
            blocks, is_written = talker.checkpoints.pop(length)
            for g, block in blocks.items():
                if is_written and (prefix, g) not in self.pieces:
                    self.pieces[prefix, g] = Piece(block, self.new_id(), self.now_s)
                    talker.states[g] = prefix
                    talker.born[g] = self.pieces[prefix, g].born
                    self.count("state published")

    def drop_dead(self, talker: Talker) -> None:
        if talker.readers:
            return
        for g in self.windows:
            left_before = len(talker.left)
            for place, prefix in enumerate(self.prefixes(talker)):
                piece = self.pieces.get((prefix, g))
                is_dead = self.is_dead(g, place, talker.committed)
                if is_dead and piece is not None and piece.block == talker.tables[g][place]:
                    self.stamp_piece(prefix, g, self.now_s)
                    talker.left.append((piece, prefix, g))
            for place, block in enumerate(talker.tables[g]):
                if block != NO_BLOCK and self.is_dead(g, place, talker.committed):
                    talker.tables[g][place] = NO_BLOCK
                    self.count("left the window")
            if left_before < len(talker.left):
                self.outlive(talker, g)

    def outlive(self, talker: Talker, group: int) -> None:
        """What is far behind a window, was never hit, and is not where prompts part or end, goes first."""
        used = self.used_pieces()
        for piece, prefix, g in [one for one in talker.left if one[2] == group]:
            end, place = len(prefix[1]), len(prefix[1]) // self.size - 1
            if not self.is_dead(g, place, max(0, talker.committed - KEPT_BEHIND)):
                continue
            talker.left.remove((piece, prefix, g))
            stays = any(
                end <= last and not self.is_dead(g, place, max(0, last - KEPT_BEHIND))
                for last in (talker.matched, talker.num_prompt)
            )
            is_there = self.pieces.get((prefix, g)) is piece and (prefix, g) not in used
            if is_there and not stays and not piece.was_hit:
                piece.last_access_s = self.now_s - OUTLIVED_S
                self.count("outlived")

    def new_id(self) -> int:
        self.num_born += 1
        return self.num_born

    def release(self, talker: Talker) -> None:
        self.kv.release(talker.seq, self.tell())
        del self.live[talker.seq]
        talker.released_s = self.now_s
        self.stamp(talker.root, tuple(talker.tokens[: talker.published]), self.now_s)
        if talker.copy is not None:
            self.stamp(*talker.copy.source, self.now_s)
            for g in self.windows:
                self.stamp_piece(talker.copy.source, g, self.now_s)
            talker.copy = None
        talker.keeps_states = talker.keeps_states and talker.in_flight
        for g, prefix in talker.states.items():
            piece = self.pieces.get((prefix, g))
            if piece is not None and piece.born == talker.born.get(g, piece.born):
                self.stamp_piece(prefix, g, self.now_s)
        for place, prefix in enumerate(self.prefixes(talker)):
            for g in self.windows:
                piece = self.pieces.get((prefix, g))
                if piece is not None and piece.block == talker.tables[g][place]:
                    self.stamp_piece(prefix, g, self.now_s)
        if talker.in_flight:
            self.quarantined.append(talker)
            self.count("quarantined")

    def stamp(self, root: Root, tokens: tuple[int, ...], at_s: float) -> None:
        for end in range(self.size, len(tokens) + 1, self.size):
            entry = self.published[root, tokens[:end]]
            entry.last_access_s = max(entry.last_access_s, at_s)

    def stamp_piece(self, prefix: Prefix, group: int, at_s: float) -> None:
        piece = self.pieces[prefix, group]
        piece.last_access_s = max(piece.last_access_s, at_s)

    def reset(self) -> bool:
        used, used_pieces = self.used_prefixes(), self.used_pieces()
        gone = [prefix for prefix in self.published if prefix not in used] if self.whole else []
        gone_pieces = [key for key in self.pieces if key not in used_pieces]
        assert self.kv.reset_prefix_index() == len(gone) + len(gone_pieces)
        for prefix in gone:
            del self.published[prefix]
        for key in gone_pieces:
            del self.pieces[key]
        self.num_evicted += len(gone) + len(gone_pieces)
        return True

    def count(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def look_around(self) -> bool:
        limit = self.dice.choice((None, 0, self.size, 3 * self.size))
        self.look(self.random_tokens(6 * self.size), self.dice.choice(ROOTS), limit)
        return True

    def grow(self) -> bool:
        if not self.live:
            return False
        talker = self.dice.choice(list(self.live.values()))
        most = min(len(talker.tokens), talker.planned_end + 2 * self.size)
        num_tokens = self.dice.randint(1, most)
        up_to = num_tokens
        if self.windows and self.dice.random() < 0.7:
            up_to = max(min(talker.slots, num_tokens), self.kv.extent(talker.seq, num_tokens, num_tokens))
        self.reserve(talker, num_tokens, up_to)
        return True

    def leave(self) -> bool:
        if self.live:
            self.release(self.dice.choice(list(self.live.values())))
            return True
        return False

    def act(self) -> None:
        """One operation that changes or asks something."""
        self.now_s += self.dice.choice((0.0, 0.0, 1.0))
        acts = (self.admit, self.look_around, self.grow, self.submit, self.collect, self.leave, self.reset)
        while not self.dice.choices(acts, (200, 100, 100, 250, 230, 118, 2))[0]():
            pass

    def compare(self) -> None:
        self.kv.check()
        if (expected := self.obtainable_tokens()) >= 0:
            assert self.kv.available_tokens == expected
        for talker in self.live.values():
            assert [list(self.kv.table(talker.seq, GroupId(g))) for g in range(len(talker.tables))] == talker.tables

    def end(self) -> None:
        """Everything is released and the index reset: every page is back."""
        while self.flights:
            self.collect()
        for talker in list(self.live.values()):
            self.release(talker)
        self.kv.check()
        assert self.kv.usage().used_bytes == 0
        self.compare_index()
        self.reset()
        assert not self.pieces
        report = self.kv.explain()
        assert report.usage.free_pages == self.num_pages
        assert report.index.num_roots == 0
        self.kv.check()
