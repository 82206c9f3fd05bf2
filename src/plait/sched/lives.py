"""Lives: every sequence from admission to its end, under whatever policy.

Owns who waits and who runs, executor rows, block tables, steps in flight, and what executors have still to be told.
Decides nothing: a policy says who joins, goes on or leaves, and this makes it so.
Invariant: a running sequence has a lane, a row and a block table, a waiting one has neither; what a step in flight
names is never preempted (CONTRACTS H9), and whoever ends while steps name him is cancelled in every one of them.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass

from plait.core.decision import Cancel, SeqUpdate, Submit
from plait.core.errors import InvariantError
from plait.core.events import EventSink, Preempted, Scheduled
from plait.core.executor import Foresight
from plait.core.ids import LaneId, RequestId, SeqId, StepId
from plait.core.request import FinishReason, SeqState, Sequence
from plait.core.step import FROM_DEVICE, Chunk, Join, SeqResult, SeqStatus, Snapshot, StepPlan, StepResult
from plait.kv.cache import NO_GRANTS, Grants, Hit, KVCache, Root
from plait.kv.checkpoints import BY_USE, CheckpointPolicy
from plait.kv.hit import ImageSpan
from plait.sched.admission import refuse_impossible, refuse_too_many_images
from plait.sched.deadlines import Deadlines
from plait.sched.open_step import OpenStep
from plait.sched.outcome import take_tokens
from plait.sched.prefix_hold import PrefixHolds
from plait.sched.rows import Rows
from plait.sched.runs import prolong
from plait.sched.snapshots import Snapshots
from plait.sched.speculation import Drafted
from plait.sched.waiting import WaitingLine, is_offline, order_key

OFFLINE_BEHIND_S = 1e7
"""What offline work leaves in the prefix index is evicted before all that anybody online left there."""


@dataclass(frozen=True, slots=True)
class LivesConfig:
    max_rows: int = 64
    """Sequences running at once at most, on all lanes together."""
    max_model_tokens: int = 2048
    """Prompt and output tokens of one sequence together at most."""
    fingerprint: str = ""
    """Root of the prefix index: KV of another numerics fingerprint is never reused."""
    eos_token_ids: tuple[int, ...] = ()
    enable_prefix: bool = True
    """Read and write the prefix index."""
    can_embed: bool = False
    """Whether requests may ask for embeddings."""
    can_import: bool = False
    """Whether requests may bring keys and values of their prompt."""
    checkpoints: CheckpointPolicy = BY_USE
    """Where the states of models that have some are kept for other prompts."""


class Lives:
    """The verbs of a policy, and what it may look at. All but `waiting` and `running` is changed here alone, and those
    two are only looked at from outside.
    """

    def __init__(self, config: LivesConfig, kv: KVCache, events: EventSink) -> None:
        self.waiting = WaitingLine()
        self.running: list[Sequence] = []
        """In `order_key` order, so the last one is the first victim."""
        self._config = config
        self._kv = kv
        self._events = events
        self._by_id: dict[SeqId, Sequence] = {}
        self._siblings: dict[RequestId, list[Sequence]] = {}
        """The living sequences of requests with several, in order of choice."""
        self._deadlines = Deadlines()
        self._holds = PrefixHolds(kv.tokens_per_block)
        self._snapshots = Snapshots(config.checkpoints, kv, config.eos_token_ids) if kv.has_states else None
        self._rows = Rows(config.max_rows)
        self._cancels: list[Cancel] = []
        self._in_flight: dict[StepId, StepPlan] = {}
        self._next_step = 0

    # What a policy looks at.

    @property
    def num_in_flight(self) -> int:
        """Submitted steps that are not committed yet, on all lanes."""
        return len(self._in_flight)

    @property
    def available_tokens(self) -> int:
        """Of memory, for a new sequence without a hit, if everything unused is evicted."""
        return self._kv.available_tokens

    @property
    def capacity_tokens(self) -> int:
        """Of memory, for one sequence alone."""
        return self._kv.capacity_tokens

    @property
    def tokens_per_block(self) -> int:
        return self._kv.tokens_per_block

    @property
    def max_rows(self) -> int:
        return self._config.max_rows

    @property
    def max_model_tokens(self) -> int:
        return self._config.max_model_tokens

    @property
    def earliest_deadline_s(self) -> float | None:
        """Of whoever waits or runs."""
        return self._deadlines.earliest()

    def num_in_flight_on(self, lane: LaneId) -> int:
        return sum([plan.lane == lane for plan in self._in_flight.values()])

    @property
    def is_memory_coming(self) -> bool:
        """Whether collecting a step in flight will free memory, because somebody has ended whom it names."""
        return self._kv.num_quarantined > 0

    @property
    def is_stateless(self) -> bool:
        """Whether nobody's chunks have states to be kept on their way."""
        return self._snapshots is None

    def num_free_rows(self, lane: LaneId) -> int:
        return self._rows.num_free(lane)

    def lookup(self, seq: Sequence) -> Hit:
        """What a waiting sequence would find in the prefix index. Good until the next verb."""
        if not self._uses_prefix(seq) or seq.needs_every_row or self._num_imported(seq):
            return self._no_hit(seq)
        hit = self._kv.lookup(seq.tokens, self._root(seq))
        leader = self._leader(seq)
        hit = hit if leader is None else self._kv.beside(hit, leader.id, _num_shared(seq))
        return self._kv.with_images(hit, self._root(seq), _spans(seq)) if seq.request.images else hit

    def lease(self, seq: Sequence, now: float, until_s: float) -> Hit:
        """The same, and others' prefixes are evicted before it: until then, or until the sequence runs or ends."""
        hit = self.lookup(seq)
        self._kv.leases.take(seq.id, hit, now, until_s)
        return hit

    def is_held(self, seq: Sequence, hit: Hit) -> bool:
        """Whether somebody who runs is computing what `seq` would have to compute first. Nobody who is online waits for
        offline work, which may be made to rest.
        """
        if not self._uses_prefix(seq) or seq.needs_every_row or self._num_imported(seq):
            return False
        leader = self._leader(seq)
        if leader is not None and leader.num_computed < _num_shared(seq) > hit.num_reused:
            return True
        holder = self._holds.holder(seq, self._root(seq), hit.num_reused)
        return holder is not None and (is_offline(seq) or not is_offline(self._by_id[holder]))

    def fitting(self, seq: Sequence, hit: Hit) -> Hit | None:
        """As much of the hit as leaves room for all of a waiting sequence beside one more block for everybody
        (CONTRACTS H10); None: there is no room. Alone, it needs no such reserve.
        """
        num_growing = len(self.running) + 1 if self.running else 0
        if self._kv.fits(hit, len(seq.tokens), num_growing):
            return hit
        # A tail is copied, so what it is copied from takes room beside the copy.
        if hit.tail is not None and self._kv.fits(hit.without_tail(), len(seq.tokens), num_growing):
            return hit.without_tail()
        if self.running or self._in_flight:
            return None
        # Alone, only the hit can be in the way: its blocks may lie on more pages than they need.
        if not self._kv.fits(self._no_hit(seq), len(seq.tokens), 0):
            raise InvariantError(f"sequence {seq.id} does not fit into empty memory: {self._kv.explain()}")
        return self._no_hit(seq)

    # What a policy does.

    def admit(self, seq: Sequence) -> None:
        """A new sequence waits. `RequestError` if it could never be served; then nothing has changed."""
        limits = (self._config.max_model_tokens, self._kv.capacity_tokens)
        refuse_impossible(
            seq,
            *limits,
            can_embed=self._config.can_embed,
            can_import=self._config.can_import,
            can_see=self._kv.has_images,
        )
        if seq.request.images:
            refuse_too_many_images(seq, self._kv.can_hold(seq.num_prompt + seq.max_output_tokens, _spans(seq)))
        self._by_id[seq.id] = seq
        if seq.request.n > 1:
            self._siblings.setdefault(seq.request.id, []).append(seq)
        self._deadlines.add(seq)
        self.waiting.add(seq)

    def join(self, step: OpenStep, seq: Sequence, hit: Hit, now: float) -> None:
        """A waiting sequence runs from this step on: a row, memory for all that is known of it, its first chunk. There
        is a free row, and room behind the hit.
        """
        root, uses_prefix = self._root(seq), self._uses_prefix(seq)
        self._kv.open(seq.id, root, hit, now, uses_prefix, OFFLINE_BEHIND_S if is_offline(seq) else 0.0)
        self._kv.leases.end(seq.id)
        num_imported = self._num_imported(seq)
        start = num_imported or hit.num_reused
        end = self._kv.extent(seq.id, len(seq.tokens), start + min(len(seq.tokens) - start, step.budget))
        grants = self._kv.reserve(seq.id, len(seq.tokens), now, end)
        if grants is None or end <= start:
            raise InvariantError(f"sequence {seq.id} does not fit into the room there was: {self._kv.explain()}")
        self.waiting.remove(seq)
        if num_imported:
            self._kv.imported(seq.id, seq.tokens[:num_imported], now)
        if seq.state is SeqState.WAITING:
            seq.num_cached = hit.num_reused
            seq.scheduled_s = now
            self._events(Scheduled(now, seq.id, hit.num_reused))
        seq.state, seq.lane, seq.row = SeqState.RUNNING, step.lane, self._rows.take(step.lane)
        seq.num_slots = self._kv.num_slots(seq.id)
        # What is copied from a partly matched block is in flight like what is computed.
        seq.num_computed, seq.num_scheduled = num_imported or hit.num_tokens, hit.num_reused - hit.num_tokens
        if self.running and order_key(self.running[-1]) > order_key(seq):
            bisect.insort(self.running, seq, key=order_key)
        else:
            self.running.append(seq)
        step.joins.append(self._join(seq, seq.row, num_imported))
        if self._snapshots is not None:
            self._snapshots.joined(seq, hit)
        self._add(step, seq, start, end, grants, now)
        if uses_prefix:
            self._holds.computing(seq, root, num_imported or hit.num_reused)

    def go_on(self, step: OpenStep, seq: Sequence, num_plannable: int, now: float) -> bool:
        """A running sequence gets its next chunk, of at most its `num_plannable` tokens. False: there is no memory for
        it, and nothing has changed.
        """
        start = seq.num_computed + seq.num_scheduled
        end = start + min(num_plannable, step.budget)
        grants = NO_GRANTS
        if end > seq.num_slots:
            end = self._kv.extent(seq.id, end, end)
            granted = self._kv.reserve(seq.id, end, now) if end > start else None
            if granted is None:
                return False
            grants = granted
            seq.num_slots = self._kv.num_slots(seq.id)
        if self._snapshots is None:
            step.add(seq, end - start, grants)
        else:
            self._add(step, seq, start, end, grants, now)
        return True

    def verify(self, step: OpenStep, seq: Sequence, drafted: Drafted, now: float) -> bool:
        """A running sequence of which nothing is in flight gets its last token and drafts behind it. False: there is no
        memory for them that nobody will soon need, and nothing has changed.
        """
        if 1 + len(drafted.tokens) > step.budget:
            return False
        snapshots: tuple[Snapshot, ...] = ()
        if self._snapshots is not None:
            drafted = drafted.first(self._snapshots.most_drafts(seq.id, seq.num_computed, len(drafted.tokens)))
            kept = self._keep_states(seq, len(drafted.tokens))
            if not kept:
                return False
            snapshots = kept
        grants = self._room_for(seq, seq.num_computed + 1 + len(drafted.tokens), now)
        if grants is None:
            if snapshots:
                self._kv.scratch.give_back(seq.id)
            return False
        step.verify(seq, drafted, grants, snapshots)
        return True

    def _room_for(self, seq: Sequence, end: int, now: float) -> Grants | None:
        """Slots up to `end`, if what everybody needs for the next tokens need not go to guesses."""
        if end <= seq.num_slots:
            return NO_GRANTS
        spare = self._kv.available_tokens - self._kv.tokens_per_block * len(self.running)
        if end - seq.num_slots > spare or self._kv.extent(seq.id, end, end) < end:
            return None
        granted = self._kv.reserve(seq.id, end, now)
        if granted is not None:
            seq.num_slots = self._kv.num_slots(seq.id)
        return granted

    def _keep_states(self, seq: Sequence, num_drafts: int) -> tuple[Snapshot, ...]:
        """Copies of the states behind every row that may be the last accepted one; the last row's is the running one.
        Nothing: there are no drafts, or there is no memory.
        """
        start = seq.num_computed
        taken = self._kv.scratch.take(seq.id, start + 1, num_drafts) if num_drafts else None
        return (
            ()
            if taken is None
            else tuple([Snapshot(length - 1 - start, group, block) for length, group, block in taken])
        )

    def move(self, seq: Sequence, lane: LaneId) -> None:
        """A running sequence that no step names goes on on another lane: its row and its blocks stay what they are, so
        a hand-over costs nothing (CONTRACTS H7).
        """
        if seq.num_scheduled or seq.state is not SeqState.RUNNING:
            raise InvariantError(f"sequence {seq.id} changes its lane while it is {seq.state} or a step names it")
        seq.lane = lane

    def gather_leaves(self, lane: LaneId) -> None:
        """The next step of `lane` also tells who left on other lanes, unless a step in flight there still names him:
        his blocks may be granted anew as soon as none does, and then the executor must know that they are not his.
        """
        if self._rows.num_untold:
            named = {chunk.seq for plan in self._in_flight.values() if plan.lane != lane for chunk in plan.chunks}
            self._rows.gather(lane, named.__contains__)

    def _add(self, step: OpenStep, seq: Sequence, start: int, end: int, grants: Grants, now: float) -> None:
        """Tokens [start, end) of a sequence, and the copies of states that are made on their way."""
        snapshots = () if self._snapshots is None else self._snapshots.of_chunk(seq.id, start, end, now)
        step.add(seq, end - start, grants, snapshots)

    def is_in_its_own_way(self, seq: Sequence) -> bool:
        """Whether committing what `seq` has in flight will give it back memory: tokens that leave its windows."""
        return not self._kv.keeps_all and seq.num_scheduled > self._kv.tokens_per_block

    def preempt(self, seq: Sequence, now: float) -> None:
        """A running sequence gives back its memory and waits, to be computed again later."""
        if seq.num_scheduled:
            raise InvariantError(f"sequence {seq.id} is preempted while a step names it")
        self._events(Preempted(now, seq.id, seq.num_computed))
        self._vacate(seq, now)
        seq.state = SeqState.PREEMPTED
        seq.num_preemptions += 1
        seq.num_computed = 0
        self.waiting.add(seq)

    def prolong(self, step: OpenStep, foresight: Foresight, now: float) -> None:
        """Make the step the first of a run, if nothing new will come between its steps. Nobody who waits may be waiting
        for what these steps change.
        """
        prolong(step, self.running, self._kv, foresight, now, self._deadlines.earliest())

    def may_grow(self, hit: Hit) -> bool:
        """Whether somebody who runs could publish what would make the hit longer."""
        return self._kv.may_grow(hit)

    def submit(self, step: OpenStep) -> Submit:
        """The step is closed and in flight."""
        step_id = self.take_step_id(step.num_steps)
        self.gather_leaves(step.lane)
        plan = step.plan(step_id, self._rows.submitted(step_id, step.lane))
        self._kv.submitted(plan)
        self._in_flight[step_id] = plan
        return Submit(plan)

    def take_step_id(self, num_steps: int = 1) -> StepId:
        """Of the next step, whoever submits it; of a run, the first of its steps."""
        step_id = StepId(self._next_step)
        self._next_step += num_steps
        return step_id

    def commit(self, result: StepResult, now: float) -> list[SeqUpdate]:
        """Take a collected step: publish what it computed and say what it gave each sequence."""
        plan = self._in_flight.pop(result.step, None)
        if plan is None:
            raise InvariantError(f"step {result.step} was collected but is not in flight")
        by_seq = {given.seq: given for given in result.seqs}
        if is_run := plan.num_steps > 1:
            self._commit_run(plan, by_seq, now)
        updates, known, step = [], self._by_id, plan.step
        for chunk in plan.chunks:
            seq = known.get(chunk.seq)
            if seq is None:
                continue
            given = by_seq[chunk.seq]
            if chunk.tokens is FROM_DEVICE and not is_run and given.is_token:
                update: SeqUpdate | None = self._commit_token(step, seq, given, now)
            else:
                update = self._commit_chunk(step, seq, chunk, given, now, is_run)
            if update is not None:
                updates.append(update)
        self._kv.collected(result.step)
        self._rows.collected(result.step)
        return updates

    def abort(self, seq: SeqId, now: float) -> None:
        """End a sequence whose answer nobody wants. Unknown or finished ids are ignored."""
        found = self._by_id.get(seq)
        if found is not None:
            self._finish(found, now)

    def expire(self, now: float) -> list[SeqUpdate]:
        """End the sequences whose deadline has passed, those that run too: nobody wants their answers any more."""
        updates = []
        for seq, late_s in self._deadlines.passed(now):
            doing = "running" if seq.state is SeqState.RUNNING else "waiting"
            self._finish(seq, now)
            error = f"deadline_exceeded: still {doing} {late_s:.3f} s after its deadline; send less work at once"
            updates.append(SeqUpdate(seq.id, finish_reason=FinishReason.ERROR, error=error))
        return updates

    def take_cancels(self) -> list[Cancel]:
        """Cancels that no executor was told yet, of steps that are still in flight; they count as told."""
        cancels, self._cancels = self._cancels, []
        return [cancel for cancel in cancels if cancel.step in self._in_flight]

    def explain(self) -> str:
        """For whoever looks for a fault."""
        running = ", ".join(f"{seq.id} ({seq.num_computed} of {len(seq.tokens)} computed)" for seq in self.running)
        steps = ", ".join(f"{plan.step} on lane {plan.lane}" for plan in self._in_flight.values())
        return (
            f"steps in flight: {steps or 'none'}; running: {running or 'nobody'}; {self._kv.explain()}; "
            f"{len(self.waiting)} waiting"
        )

    def check(self) -> None:
        """Raise `InvariantError` naming the first broken invariant. Reads everything: for tests and idle times."""
        self._rows.check(seq.row for seq in self.running if seq.row is not None)
        if self.running != sorted(self.running, key=order_key):
            raise InvariantError(f"running sequences {[seq.id for seq in self.running]} are out of order")
        everyone = {seq.id: seq for seq in (*self.running, *self.waiting)}
        if everyone != self._by_id or len(everyone) != len(self.running) + len(self.waiting):
            raise InvariantError(f"sequences {sorted(self._by_id)} are known but {sorted(everyone)} run or wait")
        for seq in self.waiting:
            if seq.row is not None or seq.num_computed or seq.num_scheduled or seq.num_slots:
                raise InvariantError(f"sequence {seq.id} waits but has row {seq.row}, memory or something computed")
        for seq in self.running:
            if seq.num_slots > self._kv.num_slots(seq.id):
                held = self._kv.num_slots(seq.id)
                raise InvariantError(f"sequence {seq.id} takes itself to have {seq.num_slots} slots and has {held}")
        self._holds.check([seq.id for seq in self.running], everyone)

    def _commit_run(self, plan: StepPlan, by_seq: Mapping[SeqId, SeqResult], now: float) -> None:
        """The memory takes all sequences of a run at once. Of what they sampled, the last token is not computed yet."""
        written = {}
        for chunk in plan.chunks:
            seq, given = self._by_id.get(chunk.seq), by_seq[chunk.seq]
            if seq is not None and given.status is SeqStatus.OK:
                written[chunk.seq] = [*seq.tokens[chunk.start :], *given.tokens[:-1]]
        self._kv.commit_run(plan.step, written, now)

    def _commit_token(self, step: StepId, seq: Sequence, given: SeqResult, now: float) -> SeqUpdate:
        """`_commit_chunk` of what nearly every chunk is: one token that the device had, and another one behind it."""
        start = seq.num_computed
        self._kv.commit(step, seq.id, (seq.tokens[start],), now)
        seq.num_computed = start + 1
        seq.num_scheduled -= 1
        update = take_tokens(seq, given, self._config.eos_token_ids)
        if update.finish_reason is not None:
            self._finish(seq, now)
        return update

    def _commit_chunk(
        self, step: StepId, seq: Sequence, chunk: Chunk, given: SeqResult, now: float, is_run: bool
    ) -> SeqUpdate | None:
        if given.status is not SeqStatus.OK:
            return self._failed(step, seq, given, now)
        if chunk.drafts is not None:
            return self._commit_verified(step, seq, chunk, given, now)
        # Steps are committed in order, so this one goes on at `num_computed`, with what it copied if it copied.
        start, end = seq.num_computed, chunk.start + given.num_computed
        if not is_run:
            self._kv.commit(step, seq.id, seq.tokens[start:end], now)
        seq.num_computed = end
        seq.num_scheduled -= chunk.start + chunk.num_tokens - start
        if start < seq.num_prompt:
            self._holds.computed(seq)
            if given.pooled is not None and end == seq.num_prompt:
                self._finish(seq, now)
                return SeqUpdate(seq.id, finish_reason=FinishReason.STOP, pooled=given.pooled)
            # Somebody who was preempted computes once more what has been reported.
            seq.num_scored = max(seq.num_scored, min(end + 1, seq.num_to_score))
        if not given.tokens:
            return SeqUpdate(seq.id, prompt_logprobs=given.prompt_logprobs) if given.prompt_logprobs else None
        update = take_tokens(seq, given, self._config.eos_token_ids)
        if update.finish_reason is not None:
            self._finish(seq, now)
        return update._replace(prompt_logprobs=given.prompt_logprobs) if given.prompt_logprobs else update

    def _commit_verified(self, step: StepId, seq: Sequence, chunk: Chunk, given: SeqResult, now: float) -> SeqUpdate:
        """Drafts that were accepted are tokens that it has said; the slots of the others are written again."""
        update = take_tokens(seq, given, self._config.eos_token_ids)
        end = min(chunk.start + given.num_computed, len(seq.tokens))
        self._kv.commit(step, seq.id, seq.tokens[chunk.start : end], now)
        seq.num_computed = end
        seq.num_scheduled -= chunk.num_tokens
        if self._snapshots is not None and self._kv.scratch.settle(seq.id, end):
            # So that the next chunk asks, and hears where its states are.
            seq.num_slots = end
        if update.finish_reason is not None:
            self._finish(seq, now)
        return update

    def _failed(self, step: StepId, seq: Sequence, given: SeqResult, now: float) -> SeqUpdate:
        if given.status is SeqStatus.CANCELLED:
            raise InvariantError(f"step {step} cancelled sequence {seq.id}, but nobody asked for it")
        self._finish(seq, now)
        return SeqUpdate(seq.id, finish_reason=FinishReason.ERROR, error=given.error or "the step failed")

    def _finish(self, seq: Sequence, now: float) -> None:
        if seq.state is SeqState.RUNNING:
            for plan in self._in_flight.values() if seq.num_scheduled else ():
                if any(chunk.seq == seq.id for chunk in plan.chunks):
                    self._cancels.append(Cancel(plan.step, (seq.id,)))
            self._vacate(seq, now)
        else:
            self.waiting.remove(seq)
            self._holds.forget(seq)
            self._kv.leases.end(seq.id)
        seq.state = SeqState.FINISHED
        self._deadlines.remove(seq)
        del self._by_id[seq.id]
        if seq.request.n > 1:
            siblings = self._siblings[seq.request.id]
            siblings.remove(seq)
            if not siblings:
                del self._siblings[seq.request.id]

    def _vacate(self, seq: Sequence, now: float) -> None:
        """Give back row and memory; the executor learns of it by a leave."""
        if seq.row is None or seq.lane is None:
            raise InvariantError(f"sequence {seq.id} runs without a row or a lane")
        self.running.remove(seq)
        self._rows.leave(seq.id, seq.row, seq.lane)
        self._kv.release(seq.id, now)
        if self._snapshots is not None:
            self._snapshots.left(seq.id)
        self._holds.forget(seq)
        seq.row, seq.lane, seq.num_slots = None, None, 0

    def _num_imported(self, seq: Sequence) -> int:
        """Tokens that a waiting sequence brings along. What it lost to a preemption does not come again."""
        return 0 if seq.num_preemptions or seq.needs_every_row else seq.request.num_imported

    def _join(self, seq: Sequence, row: int, num_imported: int) -> Join:
        sampling = seq.request.sampling
        return Join(
            seq=seq.id,
            row=row,
            params=sampling,
            seed=seq.seed % 2**64,
            choice=seq.choice,
            num_prompt=seq.num_prompt,
            history=tuple(seq.tokens[: seq.num_computed + seq.num_scheduled]) if sampling.has_penalties else (),
            adapter=seq.request.adapter,
            eos_token_ids=self._config.eos_token_ids,
            num_imported=num_imported,
        )

    def _leader(self, seq: Sequence) -> Sequence | None:
        """A running sequence of the same request, which computes the prompt for all of them."""
        siblings = self._siblings.get(seq.request.id, ())
        return next((one for one in siblings if one.state is SeqState.RUNNING and one is not seq), None)

    def _root(self, seq: Sequence) -> Root:
        request = seq.request
        images = tuple(image.content_hash for image in request.images)
        return Root(self._config.fingerprint, request.tenant, request.adapter, images)

    def _no_hit(self, seq: Sequence) -> Hit:
        hit = self._kv.no_hit()
        return self._kv.with_images(hit, self._root(seq), _spans(seq)) if seq.request.images else hit

    def _uses_prefix(self, seq: Sequence) -> bool:
        return self._config.enable_prefix and seq.request.cache_prefix


def _spans(seq: Sequence) -> tuple[ImageSpan, ...]:
    return tuple(
        ImageSpan(one.content_hash, one.num_rows or one.num_tokens, one.start + one.num_tokens)
        for one in seq.request.images
    )


def _num_shared(seq: Sequence) -> int:
    """Tokens of the prompt that need not be computed by every choice: one must be, to go on from."""
    return min(seq.num_prompt, len(seq.tokens) - 1)
