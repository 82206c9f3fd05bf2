"""One memory with every kind of group at once, and dice: sequences with images, drafts and checkpoints on two lanes.

Owns the operations. What must hold after each of them `KVCache.check()` works out anew from the tables, the index and
the steps in flight; `kv_world` compares tokens with a naive model besides, without images and without a draft model.
Groups: full attention; the few layers of it whose keys others share, in a group of their own; a window; stretches; a
state; rows of images for cross attention; embeddings; and two of a draft model, on the same pages.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import prod

from tests.unit.kv.kit import make_layout, mixed_groups

from plait.core.ids import GroupId, LaneId, SeqId, StepId
from plait.core.step import FROM_DEVICE, BlockGrant, Chunk, Drafts, Encode, Move, Snapshot, StepPlan
from plait.kv.blocks import BlockState
from plait.kv.cache import Grants, Hit, KVCache, Root
from plait.kv.hit import NO_BLOCK, ImageSpan
from plait.kv.rules import MemoryRules

SIZE = 2
KINDS = [("full", 0), ("full", 0), ("window", 5), ("chunked", 4), ("state", 0), ("cross", 0), ("embedding", 0)]
BLOCKS_PER_PAGE = (2, 6, 1, 2, 2, 3, 1)
DRAFT_KINDS = [("full", 0), ("window", 5)]
DRAFT_BLOCKS_PER_PAGE = (6, 24)
NUM_PAGES = 90
CROSS, EMBEDDING = GroupId(5), GroupId(6)
LANES = (LaneId(0), LaneId(1))
SPANS = [ImageSpan(bytes([name]), num_rows=1 + name % 5, end=2 + name) for name in range(8)]
STEM = (0, 1, 1, 0, 1, 0, 0, 1)
"""How many prompts begin."""
MOST_FLIGHTS = 6


@dataclass(eq=False)
class Guest:
    """A sequence. `tokens`: all that it will ever say."""

    seq: SeqId
    tokens: list[int]
    num_prompt: int
    publishes: bool
    spans: tuple[ImageSpan, ...]
    committed: int
    num_copied: int
    """Of a hit's tail, to be copied by its first step."""
    moves: tuple[Move, ...] = ()
    encodes: tuple[Encode, ...] = ()
    flying: list[Flying] = field(default_factory=list)
    lane: LaneId = LANES[0]
    checkpointed: int = 0
    """Behind so many tokens a copy of the state was asked for last."""

    @property
    def planned_end(self) -> int:
        return self.flying[-1].end if self.flying else self.committed


@dataclass(frozen=True, eq=False)
class Flying:
    """Slots [start, end) of a guest in a step, those that are copied included."""

    guest: Guest
    start: int
    end: int
    encodes: tuple[Encode, ...]
    verifies: bool


@dataclass(frozen=True)
class Flight:
    lane: LaneId
    parts: list[Flying]


class Everything:
    """A memory and who comes to it."""

    def __init__(self, dice: random.Random, num_pages: int = NUM_PAGES) -> None:
        groups = mixed_groups(BLOCKS_PER_PAGE, KINDS, SIZE)
        drafts = mixed_groups(DRAFT_BLOCKS_PER_PAGE, DRAFT_KINDS, SIZE)
        self.kv = KVCache(
            make_layout(num_pages, groups, prod(BLOCKS_PER_PAGE), SIZE),
            groups,
            rules=MemoryRules(kept_behind=3),
            drafts=make_layout(num_pages, drafts, prod(DRAFT_BLOCKS_PER_PAGE), SIZE),
        )
        self.num_pages = num_pages
        self.dice = dice
        self.now_s = 0.0
        self.guests: dict[SeqId, Guest] = {}
        self.flights: dict[StepId, Flight] = {}
        self.draft_steps: list[StepId] = []
        self.num_seqs = self.num_steps = 0
        self.seen: dict[str, int] = {}

    def act(self) -> None:
        """One operation."""
        self.now_s += self.dice.choice((0.0, 0.0, 1.0))
        acts = {
            self.arrive: 150,
            self.grow: 110,
            self.submit: 250,
            self.verify: 120,
            self.collect: 260,
            self.leave: 20 * len(self.guests),
            self.lease: 30,
            self.draft: 80,
            self.submit_draft: 30,
            self.collect_draft: 35,
            self.undraft: 10,
            self.forget: 1,
        }
        while not self.dice.choices([*acts], [*acts.values()])[0]():
            pass

    # What may happen; False: it cannot now.

    def arrive(self) -> bool:
        dice = self.dice
        begin = STEM[: dice.choice((0, 4, 8, 8))]
        prompt = [*begin, *(dice.randint(0, 1) for _ in range(dice.randint(1, 8)))]
        spans = tuple(dice.sample(SPANS, dice.choice((0, 0, 0, 1, 2))))
        root = Root("f", dice.choice(("", "", "", "other")), None, tuple(span.content_hash for span in spans))
        publishes = dice.random() < 0.9
        hit = self.look(prompt, root, spans) if publishes else self.kv.with_images(self.kv.no_hit(), root, spans)
        fits = self.kv.fits(hit, len(prompt), len(self.guests))
        seq = SeqId(self.num_seqs)
        self.num_seqs += 1
        self.kv.open(seq, root, hit, self.now_s, publish=publishes)
        end = self.kv.extent(seq, len(prompt), dice.randint(hit.num_reused + 1, len(prompt)))
        grants = self.kv.reserve(seq, len(prompt), self.now_s, end) if end > hit.num_reused else None
        if grants is None:
            assert not fits, "what fits is granted"
            self.kv.release(seq, self.now_s)
            return self.count("short of memory")
        answer = [dice.randint(0, 1) for _ in range(30)]
        num_copied = hit.num_reused - hit.num_tokens
        guest = Guest(seq, [*prompt, *answer], len(prompt), publishes, spans, hit.num_tokens, num_copied)
        guest.moves, guest.encodes, guest.checkpointed = grants.moves, grants.encodes, hit.num_reused
        self.guests[seq] = guest
        self.count_hit(hit, grants)
        return True

    def look(self, prompt: list[int], root: Root, spans: tuple[ImageSpan, ...]) -> Hit:
        hit = self.kv.with_images(self.kv.lookup(prompt, root), root, spans)
        assert hit.num_reused < len(prompt)
        if hit.tail is not None and self.dice.random() < 0.2:
            hit = hit.without_tail()
            assert hit.tail is None
        return hit

    def count_hit(self, hit: Hit, grants: Grants) -> None:
        if hit.num_tokens:
            self.count("hit")
        if hit.tail is not None:
            self.count("hit inside a block")
        if grants.encodes:
            self.count("encoded")
        if any(hit.blocks[g] for g in (CROSS, EMBEDDING)):
            self.count("image found")

    def grow(self) -> bool:
        """More slots for a prompt under way, or for an answer."""
        guest = self.any_guest()
        if guest is None:
            return False
        more = self.kv.num_slots(guest.seq) + self.dice.randint(1, 2 * SIZE)
        return self.count("grown" if self.more_slots(guest, more) else "cannot grow")

    def submit(self) -> bool:
        """A step of up to three sequences on one lane, behind steps in flight or not."""
        lane = self.dice.choice(LANES)
        ready = [guest for guest in self.guests.values() if self.is_ready(guest, lane)]
        if not ready or len(self.flights) >= MOST_FLIGHTS:
            return False
        chosen = self.dice.sample(ready, min(len(ready), self.dice.randint(1, 3)))
        parts, chunks, moves = [], [], []
        for guest in chosen:
            first, start = guest.planned_end, guest.planned_end + guest.num_copied
            end = self.dice.randint(start + 1, self.most(guest))
            known = end - start > 1 or self.dice.random() < 0.6
            tokens = tuple(guest.tokens[start:end]) if known else FROM_DEVICE
            chunks.append(Chunk(guest.seq, start, end - start, tokens, snapshots=self.checkpoint(guest, start, end)))
            parts.append(Flying(guest, first, end, guest.encodes, verifies=False))
            moves += guest.moves
            guest.moves, guest.encodes, guest.num_copied = (), (), 0
        self.fly(lane, parts, chunks, moves)
        return self.count("submitted")

    def verify(self) -> bool:
        """A token and drafts behind it, with a copy of the state behind every row that may be the last."""
        ready = [guest for guest in self.guests.values() if not guest.flying and self.may_verify(guest)]
        if not ready or len(self.flights) >= MOST_FLIGHTS:
            return False
        guest = self.dice.choice(ready)
        start = guest.committed
        self.more_slots(guest, start + 1 + self.dice.randint(1, 3))
        num_drafts = min(3, self.most(guest) - start - 1)
        if num_drafts < 1:
            return self.count("no room to verify")
        taken = self.kv.scratch.take(guest.seq, start + 1, num_drafts)
        if taken is None:
            return self.count("no room to verify")
        tokens = guest.tokens[start : start + 1 + num_drafts]
        snapshots = tuple(Snapshot(length - 1 - start, group, block) for length, group, block in taken)
        drafts = Drafts(tuple(tokens[1:]), tuple(range(-1, num_drafts - 1)))
        chunk = Chunk(guest.seq, start, 1 + num_drafts, (tokens[0],), drafts, snapshots=snapshots)
        self.fly(self.dice.choice(LANES), [Flying(guest, start, start + 1 + num_drafts, (), True)], [chunk], [])
        return self.count("verified")

    def collect(self) -> bool:
        """The oldest step of a lane is over; lanes overtake each other."""
        oldest = {flight.lane: step for step, flight in reversed(self.flights.items())}
        if not oldest:
            return False
        step = self.dice.choice(sorted(oldest.values()))
        flight = self.flights.pop(step)
        cancelled = self.dice.random() < 0.15
        for part in flight.parts:
            guest = part.guest
            if guest.seq not in self.guests:
                continue
            if cancelled or part.start != guest.committed:
                guest.encodes += part.encodes
            else:
                self.commit(step, part)
            if part.verifies:
                self.settle(guest, is_known=not cancelled)
            if guest.seq in self.guests and self.dice.random() < 0.1:
                self.release(guest)
                self.count("left in flight")
        self.kv.collected(step)
        for part in flight.parts:
            part.guest.flying.remove(part)
        return self.count("cancelled" if cancelled else "collected")

    def leave(self) -> bool:
        guest = self.any_guest()
        if guest is None:
            return False
        self.release(guest)
        return True

    def lease(self) -> bool:
        """Somebody begins to wait for a prefix, or one who waited does no longer."""
        if self.dice.random() < 0.4:
            self.kv.leases.end(SeqId(self.dice.randrange(self.num_seqs + 1)))
            return True
        hit = self.kv.lookup([*STEM, *(self.dice.randint(0, 1) for _ in range(6))], Root("f"))
        if not self.kv.leases.take(SeqId(self.num_seqs), hit, self.now_s, self.now_s + self.dice.choice((1.0, 30.0))):
            return self.count("no lease")
        self.num_seqs += 1
        return self.count("lease")

    def draft(self) -> bool:
        """The draft model reads, or guesses: never a reason to wait for anybody."""
        guest = self.any_guest()
        if guest is None:
            return False
        granted = self.kv.drafts.reserve(guest.seq, self.dice.randint(1, len(guest.tokens)), len(self.guests))
        return self.count("no draft" if granted is None else "draft")

    def submit_draft(self) -> bool:
        drafting = [*self.kv.drafts.sequences]
        if not drafting:
            return False
        step = StepId(self.num_steps)
        self.num_steps += 1
        self.kv.drafts.submitted(step, self.dice.sample(drafting, self.dice.randint(1, min(3, len(drafting)))))
        self.draft_steps.append(step)
        return self.count("draft step")

    def collect_draft(self) -> bool:
        if not self.draft_steps:
            return False
        self.kv.drafts.collected(self.draft_steps.pop(0))
        return True

    def undraft(self) -> bool:
        drafting = [*self.kv.drafts.sequences]
        if not drafting:
            return False
        self.kv.drafts.release(self.dice.choice(drafting))
        return True

    def forget(self) -> bool:
        self.kv.reset_prefix_index()
        return True

    # Parts of these.

    def any_guest(self) -> Guest | None:
        return self.dice.choice([*self.guests.values()]) if self.guests else None

    def more_slots(self, guest: Guest, num_tokens: int) -> bool:
        have, num_tokens = self.kv.num_slots(guest.seq), min(len(guest.tokens), max(guest.num_prompt, num_tokens))
        end = self.kv.extent(guest.seq, num_tokens, num_tokens)
        grants = self.kv.reserve(guest.seq, num_tokens, self.now_s, max(end, min(have, num_tokens)))
        if grants is not None:
            guest.moves += grants.moves
            assert not grants.encodes
        return grants is not None

    def most(self, guest: Guest) -> int:
        """Slots that may be written now."""
        return min(self.kv.num_slots(guest.seq), len(guest.tokens))

    def is_ready(self, guest: Guest, lane: LaneId) -> bool:
        """Whether it has a slot to go on with, and the copies that come first, and no step in flight is in the way."""
        start = guest.planned_end + guest.num_copied
        if start >= self.most(guest) or (guest.num_copied and not guest.moves):
            return False
        if not guest.flying:
            return True
        steady = guest.flying[0].start == guest.committed and not any(part.verifies for part in guest.flying)
        return steady and guest.lane == lane

    def may_verify(self, guest: Guest) -> bool:
        return guest.num_prompt <= guest.committed < len(guest.tokens) - 4 and not (guest.moves or guest.num_copied)

    def checkpoint(self, guest: Guest, start: int, end: int) -> tuple[Snapshot, ...]:
        """Now and then a copy of the state on the way, behind any token."""
        first = max(start, guest.checkpointed, guest.planned_end) + 1
        if not guest.publishes or first > end or self.dice.random() < 0.4:
            return ()
        length = self.dice.randint(first, end)
        given = self.kv.checkpoint(guest.seq, length, self.now_s)
        if given is None:
            self.count("no checkpoint")
            return ()
        guest.checkpointed = length
        self.count("checkpoint inside a block" if length % SIZE else "checkpoint behind a block")
        return tuple(Snapshot(length - 1 - start, g, block) for g, block in given)

    def fly(self, lane: LaneId, parts: list[Flying], chunks: list[Chunk], moves: list[Move]) -> None:
        step = StepId(self.num_steps)
        self.num_steps += 1
        encodes = tuple(one for part in parts for one in part.encodes)
        named = self.name_another([part.guest for part in parts])
        self.kv.submitted(StepPlan(step, lane, (), named, tuple(moves), tuple(chunks), encodes))
        for part in parts:
            part.guest.flying.append(part)
            part.guest.lane = lane
        self.flights[step] = Flight(lane, parts)

    def name_another(self, chosen: list[Guest]) -> tuple[BlockGrant, ...]:
        """Now and then a step also names the table of a sequence that it does not compute."""
        guest = self.any_guest()
        if guest is None or guest in chosen or self.dice.random() > 0.1:
            return ()
        table = self.kv.table(guest.seq, GroupId(0))
        return (BlockGrant(guest.seq, GroupId(0), 0, table),) if table else ()

    def commit(self, step: StepId, part: Flying) -> None:
        guest, end = part.guest, part.end
        if part.verifies or self.dice.random() < 0.15:
            end = self.dice.randint(part.start + 1, part.end)
        self.kv.commit(step, guest.seq, guest.tokens[part.start : end], self.now_s)
        guest.committed = end
        self.look_at_images(guest)

    def look_at_images(self, guest: Guest) -> None:
        """Rows of cross attention stay, embeddings go with the last token of their image."""
        cross = self.kv.table(guest.seq, CROSS)
        assert NO_BLOCK not in cross
        assert len(cross) == sum(-(-span.num_rows // SIZE) for span in guest.spans)

    def settle(self, guest: Guest, *, is_known: bool) -> None:
        """Behind the last accepted row goes on who was verified; nobody goes on from a state that nobody knows."""
        if guest.seq not in self.guests:
            return
        if is_known:
            self.count("state replaced" if self.kv.scratch.settle(guest.seq, guest.committed) else "state stays")
        else:
            self.release(guest)

    def release(self, guest: Guest) -> None:
        self.kv.release(guest.seq, self.now_s)
        del self.guests[guest.seq]
        if guest.seq in self.kv.drafts:
            self.kv.drafts.release(guest.seq)

    def count(self, what: str) -> bool:
        self.seen[what] = self.seen.get(what, 0) + 1
        return True

    def end(self) -> None:
        """Everything is released and forgotten: every page is back, and nobody owns one."""
        while self.draft_steps:
            self.collect_draft()
        while self.flights:
            self.collect()
        for guest in [*self.guests.values()]:
            self.release(guest)
        self.kv.check()
        assert self.kv.usage().used_bytes == 0
        self.kv.reset_prefix_index()
        self.kv.check()
        assert self.kv.usage().free_pages == self.num_pages
        assert self.kv.explain().index.num_roots == 0
        for pool in [*self.kv._pools, *self.kv.drafts.pools]:
            assert pool.counts == [0] * len(BlockState)
            assert not pool._owned
