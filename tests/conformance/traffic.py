"""Traffic: a scheduler without a policy. Makes legal plans at random, for as long as there are unfinished stories.

Owns which story does what next: prompts cut anywhere, decodes with unknown tokens queued behind known ones, shared
prefixes with a copied tail, preemptions, changes of lane, cancellations. Sees executors only through plans and results.
Invariant: every plan keeps the rules of `plait.exec.roster`; an executor that refuses one, or a result that does not
fit, is at fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tests.conformance.blocks import Blocks
from tests.conformance.executors import MAX_ROWS, MAX_STEP_TOKENS
from tests.conformance.models import VOCAB_SIZE
from tests.conformance.stories import EOS_TOKEN_IDS, Answer, Flight, Story, write_stories

from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.step import (
    FROM_DEVICE,
    BlockGrant,
    Chunk,
    Join,
    Leave,
    Move,
    OutputKind,
    Outputs,
    RowMask,
    SeqStatus,
    StepPlan,
    StepResult,
    StepStatus,
)
from plait.exec.roster import slots_of
from plait.model.cache_layout import CacheLayout


@dataclass(slots=True)
class OpenPlan:
    """A plan being put together."""

    step: StepId
    lane: LaneId
    budget: int
    leaves: list[Leave] = field(default_factory=list)
    joins: list[Join] = field(default_factory=list)
    grants: list[BlockGrant] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    masks: list[RowMask] = field(default_factory=list)
    named: list[BlockId] = field(default_factory=list)
    """Blocks that must stay as they are until the step was collected."""

    def closed(self) -> StepPlan | None:
        if not (self.leaves or self.joins or self.chunks):
            return None
        roster: tuple[Join | Leave, ...] = (*self.leaves, *self.joins)
        parts = (tuple(self.grants), tuple(self.moves), tuple(self.chunks))
        return StepPlan(self.step, self.lane, roster, *parts, sampling=tuple(self.masks))


class Traffic:
    """See the module. `happened` counts what the plans were made of."""

    def __init__(self, seed: int, layout: CacheLayout, vocab_size: int = VOCAB_SIZE) -> None:
        self.random = np.random.default_rng(seed)
        self.stories = write_stories(self.random, len(layout.groups), vocab_size)
        self._vocab_size = vocab_size
        self.happened: Counter[str] = Counter()
        self.in_flight: dict[StepId, StepPlan] = {}
        self._groups = slots_of(layout)
        self._blocks = Blocks(layout.num_pages)
        self._named: dict[StepId, list[BlockId]] = {}
        self._rows: dict[int, tuple[StepId, LaneId] | None] = dict.fromkeys(range(MAX_ROWS))
        self._next_step = 0

    @property
    def is_over(self) -> bool:
        return not self.in_flight and all(story.is_finished and story.join is None for story in self.stories)

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def plan(self, lane: LaneId) -> StepPlan | None:
        """A plan for the lane, or None if nothing came to mind."""
        plan = OpenPlan(StepId(self._next_step), lane, int(self.random.integers(1, MAX_STEP_TOKENS + 1)))
        for story in self.stories:
            if story.join is not None and story.lane == lane:
                self._perhaps_leave(plan, story)
        for story in self.stories:
            if story.join is None and not story.is_finished and self.chance(0.5):
                self._perhaps_join(plan, story)
        here = [story for story in self.stories if story.join is not None and story.lane == lane]
        for place in self.random.permutation(len(here)):
            if self.chance(0.8):
                self._perhaps_compute(plan, here[place])
        made = plan.closed()
        if made is not None:
            self._next_step += 1
            self.in_flight[made.step] = made
            self._blocks.refer(plan.named)
            self._named[made.step] = plan.named
            self.happened["plans without chunks"] += not made.chunks
        return made

    def cancel(self) -> list[tuple[StepId, tuple[SeqId, ...]]]:
        """Cancellations of some chunks of a step in flight; sometimes what is queued behind them is named too."""
        steps = [plan for plan in self.in_flight.values() if plan.chunks]
        if not steps:
            return []
        first = steps[int(self.random.integers(len(steps)))]
        count = int(self.random.integers(1, len(first.chunks) + 1))
        chosen = [chunk.seq for chunk in first.chunks[:count]]
        for seq in chosen:
            self.stories[seq].broken = True
        behind = [plan for plan in steps if plan.step > first.step and any(c.seq in chosen for c in plan.chunks)]
        self.happened["cancelled with one behind"] += bool(behind)
        later = [first, *behind] if self.chance(0.5) else [first]
        cancels = [(plan.step, tuple(c.seq for c in plan.chunks if c.seq in chosen)) for plan in later]
        return [cancel for cancel in cancels if cancel[1]]

    def take(self, results: Sequence[StepResult]) -> None:
        """Look at results, and let the stories go on from them."""
        for result in results:
            plan = self.in_flight.pop(result.step)  # a step that was not submitted, or comes twice, ends here
            older = [other for other in self.in_flight.values() if other.lane == plan.lane and other.step < plan.step]
            assert not older, f"step {plan.step} ended before step {older[0].step} of its lane"
            _check_shape(plan, result)
            for chunk, given in zip(plan.chunks, result.seqs, strict=True):
                story = self.stories[chunk.seq]
                flight = next(one for one in story.flights if one.step == plan.step)
                story.flights.remove(flight)
                if given.status is SeqStatus.OK:
                    self._go_on(story, flight, flight.answers(given))
                else:
                    assert given.status is SeqStatus.CANCELLED, given.error
                    assert story.broken or story.join is not flight.join, f"nobody cancelled {chunk.seq}"
                    self.happened["cancelled chunks"] += 1
                story.broken = story.broken and bool(story.flights)
            self._blocks.drop(self._named.pop(plan.step))
            self._rows = {
                row: None if left is not None and left[0] == plan.step else left for row, left in self._rows.items()
            }

    def _go_on(self, story: Story, flight: Flight, answers: list[Answer]) -> None:
        if story.join is not flight.join:
            self.happened["results behind a leave"] += 1
            return
        story.num_computed = flight.chunk.end
        story.answers += answers
        if flight.samples_next:
            assert len(story.tokens) == flight.chunk.end
            story.tokens.append(answers[-1].token)
        for table, group in zip(story.tables, self._groups, strict=True):
            for entry in range(min(group.first_visible_entry(story.num_computed), len(table))):
                block, table[entry] = table[entry], None
                if block is not None:
                    self._blocks.drop([block])
                    self.happened["blocks behind the window"] += 1

    # Leaving and joining
    # ------------------------------------------------------------------------------------------------------------------

    def _perhaps_leave(self, plan: OpenPlan, story: Story) -> None:
        if story.is_finished:
            if self.chance(0.3):  # it stays a while: others may begin with what it has computed
                self._leave(plan, story)
        elif self.chance(0.04):
            self.happened["preemptions"] += 1
            self.happened["preemptions in flight"] += bool(story.flights)
            self._leave(plan, story)
        elif not story.flights and story.num_computed > 0 and self.chance(0.06):
            self.happened["changes of lane"] += 1
            story.moves_from = plan.step
            self._leave(plan, story, keeps_memory=True)

    def _leave(self, plan: OpenPlan, story: Story, keeps_memory: bool = False) -> None:
        assert story.join is not None
        plan.leaves.append(Leave(story.id))
        self._rows[story.join.row] = (plan.step, plan.lane)
        story.join = None
        if not keeps_memory:
            self._blocks.drop(story.held())
            story.tables = [[] for _ in self._groups]
            story.num_computed = 0

    def _perhaps_join(self, plan: OpenPlan, story: Story) -> None:
        waits = story.flights or (story.moves_from in self.in_flight) or story.moves_from == plan.step
        taken = {other.join.row for other in self.stories if other.join is not None}
        rows = [row for row, left in self._rows.items() if row not in taken and (left is None or left[1] == plan.lane)]
        if waits or not rows:
            return
        if not story.held() and self.chance(0.8):
            self._perhaps_share(plan, story)
        start = story.num_computed
        history = tuple(story.tokens[:start]) if story.params.has_penalties else ()
        row = rows[int(self.random.integers(len(rows)))]
        story.join = Join(
            story.id, row, story.params, story.seed, story.choice, story.num_prompt, history, None, EOS_TOKEN_IDS
        )
        story.lane, story.moves_from = plan.lane, None
        plan.joins.append(story.join)
        for group, table in enumerate(story.tables):
            self._grant(plan, story, GroupId(group), table.count(None))

    def _perhaps_share(self, plan: OpenPlan, story: Story) -> None:
        """Start behind what another story has computed of the same text: its full blocks, and a copy of a last part."""
        # What a step in flight moves is there for its own sequence only.
        pending = (*self.in_flight, plan.step)
        donors = [one for one in self.stories if one is not story and one.held() and one.copied_by not in pending]
        donor = max(donors, key=story.common, default=story)
        start = 0 if donor is story else story.common(donor)
        if self.chance(0.3):
            start -= start % self._groups[0].tokens_per_block
        tails = sum(start % group.tokens_per_block > 0 for group in self._groups)
        if start == 0 or self._blocks.num_free < tails or not self._still_has(donor, start):
            return
        self.happened["shared prefixes"] += 1
        story.num_computed = start
        for index, group in enumerate(self._groups):
            size, table = group.tokens_per_block, donor.tables[index]
            first = group.first_visible_entry(start)
            shared = table[first : start // size]
            self._blocks.refer(block for block in shared if block is not None)
            story.tables[index] = [*[None] * first, *shared]
            if start % size:
                copy, source = self._blocks.grant(self.random), table[start // size]
                assert source is not None
                self.happened["copied tails"] += 1
                story.copied_by = plan.step
                story.tables[index].append(copy)
                plan.moves.append(Move(GroupId(index), source, 0, copy, 0, start % size))
                plan.named += [source, copy]

    def _still_has(self, donor: Story, start: int) -> bool:
        needed = [
            donor.tables[index][group.first_visible_entry(start) : -(-start // group.tokens_per_block)]
            for index, group in enumerate(self._groups)
        ]
        return all(None not in entries for entries in needed)

    # Computing
    # ------------------------------------------------------------------------------------------------------------------

    def _perhaps_compute(self, plan: OpenPlan, story: Story) -> None:
        assert story.join is not None
        chunk = None if story.broken or plan.budget < 1 else self._chunk(story, plan.budget)
        if chunk is None or not self._has_room(story, chunk.end):
            return
        for index, group in enumerate(self._groups):
            known = len(story.tables[index])
            story.tables[index] += [
                self._blocks.grant(self.random) for _ in range(known, -(-chunk.end // group.tokens_per_block))
            ]
            self._grant(plan, story, GroupId(index), known)
        masks = self._masks(chunk)
        plan.masks += [RowMask(story.id, row, allowed) for row, allowed in masks.items()]
        plan.budget -= chunk.num_tokens
        plan.chunks.append(chunk)
        plan.named += story.held()
        story.flights.append(Flight(plan.step, chunk, story.join, masks))

    def _has_room(self, story: Story, end: int) -> bool:
        missing = sum(
            max(0, -(-end // group.tokens_per_block) - len(table))
            for group, table in zip(self._groups, story.tables, strict=True)
        )
        return missing <= self._blocks.num_free

    def _grant(self, plan: OpenPlan, story: Story, group: GroupId, first: int) -> None:
        blocks = tuple(block for block in story.tables[group][first:] if block is not None)
        if blocks:
            plan.grants.append(BlockGrant(story.id, group, first, blocks))

    def _chunk(self, story: Story, budget: int) -> Chunk | None:
        start, known = story.planned_end, len(story.tokens)
        if start < known:
            longest = min(known - start, budget)
            count = longest if self.chance(0.5) else int(self.random.integers(1, longest + 1))
            tokens = tuple(story.tokens[start : start + count])
            return Chunk(story.id, start, count, tokens, outputs=self._outputs(count, start + count == known))
        if start == known and start < story.target and story.flights and story.flights[-1].samples_next:
            self.happened["tokens from the device"] += 1
            return Chunk(story.id, start, 1, FROM_DEVICE, outputs=self._outputs(1, True))
        return None

    def _outputs(self, num_rows: int, samples_next: bool) -> tuple[Outputs, ...]:
        """Scored and sampled rows anywhere; the last row samples last where the next token is to come."""
        outputs = []
        for kind in (OutputKind.LOGPROBS, OutputKind.SAMPLE):
            if self.chance(0.2):
                first = int(self.random.integers(num_rows))
                count = int(self.random.integers(1, min(num_rows - first, 5) + 1))
                if kind is OutputKind.LOGPROBS:
                    targets = tuple(int(token) for token in self.random.integers(0, self._vocab_size, count))
                    outputs.append(Outputs(first, count, kind, targets, top=int(self.random.integers(4))))
                elif first + count < num_rows:
                    outputs.append(Outputs(first, count, kind))
        if samples_next:
            outputs.append(Outputs(num_rows - 1, 1, OutputKind.SAMPLE))
        return tuple(outputs)

    def _masks(self, chunk: Chunk) -> dict[int, bytes]:
        """Now and then, only a quarter of the vocabulary is allowed."""
        rows = [out.first for out in chunk.outputs if out.kind is OutputKind.SAMPLE and self.chance(0.15)]
        allowed = {}
        for row in rows:
            bits = self.random.random(self._vocab_size) < 0.25
            bits[[0, self._vocab_size - 1]] = True
            allowed[row] = np.packbits(bits, bitorder="little").tobytes()
            self.happened["masks"] += 1
        return allowed


def _check_shape(plan: StepPlan, result: StepResult) -> None:
    """What must hold of a result whatever was computed."""
    assert result.lane == plan.lane
    assert [one.seq for one in result.seqs] == [chunk.seq for chunk in plan.chunks]
    assert result.start_s <= result.end_s
    all_cancelled = bool(result.seqs) and all(one.status is SeqStatus.CANCELLED for one in result.seqs)
    assert result.status is (StepStatus.CANCELLED if all_cancelled else StepStatus.COMPLETED)
    for chunk, given in zip(plan.chunks, result.seqs, strict=True):
        if given.status is SeqStatus.OK:
            assert given.num_computed == chunk.num_tokens
        else:
            assert (given.num_computed, given.tokens, given.logprobs, given.prompt_logprobs) == (0, (), (), ())
