"""Chunked: the baseline policy. Every launch holds whatever there is to do: decode first, prompts cut to a token
budget, first come first.

There is no prefill or decode phase: every running sequence has tokens whose KV is not computed, and the step's budget
is handed out until computed catches up with known. Prefix hits, resumed preemptions and chunked prompts all fall out
of that one rule.
Owns the choice of who gets the budget, and nothing else; sequences live in `plait.sched.lives`.

Ahead: while a step is in flight the next one is planned behind it, up to `queue_depth`, so that the device never waits
for Python (docs/adr/0007). The token that a sequence says in the step before is then taken from the device, so
everybody who runs is in every step and batches do not come apart.

Drafts: where they pay (`plait.sched.speculation`), the next step waits for the one in flight and verifies guesses
behind the tokens that it brought; a draft model's steps come between the two.

Beside online traffic (`plait.sched.colocation`): once anybody was online, offline rows are put into a step after the
online ones, and only as many as the policy allows; a step of theirs alone is short and has no other queued behind it.
An online sequence that is short of a row or of memory gets what an offline one has, within a step.

Memory: a sequence starts when its whole known text plus one block of growth for every running sequence fits, so a
started prompt never stalls half-way (CONTRACTS H10). When growth fails all the same, one that runs leaves and is
computed again later, offline ones first; while a step in flight names it, it is left out of the next one first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass

from plait.core.decision import Blocked, Decision, SeqUpdate, Submit
from plait.core.events import EventSink
from plait.core.executor import Foresight
from plait.core.ids import LaneId, SeqId
from plait.core.request import SeqState, Sequence
from plait.core.step import StepResult
from plait.cost.model import CostModel
from plait.kv.cache import KVCache
from plait.sched.colocation.policy import Colocation, ColocationConfig
from plait.sched.filling import Allows, anybody, give_way, make_room, start
from plait.sched.lives import Lives, LivesConfig
from plait.sched.open_step import OpenStep
from plait.sched.speculation import Drafted, Speculation
from plait.sched.waiting import has_reserve, num_online

LANE = LaneId(0)
_NO_DRAFTS: Mapping[SeqId, Drafted] = {}


@dataclass(frozen=True, slots=True)
class ChunkedConfig:
    lives: LivesConfig
    max_step_tokens: int = 512
    """Tokens computed in one step at most."""
    lane: LaneId = LANE
    queue_depth: int = 1
    """Steps in flight at once at most; what the executor's info allows."""
    foresight: Foresight | None = None
    """Who knows how many steps will bring nothing new; None: nobody, so every step is planned by itself."""
    colocation: ColocationConfig | None = None
    """How offline work goes beside online traffic; None: it is another row, behind the online ones in order alone."""
    cost: CostModel | None = None
    """Prices of steps on `units` share units, where they are known: by them targets are held beside offline work."""
    units: int = 1


class ChunkedScheduler:
    """See the module. Implements `plait.sched.scheduler.Scheduler`."""

    def __init__(
        self, config: ChunkedConfig, kv: KVCache, events: EventSink, speculation: Speculation | None = None
    ) -> None:
        self._config = config
        self._speculation = speculation
        self._resting: Speculation | None = None
        """What would speculate if it were not switched off."""
        self._lives = Lives(config.lives, kv, events)
        self._colocation: Colocation | None = None
        if config.colocation is not None:
            self._colocation = Colocation(config.colocation, self._lives, config.cost, config.units)
        self._is_shared = False
        """Whether there were both classes at the last plan."""
        self._blocked: Blocked | None = None
        """What the first who waits was short of in the last plan. None, too, once somebody has ended since."""
        self._is_news_near = False
        """Whether somebody who waits might be taken once what runs has gone on a little, without anybody ending."""

    def plan(self, now: float) -> list[Decision]:
        decisions: list[Decision] = [*self._lives.take_cancels()]
        if self._lives.num_in_flight_on(self._config.lane) >= self._config.queue_depth:
            return decisions
        colocation, num_rows_online = self._colocation, 0
        is_shared = self._is_shared = colocation is not None and colocation.is_shared(now)
        speculation = self._speculation
        if speculation is not None and speculation.rests(self._drafting()):
            speculation = None
        if speculation is not None:
            has_prompts = self._has_prompts()
            if speculation.waits(self._drafting(), has_prompts):
                return decisions
            guesses = self._guesses(speculation, has_prompts, now)
            if guesses or speculation.is_guessing:
                return [*decisions, *guesses]
        step = OpenStep(self._config.lane, self._config.max_step_tokens)
        if colocation is not None and is_shared:
            num_rows_online = self._plan_classes(colocation, step, now, speculation)
        else:
            running = self._lives.running.copy()  # who is preempted leaves it
            self._plan_running(step, running, now, self._drafts(speculation, step, running))
            self._blocked, self._is_news_near = None, False
            self._plan_waiting(step, self._lives.waiting.first(self._num_looked_at(step)), now)
        if step.chunks:
            foresight = None if is_shared else self._config.foresight
            if foresight is not None and not decisions and not self._is_news_near:
                self._lives.prolong(step, foresight, now)
            submit = self._lives.submit(step)
            if self._speculation is not None:
                self._speculation.submitted(submit.plan, now)
            if colocation is not None:
                colocation.submitted(submit.plan, has_online=num_rows_online > 0)
            decisions.append(submit)
        return decisions

    def draft(self, is_on: bool) -> None:
        """Switch drafts off, as if there never were any, or on again. For measurements: nobody runs meanwhile."""
        if is_on and self._speculation is None:
            self._speculation, self._resting = self._resting, None
        elif not is_on and self._speculation is not None:
            self._speculation.rest()
            self._speculation, self._resting = None, self._speculation

    def _plan_classes(self, colocation: Colocation, step: OpenStep, now: float, speculation: Speculation | None) -> int:
        """A step of both classes, or of offline rows alone. How many rows of it are online."""
        lives, running = self._lives, self._lives.running
        online = running[: num_online(running)]
        resting = self._plan_running(step, online, now, self._drafts(speculation, step, online))
        self._blocked, self._is_news_near = None, False
        first = lives.waiting.first(min(lives.waiting.num_online, self._num_looked_at(step)))
        self._plan_waiting(step, first, now, gives_way=True)
        is_short = resting is not None or self._blocked in (Blocked.BY_ROWS, Blocked.BY_MEMORY)
        num_rows = len(step.chunks)
        online = running[: num_online(running)]
        if is_short or (not num_rows and (online or lives.num_in_flight_on(step.lane))):
            # Offline rows stay out, so that the next plan finds somebody who can leave.
            return num_rows
        while colocation.holds_too_much() and give_way(lives, now):
            pass
        offline = running[num_online(running) :]
        allowed = colocation.beside(step, online, offline, now) if num_rows else colocation.alone(step.budget)
        step.budget = allowed
        self._plan_running(step, offline, now, _NO_DRAFTS)
        self._plan_waiting(step, lives.waiting.offline(self._num_looked_at(step)), now, allows=colocation.may_start)
        if num_rows:
            colocation.rode(allowed - step.budget)
        return num_rows

    def _num_looked_at(self, step: OpenStep) -> int:
        """Those that wait for a prefix are passed over, but only so many: looking through a long line would cost every
        step more than it could gain.
        """
        return self._lives.num_free_rows(step.lane) + self._config.lives.max_rows

    def _drafting(self) -> list[Sequence]:
        """Those who run and may have drafts: where classes share the device, offline rows have none."""
        running = self._lives.running
        return running[: num_online(running)] if self._is_shared else running

    @property
    def _is_online(self) -> bool:
        """Whether somebody online runs."""
        return num_online(self._lives.running) > 0

    def _has_prompts(self) -> bool:
        """Whether the next step may compute tokens of prompts: somebody waits who is not short of rows or memory, or
        somebody runs whose prompt is not computed. Beside online rows, offline prompts are a few tokens and no reason;
        and nobody online is short of what offline rows have.
        """
        waiting, drafting = self._lives.waiting, self._drafting()
        num_waiting = waiting.num_online if self._is_shared else len(waiting)
        is_short = self._blocked in (Blocked.BY_ROWS, Blocked.BY_MEMORY) and len(drafting) == self.num_running
        return (num_waiting > 0 and not is_short) or any([seq.num_plannable > 1 for seq in drafting])

    def _guesses(self, speculation: Speculation, has_prompts: bool, now: float) -> list[Decision]:
        """The next step of a draft model, if one is to be made before the step that is planned."""
        running = self._drafting()
        most_rows = self._config.max_step_tokens - len(running)
        plan = speculation.draft(running, has_prompts, most_rows, self._lives.take_step_id, now)
        return [] if plan is None else [Submit(plan)]

    def _drafts(
        self, speculation: Speculation | None, step: OpenStep, running: AnySequence[Sequence]
    ) -> Mapping[SeqId, Drafted]:
        if speculation is None:
            return _NO_DRAFTS
        return speculation.choose(running, step.budget - len(running), self._has_prompts())

    def _plan_running(
        self, step: OpenStep, running: AnySequence[Sequence], now: float, drafts: Mapping[SeqId, Drafted]
    ) -> Sequence | None:
        """One token each comes first, so that a long prompt in the step cannot take their place in the budget. Who
        rests, for want of memory, so that he can leave.
        """
        go_on, resting = self._lives.go_on, None
        is_plain = not drafts and self._lives.is_stateless
        with_many: list[tuple[Sequence, int]] = []
        for seq in running:
            start = seq.num_computed + seq.num_scheduled
            num_tokens = len(seq.tokens) - start
            if num_tokens <= 0:
                # As nearly all do, in nearly every step: only the device has its next token, if there is one more.
                num_tokens = seq.num_plannable if start < seq.num_inputs else 0
                if is_plain and num_tokens and start < seq.num_slots and not seq.is_steered and step.budget > 0:
                    if seq is not resting and seq.state is SeqState.RUNNING:
                        step.add_unknown(seq, start)
                    continue
            if num_tokens > 1:
                with_many.append((seq, num_tokens))
            elif num_tokens and seq is not resting and seq.state is SeqState.RUNNING:
                if step.budget <= 0:
                    return resting
                if drafts and seq.id in drafts and self._lives.verify(step, seq, drafts[seq.id], now):
                    continue
                if not go_on(step, seq, num_tokens, now):
                    resting = make_room(self._lives, step, seq, num_tokens, now) or resting
        for seq, num_tokens in with_many:
            if step.budget <= 0:
                return resting
            if seq is not resting and seq.state is SeqState.RUNNING and not go_on(step, seq, num_tokens, now):
                resting = make_room(self._lives, step, seq, num_tokens, now) or resting
        return resting

    def _plan_waiting(
        self,
        step: OpenStep,
        waiting: Iterable[Sequence],
        now: float,
        *,
        allows: Allows = anybody,
        gives_way: bool = False,
    ) -> None:
        """As many of them as there is room for, in order. `gives_way`: at the cost of offline ones."""
        can_foresee = self._config.foresight is not None
        for seq in waiting:
            taken = start(self._lives, step, seq, now, can_foresee=can_foresee, allows=allows)
            while gives_way and taken.blocked in (Blocked.BY_ROWS, Blocked.BY_MEMORY) and give_way(self._lives, now):
                taken = start(self._lives, step, seq, now, can_foresee=can_foresee, allows=allows)
            self._is_news_near = self._is_news_near or taken.may_pass
            if taken.blocked is not None:
                self._blocked = taken.blocked
            if taken.blocked is Blocked.BY_MEMORY and allows is not anybody and has_reserve(seq) and self._is_online:
                # He needs much, and perhaps has to wait until nobody is online; the others do not.
                continue
            if taken.blocked not in (None, Blocked.BY_PREFIX):
                return

    @property
    def num_waiting(self) -> int:
        return len(self._lives.waiting)

    @property
    def num_running(self) -> int:
        return len(self._lives.running)

    @property
    def num_in_flight(self) -> int:
        return self._lives.num_in_flight + (0 if self._speculation is None else self._speculation.num_in_flight)

    @property
    def blocked(self) -> Blocked | None:
        return self._blocked

    def admit(self, seq: Sequence, now: float) -> None:
        self._lives.admit(seq)
        if self._colocation is not None:
            self._colocation.arrived(seq, now)

    def commit(self, result: StepResult, now: float) -> list[SeqUpdate]:
        if self._speculation is not None:
            if self._speculation.guessed(result):
                return []
            self._speculation.committed(result, now)
        if self._colocation is not None:
            self._colocation.committed(result)
        is_memory_coming = self._lives.is_memory_coming
        updates = self._lives.commit(result, now)
        has_ended = any([one.finish_reason is not None for one in updates])
        if self._colocation is not None and has_ended:
            self._colocation.sample(now)
        if is_memory_coming or has_ended:
            self._blocked = None
        return updates

    def expire(self, now: float) -> list[SeqUpdate]:
        updates = self._lives.expire(now)
        if updates:
            self._blocked = None
        return updates

    def abort(self, seq: SeqId, now: float) -> None:
        self._blocked = None
        self._lives.abort(seq, now)

    def wake_at(self) -> float | None:
        return self._lives.earliest_deadline_s

    def explain(self) -> str:
        short_of = "" if self._blocked is None else f", short of {self._blocked}"
        return f"{self._lives.explain()}{short_of}"

    def check(self) -> None:
        """Raise `InvariantError` naming the first broken invariant. Reads everything: for tests and idle times."""
        self._lives.check()
        if self._speculation is not None:
            self._speculation.check()
