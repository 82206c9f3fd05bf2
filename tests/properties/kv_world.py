"""A memory, a naive model of it, and dice: each operation is done to both and compared.

The model knows nothing of nodes, heaps, page counts or reference counts. It keeps whole prefixes as tuples, recomputes
from scratch who uses what, and sorts all unused prefixes to know which goes next.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import prod

from tests.unit.kv.kit import full_groups, make_layout

from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import FROM_DEVICE, BlockGrant, Chunk, Move, StepPlan
from plait.kv.cache import Grants, KVCache, Root

Memory = tuple[int, tuple[int, ...], int, bool]
"""Pages, blocks per page and group, tokens per block, prefix index on."""

Prefix = tuple[Root, tuple[int, ...]]
ROOTS = (Root("fingerprint"), Root("fingerprint", tenant="other"))
LANES = (LaneId(0), LaneId(1))


@dataclass
class Published:
    """A published prefix: the block that holds its last tokens, per group."""

    blocks: tuple[BlockId, ...]
    born: int
    last_access_s: float


@dataclass
class Flying:
    step: StepId
    start: int
    end: int
    known: bool


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
    released_s: float | None = None

    @property
    def planned_end(self) -> int:
        return self.flying[-1].end if self.flying else self.committed

    def num_slots(self, tokens_per_block: int) -> int:
        return len(self.tables[0]) * tokens_per_block

    @property
    def in_flight(self) -> bool:
        return bool(self.flying) or self.readers > 0


@dataclass
class Flight:
    lane: LaneId
    chunks: list[tuple[Talker, Flying]] = field(default_factory=list)
    readers: list[Talker] = field(default_factory=list)
    sources: list[Prefix] = field(default_factory=list)


class World:
    """The memory, its model, and the dice."""

    def __init__(self, memory: Memory, dice: random.Random) -> None:
        self.num_pages, self.blocks_per_page, self.size, self.enable_prefix = memory
        groups = full_groups(*self.blocks_per_page)
        layout = make_layout(self.num_pages, groups, prod(self.blocks_per_page), self.size)
        self.kv = KVCache(layout, groups, self.enable_prefix)
        self.dice = dice
        self.now_s = self.told_s = 0.0
        self.published: dict[Prefix, Published] = {}
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

    def private(self, talker: Talker, group: int) -> list[BlockId]:
        shared = {entry.blocks[group] for entry in self.published.values()}
        return [block for block in talker.tables[group] if block not in shared]

    def pinned(self, group: int) -> set[BlockId]:
        blocks = {self.published[prefix].blocks[group] for prefix in self.used_prefixes()}
        for talker in [*self.live.values(), *self.quarantined]:
            blocks |= set(self.private(talker, group))
        return blocks

    def eviction_order(self) -> list[Prefix]:
        used = self.used_prefixes()
        idle = [prefix for prefix in self.published if prefix not in used]
        return sorted(idle, key=lambda p: (self.published[p].last_access_s, -len(p[1]), self.published[p].born))

    def obtainable_tokens(self) -> int:
        """By trying every number of blocks against pages whose pinned blocks stay."""
        loose = self.num_pages
        room = []
        for group, k in enumerate(self.blocks_per_page):
            pinned = self.pinned(group)
            kept_pages = {block // k for block in pinned}
            loose -= len(kept_pages)
            room.append(len(kept_pages) * k - len(pinned))
        count = 0
        while True:
            more = [max(0, count + 1 - free) for free in room]
            if sum(-(-blocks // k) for blocks, k in zip(more, self.blocks_per_page, strict=True)) > loose:
                return count * self.size
            count += 1

    def expected_hit(self, tokens: list[int], root: Root, cap: int) -> int:
        end = 0
        while end + self.size <= cap and (root, tuple(tokens[: end + self.size])) in self.published:
            end += self.size
        return end

    def expected_tail(self, tokens: list[int], root: Root, start: int, cap: int) -> int:
        best = 0
        for other, prefix in self.published:
            if other == root and len(prefix) == start + self.size and prefix[:start] == tuple(tokens[:start]):
                shared = 0
                while start + shared < cap and shared < self.size and prefix[start + shared] == tokens[start + shared]:
                    shared += 1
                best = max(best, shared)
        return best

    def expected_pending(self, tokens: list[int], root: Root, start: int, cap: int) -> StepId | None:
        wanted = start + self.size
        if wanted > cap:
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
            ends = range(self.size, end + 1, self.size)
            assert list(blocks) == [self.published[root, tuple(tokens[:e])].blocks[group] for e in ends]
        assert (hit.tail.num_tokens if hit.tail else 0) == self.expected_tail(tokens, root, end, cap)
        assert hit.pending == self.expected_pending(tokens, root, end, cap)
        if hit.tail:
            self.count("tail")
        if hit.pending is not None:
            self.count("pending")

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
        room = self.kv.room_behind(hit)
        seq = SeqId(self.num_seqs)
        self.num_seqs += 1
        self.kv.open(seq, root, hit, self.tell(), publish=publish)
        assert self.kv.available_tokens == room
        talker = self.live[seq] = Talker(
            seq=seq,
            root=root,
            tokens=tokens + self.babble(40 * self.size),
            publish=publish,
            tables=[list(blocks) for blocks in hit.blocks],
            committed=hit.num_tokens,
            published=hit.num_tokens,
        )
        if hit.tail is not None:
            talker.copy = Copy(self.prefix_of(hit.tail.blocks), hit.tail.num_tokens)
            assert list(talker.copy.source[1][: hit.num_reused]) == tokens[: hit.num_reused]
            assert hit.num_reused < len(tokens)
        if not self.reserve(talker, len(tokens)):
            self.release(talker)
        return True

    def prefix_of(self, blocks: tuple[BlockId, ...]) -> Prefix:
        return next(prefix for prefix, entry in self.published.items() if entry.blocks == blocks)

    def reserve(self, talker: Talker, num_tokens: int) -> bool:
        """Reserve, and hold the grants and evictions against the model."""
        order, room = self.eviction_order(), self.obtainable_tokens()
        have = len(talker.tables[0])
        count = max(0, -(-num_tokens // self.size) - have)
        grants = self.kv.reserve(talker.seq, num_tokens, self.tell())
        evicted = self.kv.explain().index.num_evictions - self.num_evicted
        if grants is None:
            assert count * self.size > room
            assert evicted == 0
            return False
        assert count * self.size <= room
        self.forget(order[:evicted])
        if len(self.blocks_per_page) == 1:
            free = self.num_pages * self.blocks_per_page[0] - len(self.pinned(0)) - len(order)
            assert evicted == max(0, count - free)
        self.take(talker, grants, count)
        return True

    def take(self, talker: Talker, grants: Grants, count: int) -> None:
        taken = {(g, b) for g in range(len(talker.tables)) for b in self.pinned(g)}
        taken |= {(g, e.blocks[g]) for g in range(len(talker.tables)) for e in self.published.values()}
        for grant in grants.blocks:
            table = talker.tables[grant.group]
            new = grant.blocks[len(table) - grant.first :]
            assert list(grant.blocks[: len(table) - grant.first]) == table[grant.first :]
            assert len(new) == count
            assert not taken & {(grant.group, block) for block in new}, "a block in use or in quarantine was granted"
            table += new
        if talker.copy is None or talker.moves:
            assert grants.moves == ()
            return
        place, sources = talker.committed // self.size, self.published[talker.copy.source].blocks
        talker.moves = tuple(
            Move(GroupId(g), source, 0, table[place], 0, talker.copy.num_tokens)
            for g, (source, table) in enumerate(zip(sources, talker.tables, strict=True))
        )
        assert grants.moves == talker.moves

    def forget(self, evicted: list[Prefix]) -> None:
        for prefix in evicted:
            del self.published[prefix]
        self.num_evicted += len(evicted)
        if evicted:
            self.compare_index()
            self.count("evicted")

    def compare_index(self) -> None:
        """The index holds exactly the model's prefixes."""
        assert self.kv.explain().index.num_nodes == len(self.published)
        for root, tokens in self.published:
            assert self.kv.lookup([*tokens, 2], root).num_tokens == len(tokens)

    def submit(self) -> bool:
        lane = self.dice.choice(LANES)
        ready = [
            talker
            for talker in self.live.values()
            if talker.planned_end < talker.num_slots(self.size)
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
            if talker.copy is not None:
                start = first + self.copy_hit(talker, talker.copy, flight, moves)
            else:
                start = first + (self.copy_tail(talker, flight, moves) if self.dice.random() < 0.2 else 0)
            end = self.dice.randint(start + 1, talker.num_slots(self.size))
            known = end - start > 1 or self.dice.random() < 0.6
            tokens = tuple(talker.tokens[start:end]) if known else FROM_DEVICE
            chunks.append(Chunk(talker.seq, start, end - start, tokens))
            flying = Flying(step, first, end, known and start == first)
            talker.flying.append(flying)
            talker.lane = lane
            flight.chunks.append((talker, flying))
        blocks = self.name_another(chosen, flight)
        self.kv.submitted(StepPlan(step, lane, (), blocks, tuple(moves), tuple(chunks)))
        self.flights[step] = flight
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

    def copy_hit(self, talker: Talker, copy: Copy, flight: Flight, moves: list[Move]) -> int:
        """The copy that came with the hit; from now on its step references the source. Returns how many tokens."""
        moves += talker.moves
        flight.sources += [copy.source] * len(talker.moves)
        self.stamp(*copy.source, self.told_s)
        talker.copy = None
        self.count("hit copied")
        return copy.num_tokens

    def copy_tail(self, talker: Talker, flight: Flight, moves: list[Move]) -> int:
        """Copy from a published block that says what this sequence says next; returns how many tokens."""
        start = talker.planned_end
        offset = start % self.size
        room = min(talker.num_slots(self.size) - start - 1, self.size - offset)
        block_end = start - offset + self.size
        source = next(
            (
                (root, tokens)
                for root, tokens in self.published
                if root == talker.root
                and len(tokens) == block_end
                and list(tokens[: start + 1]) == talker.tokens[: start + 1]
            ),
            None,
        )
        if source is None or room < 1:
            return 0
        count = 1
        while count < room and source[1][start + count] == talker.tokens[start + count]:
            count += 1
        for group, table in enumerate(talker.tables):
            src, dst = self.published[source].blocks[group], table[start // self.size]
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
        if not talker.publish:
            return
        for first in range(talker.published, end - self.size + 1, self.size):
            prefix = (talker.root, tuple(talker.tokens[: first + self.size]))
            if prefix not in self.published:
                blocks = tuple(table[first // self.size] for table in talker.tables)
                self.published[prefix] = Published(blocks, self.num_born, self.now_s)
                self.num_born += 1
            else:
                self.count("duplicate")
            talker.published = first + self.size

    def release(self, talker: Talker) -> None:
        self.kv.release(talker.seq, self.tell())
        del self.live[talker.seq]
        talker.released_s = self.now_s
        self.stamp(talker.root, tuple(talker.tokens[: talker.published]), self.now_s)
        if talker.copy is not None:
            self.stamp(*talker.copy.source, self.now_s)
            talker.copy = None
        if talker.in_flight:
            self.quarantined.append(talker)
            self.count("quarantined")

    def stamp(self, root: Root, tokens: tuple[int, ...], at_s: float) -> None:
        for end in range(self.size, len(tokens) + 1, self.size):
            entry = self.published[root, tokens[:end]]
            entry.last_access_s = max(entry.last_access_s, at_s)

    def reset(self) -> bool:
        order = self.eviction_order()
        assert self.kv.reset_prefix_index() == len(order)
        self.forget(order)
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
        self.reserve(talker, self.dice.randint(1, most))
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
        assert self.kv.available_tokens == self.obtainable_tokens()
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
        report = self.kv.explain()
        assert report.usage.free_pages == self.num_pages
        assert report.index.num_roots == 0
        self.kv.check()
