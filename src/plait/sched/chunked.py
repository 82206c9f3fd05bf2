"""Chunked: the baseline policy. One launch at a time, decode first, prompts cut to a token budget, first come first.

There is no prefill or decode phase: every running sequence has tokens whose KV is not computed, and the step's budget
is handed out until computed catches up with known. Prefix hits, resumed preemptions and chunked prompts all fall out
of that one rule.
Owns the sequences from admission to their end, the executor rows and the numbering of steps. Invariant: a running
sequence has a row and a block table; a waiting one has neither.

Memory: a sequence is admitted when its whole known text plus one block of growth for every running sequence fits, so
a started prompt never stalls half-way (CONTRACTS H10). When growth fails all the same, the youngest running sequence
leaves and is computed again later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from plait.core.decision import Blocked, Cancel, Decision, SeqUpdate, Submit
from plait.core.errors import InvariantError, RequestError
from plait.core.events import EventSink, Preempted, Scheduled
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.request import FinishReason, SeqState, Sequence, Task
from plait.core.step import (
    BlockGrant,
    Chunk,
    Join,
    Leave,
    Move,
    OutputKind,
    Outputs,
    SeqResult,
    SeqStatus,
    StepPlan,
    StepResult,
)
from plait.kv.cache import Grants, Hit, KVCache, Root
from plait.sched.outcome import take_tokens
from plait.sched.prefix_hold import PrefixHolds
from plait.sched.waiting import WaitingLine, order_key

LANE = LaneId(0)


@dataclass(frozen=True, slots=True)
class ChunkedConfig:
    max_step_tokens: int = 512
    """Tokens computed in one step at most."""
    max_rows: int = 64
    """Sequences running at once at most."""
    max_model_tokens: int = 2048
    """Prompt and output tokens of one sequence together at most."""
    fingerprint: str = ""
    """Root of the prefix index: KV of another numerics fingerprint is never reused."""
    eos_token_ids: tuple[int, ...] = ()
    enable_prefix: bool = True
    """Read and write the prefix index."""
    lane: LaneId = LANE


@dataclass(slots=True)
class _OpenStep:
    """A step being put together; `budget` is how many tokens it may still take."""

    budget: int
    chunks: dict[SeqId, Chunk] = field(default_factory=dict)
    joins: list[Join] = field(default_factory=list)
    grants: list[BlockGrant] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    def add(self, seq: Sequence, grants: Grants) -> None:
        """Take as many uncomputed tokens of `seq` as the budget allows; the row behind the last known token samples."""
        start, num_tokens = seq.num_computed, min(seq.num_uncomputed, self.budget)
        outputs: tuple[Outputs, ...] = ()
        if start + num_tokens == len(seq.tokens):
            outputs = (Outputs(num_tokens - 1, 1, OutputKind.SAMPLE),)
        tokens = tuple(seq.tokens[start : start + num_tokens])
        self.chunks[seq.id] = Chunk(seq.id, start, num_tokens, tokens, outputs=outputs)
        self.grants += grants.blocks
        self.moves += grants.moves
        self.budget -= num_tokens
        seq.num_scheduled += num_tokens


class ChunkedScheduler:
    """See the module. Implements `plait.sched.scheduler.Scheduler`."""

    def __init__(self, config: ChunkedConfig, kv: KVCache, events: EventSink) -> None:
        self._config = config
        self._kv = kv
        self._events = events
        self._waiting = WaitingLine()
        self._running: list[Sequence] = []
        """In `order_key` order, so the last one is the first victim."""
        self._by_id: dict[SeqId, Sequence] = {}
        self._holds = PrefixHolds(kv.tokens_per_block)
        self._free_rows = deque(range(config.max_rows))
        self._leaves: list[Leave] = []
        self._cancels: list[Cancel] = []
        self._in_flight: dict[StepId, StepPlan] = {}
        self._next_step = 0
        self._blocked: Blocked | None = None

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def blocked(self) -> Blocked | None:
        return self._blocked

    def admit(self, seq: Sequence, now: float) -> None:
        self._refuse_impossible(seq)
        self._by_id[seq.id] = seq
        self._waiting.add(seq)

    def abort(self, seq: SeqId, now: float) -> None:
        found = self._by_id.get(seq)
        if found is None:
            return
        if found.last_step in self._in_flight:
            self._cancels.append(Cancel(self._in_flight[found.last_step].step, (seq,)))
        self._finish(found, FinishReason.ABORT, now)

    def expire(self, now: float) -> list[SeqUpdate]:
        updates = []
        for seq in self._waiting.expired(now):
            self._finish(seq, FinishReason.ERROR, now)
            late_s = 0.0 if seq.request.deadline_s is None else now - seq.request.deadline_s
            error = f"deadline_exceeded: still waiting {late_s:.3f} s after its deadline; send less work at once"
            updates.append(SeqUpdate(seq.id, finish_reason=FinishReason.ERROR, error=error))
        return updates

    def wake_at(self) -> float | None:
        return self._waiting.earliest_deadline()

    def plan(self, now: float) -> list[Decision]:
        decisions: list[Decision] = list(self._cancels)
        self._cancels.clear()
        if self._in_flight:
            return decisions
        step = _OpenStep(self._config.max_step_tokens)
        self._plan_running(step, now)
        self._plan_waiting(step, now)
        if step.chunks:
            decisions.append(Submit(self._submitted(step)))
        return decisions

    def check(self) -> None:
        """Raise `InvariantError` naming the first broken invariant. Reads everything: for tests and idle times."""
        rows = sorted([*self._free_rows, *(seq.row for seq in self._running if seq.row is not None)])
        if rows != list(range(self._config.max_rows)):
            raise InvariantError(f"rows {rows} are free or taken; there are {self._config.max_rows}, each once")
        if self._running != sorted(self._running, key=order_key):
            raise InvariantError(f"running sequences {[seq.id for seq in self._running]} are out of order")
        everyone = {seq.id: seq for seq in (*self._running, *self._waiting)}
        if everyone != self._by_id or len(everyone) != self.num_running + self.num_waiting:
            raise InvariantError(f"sequences {sorted(self._by_id)} are known but {sorted(everyone)} run or wait")
        for seq in self._waiting:
            if seq.row is not None or seq.num_computed or seq.num_scheduled:
                raise InvariantError(f"sequence {seq.id} waits but has row {seq.row} or something computed")
        self._holds.check([seq.id for seq in self._running], everyone)

    def _plan_running(self, step: _OpenStep, now: float) -> None:
        # Decode first: one token each, so that a long prompt in the same step cannot take their place in the budget.
        order = sorted(self._running, key=lambda seq: seq.num_uncomputed > 1)
        for seq in order:
            if seq.state is SeqState.RUNNING and step.budget > 0 and seq.num_uncomputed > 0:
                self._plan_chunk(step, seq, now)

    def _plan_chunk(self, step: _OpenStep, seq: Sequence, now: float) -> None:
        num_tokens = min(seq.num_uncomputed, step.budget)
        while True:
            grants = self._kv.reserve(seq.id, seq.num_computed + num_tokens, now)
            if grants is not None:
                break
            victim = self._victim(step)
            self._preempt(victim, now)
            if victim is seq:
                return
        step.add(seq, grants)

    def _victim(self, step: _OpenStep) -> Sequence:
        """The youngest running sequence that is not in this step yet; nothing is in flight while planning (CONTRACTS
        H9).
        """
        return next(seq for seq in reversed(self._running) if seq.id not in step.chunks)

    def _plan_waiting(self, step: _OpenStep, now: float) -> None:
        self._blocked = None
        # Those that wait for a prefix are passed over, but only so many: looking through a long line would cost every
        # step more than it could gain.
        for seq in self._waiting.first(len(self._free_rows) + self._config.max_rows):
            blocked = self._start(step, seq, now)
            if blocked is not None:
                self._blocked = blocked
            if blocked not in (None, Blocked.BY_PREFIX):
                return

    def _start(self, step: _OpenStep, seq: Sequence, now: float) -> Blocked | None:
        """Give a waiting sequence a row, memory and its first chunk, or say what is short."""
        if step.budget <= 0:
            return Blocked.BY_BUDGET
        if not self._free_rows:
            return Blocked.BY_ROWS
        root, uses_prefix = self._root(seq), self._uses_prefix(seq)
        hit = self._kv.lookup(seq.tokens, root) if uses_prefix else self._kv.no_hit()
        if uses_prefix and self._holds.is_held(seq, root, hit.num_tokens):
            return Blocked.BY_PREFIX
        if not self._has_room(seq, hit):
            return Blocked.BY_MEMORY
        self._kv.open(seq.id, root, hit, now, publish=uses_prefix)
        grants = self._kv.reserve(seq.id, len(seq.tokens), now)
        if grants is None:
            raise InvariantError(f"sequence {seq.id} does not fit into the room there was: {self._kv.explain()}")
        self._join(step, seq, hit.num_tokens, now)
        step.add(seq, grants)
        if uses_prefix:
            self._holds.computing(seq, root, hit.num_tokens)
        return None

    def _has_room(self, seq: Sequence, hit: Hit) -> bool:
        """Whether all of a waiting sequence fits beside one more block for everybody. Alone, it needs no such reserve."""
        growth = (len(self._running) + 1) * self._kv.tokens_per_block if self._running else 0
        if len(seq.tokens) - hit.num_tokens + growth <= self._kv.room_behind(hit):
            return True
        if not self._running and not self._in_flight:
            raise InvariantError(f"sequence {seq.id} does not fit into empty memory: {self._kv.explain()}")
        return False

    def _join(self, step: _OpenStep, seq: Sequence, num_hit: int, now: float) -> None:
        self._waiting.remove(seq)
        first_time = seq.state is SeqState.WAITING
        seq.state = SeqState.RUNNING
        seq.lane = self._config.lane
        seq.row = self._free_rows.popleft()
        seq.num_computed = num_hit
        if first_time:
            seq.num_cached = num_hit
            seq.scheduled_s = now
            self._events(Scheduled(now, seq.id, num_hit))
        self._running.append(seq)
        self._running.sort(key=order_key)
        request = seq.request
        step.joins.append(
            Join(
                seq=seq.id,
                row=seq.row,
                params=request.sampling,
                seed=seq.seed % 2**64,
                choice=seq.choice,
                num_prompt=seq.num_prompt,
                history=tuple(seq.tokens[:num_hit]) if request.sampling.has_penalties else (),
                adapter=request.adapter,
                eos_token_ids=self._config.eos_token_ids,
            )
        )

    def _submitted(self, step: _OpenStep) -> StepPlan:
        plan = StepPlan(
            step=StepId(self._next_step),
            lane=self._config.lane,
            roster=(*self._leaves, *step.joins),
            blocks=tuple(step.grants),
            moves=tuple(step.moves),
            chunks=tuple(step.chunks.values()),
        )
        self._next_step += 1
        self._leaves.clear()
        for seq in step.chunks:
            self._by_id[seq].last_step = plan.step
        self._kv.submitted(plan)
        self._in_flight[plan.step] = plan
        return plan

    def commit(self, result: StepResult, now: float) -> list[SeqUpdate]:
        plan = self._in_flight.pop(result.step, None)
        if plan is None:
            raise InvariantError(f"step {result.step} was collected but is not in flight")
        by_seq = {given.seq: given for given in result.seqs}
        updates = []
        for chunk in plan.chunks:
            seq = self._by_id.get(chunk.seq)
            if seq is None:
                continue
            update = self._commit_chunk(plan.step, seq, chunk, by_seq[chunk.seq], now)
            if update is not None:
                updates.append(update)
        self._kv.collected(result.step)
        return updates

    def _commit_chunk(
        self, step: StepId, seq: Sequence, chunk: Chunk, given: SeqResult, now: float
    ) -> SeqUpdate | None:
        seq.num_scheduled -= chunk.num_tokens
        if given.status is SeqStatus.CANCELLED:
            return None
        if given.status is SeqStatus.FAILED:
            self._finish(seq, FinishReason.ERROR, now)
            return SeqUpdate(seq.id, finish_reason=FinishReason.ERROR, error=given.error or "the step failed")
        end = chunk.start + given.num_computed
        self._kv.commit(step, seq.id, seq.tokens[chunk.start : end], now)
        seq.num_computed = end
        self._holds.computed(seq)
        if not given.tokens:
            return None
        update = take_tokens(seq, given, self._config.eos_token_ids)
        if update.finish_reason is not None:
            self._finish(seq, update.finish_reason, now)
        return update

    def _preempt(self, seq: Sequence, now: float) -> None:
        self._events(Preempted(now, seq.id, seq.num_computed))
        self._vacate(seq, now)
        seq.state = SeqState.PREEMPTED
        seq.num_preemptions += 1
        seq.num_computed = 0
        self._waiting.add(seq)

    def _finish(self, seq: Sequence, reason: FinishReason, now: float) -> None:
        if seq.state is SeqState.RUNNING:
            self._vacate(seq, now)
        else:
            self._waiting.remove(seq)
            self._holds.forget(seq)
        seq.state = SeqState.FINISHED
        seq.finish_reason = reason
        seq.finished_s = now
        del self._by_id[seq.id]

    def _vacate(self, seq: Sequence, now: float) -> None:
        """Give back row and memory; the executor learns of it by a Leave in the next plan."""
        if seq.row is None:
            raise InvariantError(f"sequence {seq.id} runs without a row")
        self._running.remove(seq)
        self._free_rows.append(seq.row)
        self._leaves.append(Leave(seq.id))
        self._kv.release(seq.id, now)
        self._holds.forget(seq)
        seq.row = None
        seq.lane = None

    def _root(self, seq: Sequence) -> Root:
        request = seq.request
        images = tuple(image.content_hash for image in request.images)
        return Root(self._config.fingerprint, request.tenant, request.adapter, images)

    def _uses_prefix(self, seq: Sequence) -> bool:
        return self._config.enable_prefix and seq.request.cache_prefix

    def _refuse_impossible(self, seq: Sequence) -> None:
        request = seq.request
        if request.task is not Task.GENERATE:
            raise RequestError(
                f"task {request.task} is not supported by this engine; ask for a continuation", param="task"
            )
        if request.adapter is not None:
            raise RequestError(
                f"adapter {request.adapter!r} is not loaded; leave it out", param="adapter", code="model_not_found"
            )
        if request.images:
            raise RequestError("this model reads text only; leave the images out", param="messages")
        if not request.prompt:
            raise RequestError("the prompt is empty; send at least one token", param="prompt")
        needed = len(request.prompt) + seq.max_output_tokens
        limit = self._config.max_model_tokens
        if len(request.prompt) >= limit:
            raise RequestError(
                f"the prompt has {len(request.prompt)} tokens but this model holds {limit}, output included; shorten "
                f"it to {limit - 1} tokens or less",
                param="prompt",
                code="context_length_exceeded",
            )
        if needed > limit:
            raise RequestError(
                f"the prompt has {len(request.prompt)} tokens and max_tokens is {seq.max_output_tokens}, together "
                f"{needed}, but this model holds {limit}; shorten the prompt or lower max_tokens",
                param="max_tokens",
                code="context_length_exceeded",
            )
        if not self._kv.can_ever_hold(needed):
            raise RequestError(
                f"the request needs memory for {needed} tokens but the cache holds {self._kv.capacity_tokens}; shorten "
                "it or start with a larger --kv-cache-memory",
                param="max_tokens",
                code="context_length_exceeded",
            )
