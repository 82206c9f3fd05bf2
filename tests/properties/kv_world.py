"""A memory, a naive model of it (`kv_naive`), and dice: each operation is done to both and compared."""

from __future__ import annotations

from tests.properties.kv_naive import (
    KEPT_BEHIND,
    LANES,
    ROOTS,
    Copy,
    Flight,
    Flying,
    Lease,
    Memory,
    Naive,
    Piece,
    PieceKey,
    Prefix,
    Published,
    Talker,
)

from plait.core.ids import BlockId, GroupId, SeqId, StepId
from plait.core.step import FROM_DEVICE, BlockGrant, Chunk, Move, Snapshot, StepPlan
from plait.kv.cache import Grants, Hit, Root
from plait.kv.hit import NO_BLOCK
from plait.kv.index import OUTLIVED_S

__all__ = ["Memory", "World"]

MOST_LIVE = 32


class World(Naive):
    """Operations."""

    def tell(self) -> float:
        """The time, which the memory knows only from its callers."""
        self.told_s = self.now_s
        self.leases = {seq: lease for seq, lease in self.leases.items() if lease.until_s > self.now_s}
        return self.told_s

    def look(self, tokens: list[int], root: Root, limit: int | None = None) -> None:
        hit = self.kv.lookup(tokens, root, limit)
        if not self.enable_prefix:
            assert hit.num_tokens == 0
            return
        cap = len(tokens) - 1 if limit is None else min(limit, len(tokens) - 1)
        end = self.expected_hit(tokens, root, cap)
        if self.states:
            hit = self.look_inside(hit, tokens, root, end, cap)
        assert hit.num_tokens == end
        for group, blocks in enumerate(hit.blocks):
            assert list(blocks) == self.expected_blocks(tokens, root, end, group)
        found = hit.tail.num_tokens if hit.tail else 0
        best = 0 if self.states else self.expected_tail(tokens, root, end, cap)
        # Of several that share the most, one may be without a window's block.
        assert found == best if not self.windows else found in (best, 0)
        assert hit.pending == self.expected_pending(tokens, root, end, cap)
        if hit.tail:
            self.count("tail")
        if hit.pending is not None:
            self.count("pending")

    def look_inside(self, hit: Hit, tokens: list[int], root: Root, end: int, cap: int) -> Hit:
        """A hit that ends at a checkpoint inside a block is the longest; returns what there is without."""
        lengths = self.checkpoints_inside(tokens, root, end, cap)
        if hit.tail is None:
            assert not lengths or self.windows, "or the block that shares most is without a window's"
            return hit
        assert hit.num_reused in lengths
        assert hit.num_reused == lengths[-1] or self.windows
        for g, blocks in enumerate(hit.blocks):
            assert g in self.states or list(blocks) == self.expected_blocks(tokens, root, hit.num_tokens, g)
        for g in self.states:
            assert hit.tail.blocks[g] == self.pieces[(root, tuple(tokens[: hit.num_reused])), g].block
        self.count("inside a block")
        return hit.without_tail()

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

    def can_go_on(self, talker: Talker, num_tokens: int) -> bool:
        """Whether a block more is to be had in every group that follows step by step."""
        demand = []
        for g, table in enumerate(talker.tables):
            end = num_tokens if g in self.whole else talker.slots + self.size
            demand.append(1 - len(table) if g in self.states else max(0, -(-end // self.size) - len(table)))
        _, _, loose, most = self.room()
        return self.num_pages_for(demand, most) <= loose

    def go_on_with_prompt(self, talker: Talker, num_tokens: int) -> None:
        """Trunks give up what they keep before a prompt stops, those that began first; no more than it takes."""
        while self.keeping and not self.can_go_on(talker, num_tokens):
            del self.keeping[next(iter(self.keeping))]
            self.count("given up for a prompt")

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
        if publish and self.enable_prefix:
            cap = len(tokens) - 1
            end = self.expected_chain(tokens, root, cap)
            talker.branch = (root, tuple(tokens[:end])) if end else None
            talker.branch_node = self.kv.lookup(tokens, root).branch
            assert (talker.branch is None) == (talker.branch_node is None)
        if hit.num_reused:
            talker.states = {g: (root, tuple(tokens[: hit.num_reused])) for g in self.states}
            talker.born = {g: self.pieces[prefix, g].born for g, prefix in talker.states.items()}
            talker.keeps_states = bool(talker.states)
        if hit.tail is not None:
            talker.copy = Copy(self.prefix_of(hit), hit.tail.num_tokens)
            if talker.copy.source is not None:
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
        source = self.prefix_of(hit) if hit.tail is not None else None
        used = [source] if source is not None else []
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

    def prefix_of(self, hit: Hit) -> Prefix | None:
        """The prefix whose last block is the hit's tail; None: there are states alone."""
        assert hit.tail is not None
        if not self.whole and not self.windows:
            return None
        tail = {g: block for g, block in enumerate(hit.tail.blocks) if g not in self.states}
        for prefix, entry in self.published.items():
            blocks = entry.blocks | {
                g: self.pieces[prefix, g].block for g in self.windows if (prefix, g) in self.pieces
            }
            if blocks == tail:
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
        copy = talker.copy
        for g in sorted([*self.whole, *self.windows]) if copy is not None and copy.source is not None else ():
            source, count = copy.source, copy.num_tokens
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
            hit = self.kv.lookup([*tokens, 2], root).without_tail()
            assert hit.num_tokens == self.expected_hit([*tokens, 2], root, cap)

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
        # From now on, because what a hit copies stays there while checkpoints look for room.
        flight = self.flights[step] = Flight(lane)
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
        every = self.dice.choice((1, self.size))
        lengths = [length for length in range(every, end + 1, every) if length > max(start, after)]
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
        if copy is None or copy.source is None:
            return copy.num_tokens if copy is not None else 0
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
        self.settle_kept()
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
        self.publish_checkpoints(talker, end)
        self.drop_dead(talker)
        self.kv.check()

    def publish(self, talker: Talker, prefix: Prefix, place: int) -> None:
        self.publish_checkpoints(talker, len(prefix[1]) - 1)
        if prefix not in self.published:
            blocks = {g: talker.tables[g][place] for g in self.whole}
            self.published[prefix] = Published(blocks, self.new_id(), self.now_s)
        else:
            self.count("duplicate")
        talker.published = len(prefix[1])
        for g in self.windows:
            if (prefix, g) not in self.pieces and talker.tables[g][place] != NO_BLOCK:
                self.pieces[prefix, g] = Piece(talker.tables[g][place], self.new_id(), self.now_s)
        self.publish_checkpoints(talker, talker.published)

    def publish_checkpoints(self, talker: Talker, end: int) -> None:
        """Those that were made of what is committed, inside the last block too."""
        for length in [length for length in talker.checkpoints if length <= end]:
            blocks, is_written = talker.checkpoints.pop(length)
            prefix = (talker.root, tuple(talker.tokens[:length]))
            self.count("checkpoint inside a block" if length % self.size else "checkpoint behind a block")
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
            left: list[PieceKey] = []
            for place, prefix in enumerate(self.prefixes(talker)):
                piece = self.pieces.get((prefix, g))
                is_dead = self.is_dead(g, place, talker.committed)
                if is_dead and piece is not None and piece.block == talker.tables[g][place]:
                    self.stamp_piece(prefix, g, self.now_s)
                    talker.left.append((piece, prefix, g))
                    left.append((prefix, g))
            for place, block in enumerate(talker.tables[g]):
                if block != NO_BLOCK and self.is_dead(g, place, talker.committed):
                    talker.tables[g][place] = NO_BLOCK
                    self.count("left the window")
            if len(self.live) > 1:
                self.keep(talker, left)
            if left_before < len(talker.left):
                self.outlive(talker, g)

    def keep(self, talker: Talker, left: list[PieceKey]) -> None:
        """What stands in the window at the end of a trunk in use, which this one looks at no more."""
        node = None if talker.branch_node is None else self.kv._index.node(talker.branch_node)
        trunk = talker.branch
        if trunk is None or node is None or not node.is_trunk or trunk not in self.used_prefixes():
            return
        for prefix, g in left:
            end = len(prefix[1])
            stays = end <= len(trunk[1]) and not self.is_dead(g, end // self.size - 1, len(trunk[1]))
            if stays:
                self.count("kept for two" if (prefix, g) in self.kept() else "kept")
                self.keeping.setdefault(trunk, set()).add((prefix, g))
                while sum(self.block_bytes[g] for _, g in self.kept()) > self.most_kept_bytes:
                    del self.keeping[next(iter(self.keeping))]
                    self.count("kept too much")

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
        node = None if talker.branch_node is None else self.kv._index.node(talker.branch_node)
        if node is None or not node.is_trunk:
            talker.branch = None  # it went, or is no trunk
        self.kv.release(talker.seq, self.tell())
        del self.live[talker.seq]
        if len(self.live) <= 1:
            self.keeping.clear()
        talker.released_s = self.now_s
        self.stamp(talker.root, tuple(talker.tokens[: talker.published]), self.now_s)
        if talker.copy is not None and talker.copy.source is not None:
            self.stamp(*talker.copy.source, self.now_s)
            for g in self.windows:
                self.stamp_piece(talker.copy.source, g, self.now_s)
        talker.copy = None
        self.stamp_lingering(talker)
        self.stamp_branch(talker)
        talker.keeps_states = talker.keeps_states and talker.in_flight
        for g, prefix in talker.states.items():
            piece = self.pieces.get((prefix, g))
            if piece is not None and piece.born == talker.born[g]:
                self.stamp_piece(prefix, g, self.now_s)
        for place, prefix in enumerate(self.prefixes(talker)):
            for g in self.windows:
                piece = self.pieces.get((prefix, g))
                if piece is not None and piece.block == talker.tables[g][place]:
                    self.stamp_piece(prefix, g, self.now_s)
        if talker.in_flight:
            self.quarantined.append(talker)
            self.count("quarantined")
        self.settle_kept()

    def stamp_lingering(self, talker: Talker) -> None:
        """What left the window a moment ago is as young as the window."""
        for place, prefix in enumerate(self.prefixes(talker)) if talker.publish else ():
            for g in self.windows:
                end = max(0, talker.published - min(192, self.kinds[g][1] // 8))
                if (prefix, g) in self.pieces and not self.is_dead(g, place, end):
                    self.stamp_piece(prefix, g, self.now_s)

    def stamp_branch(self, talker: Talker) -> None:
        """The windows behind which it said what others do not are as young as it."""
        if talker.branch is None or not talker.publish:
            return
        root, tokens = talker.branch
        for place in range(len(tokens) // self.size):
            prefix = (root, tokens[: (place + 1) * self.size])
            for g in self.windows:
                if (prefix, g) in self.pieces and not self.is_dead(g, place, len(tokens)):
                    self.stamp_piece(prefix, g, self.now_s)
                    self.count("branch")

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

    def look_around(self) -> bool:
        limit = self.dice.choice((None, 0, self.size, 3 * self.size))
        self.look(self.random_tokens(6 * self.size), self.dice.choice(ROOTS), limit)
        return True

    def lease(self) -> bool:
        """Somebody begins to wait who will want a prefix for a while, or waits no longer."""
        if self.leases and self.dice.random() < 0.3:
            seq = self.dice.choice(list(self.leases))
            del self.leases[seq]
            self.kv.leases.end(seq)
            self.count("lease ended")
            return True
        root, tokens = self.dice.choice(ROOTS), self.random_tokens(6 * self.size)
        hit, seq = self.kv.lookup(tokens, root), SeqId(self.num_seqs)
        self.num_seqs += 1
        until_s = self.now_s + self.dice.choice((0.0, 1.0, 5.0, 40.0))
        now_s = self.tell()
        ends = range(self.size, hit.num_tokens + 1, self.size)
        prefixes = [(root, tuple(tokens[:end])) for end in ends]
        nodes = {prefix: self.published[prefix].born for prefix in prefixes if prefix in self.published}
        pieces = {}
        for g in [*self.windows, *self.states]:
            places = prefixes[-1:] if g in self.states else prefixes
            blocks = hit.blocks[g]
            if g in self.states and hit.tail is not None:
                places, blocks = [(root, tuple(tokens[: hit.num_reused]))], (hit.tail.blocks[g],)
            for prefix, block in zip(places, blocks, strict=True):
                if block != NO_BLOCK:
                    pieces[prefix, g] = self.pieces[prefix, g].born
        held = self.bytes_of(self.leased_nodes(), self.leased_pieces())
        more = self.bytes_of(set(nodes) - self.leased_nodes(), set(pieces) - self.leased_pieces())
        fits = bool(prefixes) and until_s > now_s and held + more <= self.most_leased_bytes
        assert self.kv.leases.take(seq, hit, now_s, until_s) == fits
        if fits:
            self.leases[seq] = Lease(nodes, pieces, until_s)
        self.count("lease" if fits else "no lease")
        assert self.kv.leases.leased_bytes == self.bytes_of(self.leased_nodes(), self.leased_pieces())
        return True

    def grow(self) -> bool:
        if not self.live:
            return False
        talker = self.dice.choice(list(self.live.values()))
        most = min(len(talker.tokens), talker.planned_end + 2 * self.size)
        num_tokens = self.dice.randint(1, most)
        up_to = num_tokens
        if self.windows and self.dice.random() < 0.7:
            end = self.kv.extent(talker.seq, num_tokens, num_tokens)
            up_to = max(min(talker.slots, num_tokens), end)
            if num_tokens > talker.slots and talker.planned_end < talker.num_prompt:
                self.go_on_with_prompt(talker, num_tokens)
                assert end > talker.slots or not self.can_go_on(talker, num_tokens)
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
        acts = (self.admit, self.look_around, self.lease, self.grow, self.submit, self.collect, self.leave, self.reset)
        # Where windows alone are kept, memory hardly limits how many there are, as rows would.
        leaving = 118 if len(self.live) <= MOST_LIVE else 1000
        while not self.dice.choices(acts, (200, 70, 30, 100, 250, 230, leaving, 2))[0]():
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
