"""Multiplex: the scheduler of prompts beside decode, under any preset.

Owns when a decision is made, and what it takes to carry it out: shares, suspends, which step goes to which lane, and
the hand-over of a sequence from prompts to decode. The decision itself is `plait.sched.multiplex.decide`'s.
Invariant: at most one step in flight on a lane, and one more behind it while nothing runs beside; a prefill that was
overtaken goes on before another is begun; a sequence changes its lane only while no step names it.

Lanes: decode runs on the first and prompts on the second; a prompt that overtakes one runs on the third while the
second is suspended, one level, and the other way round. A step of both (fused) runs on the first, with every unit.

Ahead: while the whole device has one step after the other, of decode or of both, each is planned while the one before
runs, as `chunked` does it (docs/adr/0007; `plait.sched.multiplex.ahead`). Side by side and in turns, each is planned
when the one before has ended.

Decisions are made when a decode step or a prefill has ended, when something arrives that could change what prompts do,
and when the last decision said that it should be looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from plait.core.decision import Assign, Blocked, Decision, Resume, SeqUpdate, Submit, Suspend
from plait.core.events import EventSink
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.request import SeqState, Sequence
from plait.core.step import StepResult, StepShape, StepStatus
from plait.cost.model import CostModel
from plait.kv.cache import KVCache
from plait.sched.filling import go_on_beside
from plait.sched.lives import Lives, LivesConfig
from plait.sched.multiplex.ahead import Ahead, End
from plait.sched.multiplex.beginning import Beginning
from plait.sched.multiplex.decide import Setting
from plait.sched.multiplex.outlook import Limits, Outlook
from plait.sched.multiplex.pacing import Pacing, Promise
from plait.sched.multiplex.presets import Prefers, Preset, shares_of
from plait.sched.multiplex.pricing import Prices, shape_of
from plait.sched.multiplex.situation import NEVER, Choice, Form, Pace, Prefill, Prompt, Reason, Situation
from plait.sched.multiplex.time_room import TimeRoom
from plait.sched.multiplex.tracking import Flight, Speech, Tracker
from plait.sched.multiplex.verifying import Verifying
from plait.sched.multiplex.viewing import View, decode_shape
from plait.sched.open_step import OpenStep
from plait.sched.speculation import Speculation

Shares = Mapping[LaneId, tuple[int, ...]]

Observer = Callable[[Situation, Choice], None]
"""Told of every decision."""

LEAST_WAIT_S = 1e-6


def unobserved(situation: Situation, choice: Choice) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class MultiplexConfig:
    lives: LivesConfig
    preset: Preset
    lanes: tuple[LaneId, ...]
    """Of the executor; without a second one the preset must be fused."""
    share_units: int
    granule: int = 1
    """Units that shares are made of."""
    num_spans: int = 1
    """Of the program: where a prefill can be interrupted."""
    stop_s: float | None = None
    """How soon one can be, where that is sooner than at the end of a span; None: it is not."""
    max_step_tokens: int = 512
    """Of a fused step."""
    max_prefill_tokens: int = 512
    """Of a step of prompts on a lane of their own; what the executor takes."""
    observe: Observer = unobserved
    runs_ahead: bool = False
    """Whether a lane takes a step behind the one in flight, and that is worth it."""
    margin_s: float | None = None
    """With which presets that go by how steps go now begin; None: steps keep to their prices."""


class MultiplexScheduler:
    """See the module. Implements `plait.sched.scheduler.Scheduler`."""

    def __init__(
        self,
        config: MultiplexConfig,
        kv: KVCache,
        events: EventSink,
        cost: CostModel,
        speculation: Speculation | None = None,
    ) -> None:
        self._config = config
        self._preset = config.preset
        self._lives = Lives(config.lives, kv, events)
        self._speech = Speech()
        self._prices = Prices(cost, config.share_units, config.num_spans, config.stop_s)
        self._view = View(self._lives, self._speech, self._prices, self._preset)
        shares = () if self._preset.is_fused else shares_of(self._preset, config.share_units, config.granule)
        self._setting = Setting(self._preset, self._prices, shares, config.max_step_tokens, kv.has_states)
        guarded = self._preset.is_guarded
        room = TimeRoom(self._prices, is_guarded=guarded) if self._preset.admits_by_time else None
        limits = Limits(config.lives.max_rows, config.max_prefill_tokens)
        self._outlook = Outlook(self._lives, self._view, self._setting, room, limits)
        self._verifying = Verifying(speculation, self._setting)
        self._decode_lane = config.lanes[0]
        self._front = config.lanes[1] if len(config.lanes) > 1 else config.lanes[0]
        """The lane on which prompts run now."""
        self._parked: LaneId | None = None
        """The lane whose prefill was overtaken."""
        self._units = self._split(config.share_units)
        self._tracker = Tracker(cost, {lane: len(units) for lane, units in self._units.items()})
        self._flights: dict[LaneId, Flight] = {}
        self._behind: Flight | None = None
        """Behind the step in flight on the lane of decode."""
        self._looked_behind: StepId | None = None
        """The step in flight behind which there is to be none."""
        self._by_id: dict[SeqId, Sequence] = {}
        self._beginning = Beginning(self._lives, self._view, room, self._by_id)
        self._ahead = Ahead(
            self._lives, self._view, self._beginning, self._setting, self._by_id, config.max_prefill_tokens
        )
        self._choice = Choice(Form.DECODE, config.share_units, Reason.ALONE)
        self._batch: tuple[Prompt, ...] = ()
        """Prompts to be begun by the next step that has any, in order."""
        self._num_together = 0
        """Of `_batch`, how many a step of their own begins with."""
        self._controls: list[Decision] = []
        self._later: tuple[float, Shares] | None = None
        """Shares that lanes will have once those who lose some have stopped, and when that is."""
        self._has_news = self._has_arrived = False
        margin_s = config.margin_s if self._preset.is_paced else None
        self._pacing = None if margin_s is None else Pacing(margin_s)
        self._turn_end_s = NEVER
        """When the last turn of prompts was to end."""

    def plan(self, now: float) -> list[Decision]:
        decisions: list[Decision] = [*self._lives.take_cancels()]
        if self._later is not None and now >= self._later[0]:
            self._assign(self._later[1], now)
        if self._is_due(now):
            self._review(now)
        submit = self._submit(now)
        while submit is None and self._is_due(now):
            # Somebody lost his memory, so that there was nothing left to submit.
            self._review(now)
            submit = self._submit(now)
        # Overtaking is a question of the moment; whatever else an arrival may change is looked at when something ends.
        self._has_arrived = False
        decisions += self._controls
        self._controls = []
        return decisions if submit is None else [*decisions, submit]

    # What is to be done.

    def _is_due(self, now: float) -> bool:
        if now >= self._choice.until_s:
            return True
        if not (self._has_news or self._has_arrived):
            return False
        stepping = self._decode_lane in self._flights
        if self._preset.is_fused:
            return not stepping
        if stepping and self._config.runs_ahead and self._choice.form is Form.FUSED:
            # What comes behind is decided ahead, or when it has ended.
            return False
        if self._has_news:
            return True
        # Prompts in flight go on as they do unless they can be overtaken.
        if self._front in self._flights:
            return self._can_overtake()
        return not (stepping and self._preset.prefers is Prefers.PROGRESS and self._choice.form is not Form.LANES)

    def _review(self, now: float) -> None:
        """Decide anew."""
        self._resume()
        if self._has_arrived and self._can_overtake():
            self._overtake(now)
        self._has_news = self._has_arrived = False
        situation = self._situation(now)
        previous = self._choice
        choice = self._verifying.decide(situation, self._lives.running)
        self._config.observe(situation, choice)
        if choice.form is Form.PREFILL or previous.form is not Form.PREFILL:
            self._turn_end_s = choice.until_s if choice.form is Form.PREFILL else NEVER
        if not self._preset.is_layered and situation.is_prefilling and previous.form is Form.LANES:
            # What was launched whole keeps its units to its end.
            choice = replace(previous, until_s=NEVER)
        # Nothing is gained by looking again before the clock can have moved on.
        self._choice = replace(choice, until_s=max(choice.until_s, now + LEAST_WAIT_S))
        self._assign(self._split(choice.units if choice.form is not Form.PREFILL else 0), now)

    def _situation(self, now: float) -> Situation:
        stepping, prefilling = self._flights.get(self._decode_lane), self._flights.get(self._front)
        ready = self._ready()
        members = ready if stepping is None else self._members(stepping)
        joining = [] if stepping is None else ready
        if self._preset.is_fused:
            prefilling = None
        prefill, waiting = self._prefill(prefilling, now)
        return Situation(
            now_s=now,
            decoding=self._view.decoding(members),
            decode=decode_shape(members) if stepping is None else stepping.shape,
            decode_left=1.0 if stepping is None else self._tracker.left(self._decode_lane, now),
            is_stepping=stepping is not None,
            joining=self._view.decoding(joining),
            merged=decode_shape([*members, *joining]) if joining else StepShape(()),
            prefill=prefill,
            is_prefilling=prefilling is not None,
            suspended=self._suspended(now),
            waiting=waiting,
            form=self._choice.form,
            units=self._choice.units,
            paces=self._paces(),
        )

    def _paces(self) -> Mapping[Form, Pace] | None:
        return None if self._pacing is None else self._pacing.paces()

    def _ready(self) -> list[Sequence]:
        """Who could be given a token by a decode step that began now."""
        return [seq for seq in self._lives.running if not seq.num_scheduled and seq.num_plannable == 1]

    def _members(self, flight: Flight) -> list[Sequence]:
        """Of a step in flight, those who still live."""
        return [seq for chunk in flight.plan.chunks if (seq := self._living(chunk.seq)) is not None]

    def _living(self, seq_id: SeqId) -> Sequence | None:
        return self._by_id.get(seq_id)

    def _prefill(self, flight: Flight | None, now: float) -> tuple[Prefill | None, tuple[Prompt, ...]]:
        """The prefill in flight, or what would be begun now; and who waits behind it."""
        units = self._prompt_units()
        if flight is not None:
            left = self._tracker.left(self._front, now)
            end_s = now + left * self._prices.prefill_s(flight.shape, units)
            self._batch, self._num_together = (), 0
            return Prefill(flight.prompts, flight.shape, left), self._view.waiting(units, end_s)
        self._batch = self._beginning.prompts(self._prompt_lane, units, now)
        most = self._config.max_prefill_tokens
        self._num_together, prefill = self._beginning.prefill(self._batch, units, most)
        return prefill, self._batch[self._num_together :]

    @property
    def _prompt_lane(self) -> LaneId:
        return self._decode_lane if self._preset.is_fused else self._front

    def _prompt_units(self) -> int:
        """What prompts have, or would have as far as is known."""
        units = self._config.share_units
        left = units - self._choice.units
        return left if self._choice.form is Form.LANES and left else units

    def _suspended(self, now: float) -> Prefill | None:
        if self._parked is None:
            return None
        flight = self._flights[self._parked]
        return Prefill(flight.prompts, flight.shape, self._tracker.left(self._parked, now))

    # Overtaking.

    def _resume(self) -> None:
        """When the overtaking prefill has ended; or the overtaken one, whose last span it was that was to be stopped
        behind: then the lanes have changed places.
        """
        if self._parked is None:
            return
        if self._front not in self._flights:
            self._controls.append(Resume(self._parked))
            self._front, self._parked = self._parked, None
        elif self._parked not in self._flights:
            self._controls.append(Resume(self._parked))
            self._parked = None

    def _can_overtake(self) -> bool:
        return (
            self._preset.overtakes
            and self._preset.is_layered
            and len(self._config.lanes) > 2
            and self._parked is None
            and self._front in self._flights
            and len(self._lives.waiting) > 0
        )

    def _overtake(self, now: float) -> None:
        """MuxWise: a batch that has just arrived may interrupt the one in flight, which still meets its targets then.
        Without a target nobody says how long a prompt may be interrupted.
        """
        active_lane = self._front
        self._front = next(lane for lane in self._config.lanes[1:3] if lane != active_lane)
        if self._may_overtake(active_lane, now):
            self._controls.append(Suspend(active_lane))
            self._parked = active_lane
        else:
            self._front = active_lane

    def _may_overtake(self, active_lane: LaneId, now: float) -> bool:
        units, active = self._prompt_units(), self._flights[active_lane]
        waiting = self._beginning.prompts(self._prompt_lane, units, now)
        fresh = tuple(one for one in waiting if self._by_id[one.seq].state is not SeqState.RUNNING)
        if not fresh:
            return False
        count = self._view.together(fresh, 0, units, self._config.max_prefill_tokens)
        decode = self._flights[self._decode_lane].shape if self._decode_lane in self._flights else None
        new_s = self._prices.prefill_s(shape_of(fresh[:count]), units, decode)
        left_s = self._tracker.left(active_lane, now) * self._prices.prefill_s(active.shape, units, decode)
        left_s += sum(self._prices.prompt_s(one, units) for one in Prefill(active.prompts, active.shape).rest())
        due_s = min(one.due_s for one in active.prompts)
        return due_s < NEVER and now + new_s + left_s <= due_s

    # Shares.

    def _split(self, decode_units: int) -> Shares:
        """Prompts have the first units and decode the last; every other lane rests."""
        everything = tuple(range(self._config.share_units))
        cut = self._config.share_units - decode_units
        shares: dict[LaneId, tuple[int, ...]] = dict.fromkeys(self._config.lanes, ())
        if self._front != self._decode_lane:
            shares[self._front] = everything[:cut]
        shares[self._decode_lane] = everything[cut:]
        return shares

    def _assign(self, units: Shares, now: float) -> None:
        self._later = None
        if not self._preset.overlaps:
            units = self._without_losses(units, now)
        if units == self._units:
            return
        self._units = units
        self._tracker.assign({lane: len(given) for lane, given in units.items()}, now)
        self._controls.append(Assign(units, may_help=self._preset.overlaps))

    def _without_losses(self, units: Shares, now: float) -> Shares:
        """For now, nobody has what a step in flight is losing: it goes on with it to the end of its span."""
        losers = [lane for lane in self._flights if not set(self._units[lane]) <= set(units[lane])]
        lost = {unit for lane in losers for unit in self._units[lane] if unit not in units[lane]}
        if not lost:
            return units
        span_s = max(self._tracker.whole_s(lane) for lane in losers) / self._config.num_spans
        self._later = (now + max(span_s, LEAST_WAIT_S), units)
        return {lane: tuple(unit for unit in given if unit not in lost) for lane, given in units.items()}

    # Steps.

    def _submit(self, now: float) -> Submit | None:
        if self._choice.form is Form.FUSED:
            return self._submit_fused(now)
        if self._choice.form is not Form.PREFILL or self._choice.reason is Reason.ALONE:
            submitted = self._submit_decode(now)
            if submitted is not None:
                return submitted
        if self._choice.form in (Form.LANES, Form.PREFILL):
            return self._submit_prefill(now)
        return None

    def _submit_decode(self, now: float) -> Submit | None:
        if self._decode_lane in self._flights:
            return self._submit_behind(now)
        ready = self._ready()
        if not ready or not self._units[self._decode_lane]:
            return None
        if not self._preset.polls and self._waits_for_prefill(decode_shape(ready), now):
            return None
        self._lives.gather_leaves(self._decode_lane)
        ready = self._in_turn(ready, self._config.max_step_tokens)
        step = OpenStep(self._decode_lane, self._verifying.num_rows(ready))
        lives, lane = self._lives, self._decode_lane
        for seq in ready:
            # Nearly always neither; somebody before it may have taken its memory.
            is_moved = seq.lane != lane or seq.state is not SeqState.RUNNING
            if is_moved or self._verifying.of(seq) is not None or not lives.go_on(step, seq, 1, now):
                self._take(step, seq, 1, now)
        return self._sent(step, (), now)

    def _submit_behind(self, now: float) -> Submit | None:
        """The step behind the one in flight, if nothing runs beside it and it can be decided now."""
        lane, units = self._decode_lane, self._config.share_units
        step, is_free = self._flights[lane].plan.step, self._behind is None and len(self._flights) == 1
        if not self._config.runs_ahead or not is_free or self._looked_behind == step:
            return None
        if len(self._units[lane]) < units or not self._verifying.rests(self._lives.running):
            return None
        end_s = now + self._tracker.left(lane, now) * self._tracker.whole_s(lane)
        found = self._ahead.step(lane, End(end_s, self._choice, self._paces()), now)
        if self._ahead.situation is not None:
            self._looked_behind = step
        if found is None:
            return None
        if self._ahead.situation is not None:
            self._config.observe(self._ahead.situation, found.choice)
        submit = self._lives.submit(found.step)
        self._verifying.passed()
        self._looked_behind = submit.plan.step if found.is_short else step
        # What was taken for granted is no choice: another one may be made before it runs, and holds then.
        choice = None if self._ahead.situation is None else found.choice
        self._behind = Flight(submit.plan, submit.plan.shape(), choice=choice)
        return submit

    def _waits_for_prefill(self, shape: StepShape, now: float) -> bool:
        """Without polling: a decode step that would outlast the prefill in flight is not begun before its end."""
        flight = self._flights.get(self._front)
        if flight is None or self._front == self._decode_lane or not self._units[self._front]:
            return False
        decode_s = self._prices.decode(shape, len(self._units[self._decode_lane]), flight.shape).expected_s
        prefill_s = self._prices.prefill_s(flight.shape, len(self._units[self._front]), shape)
        return self._tracker.left(self._front, now) * prefill_s <= decode_s

    def _submit_prefill(self, now: float) -> Submit | None:
        if self._front in self._flights or not self._batch or not self._units[self._front]:
            return None
        self._lives.gather_leaves(self._front)
        step = OpenStep(self._front, self._config.max_prefill_tokens)
        taken = self._take_prompts(step, self._batch[: self._num_together], now)
        self._batch = ()
        return self._sent(step, taken, now)

    def _submit_fused(self, now: float) -> Submit | None:
        lane, size = self._decode_lane, self._config.max_step_tokens
        if lane in self._flights:
            return self._submit_behind(now)
        if not (self._batch or self._ready()):
            return None
        self._lives.gather_leaves(lane)
        step, ready = OpenStep(lane, 0), self._ready()
        reserve = self._preset.reserve
        first = self._in_turn(ready, size if reserve is None else int(size * reserve))
        rest = [seq for seq in ready if seq not in first] if reserve is not None else []
        step.budget = self._verifying.num_rows(first)
        room = size - step.budget
        for seq in first:
            self._take(step, seq, 1, now)
        step.budget = min(room, self._choice.chunk_tokens) if reserve is None else room
        self._take_prompts(step, self._batch, now)
        if rest:
            step.budget = size - sum(chunk.num_tokens for chunk in step.chunks.values())
            for seq in self._in_turn(rest, step.budget):
                self._take(step, seq, 1, now)
        self._batch = ()
        return self._sent(step, (), now)

    def _in_turn(self, ready: list[Sequence], count: int) -> list[Sequence]:
        """So many of them at most: those who have waited longest for a token."""
        if len(ready) <= count:
            return ready
        waited = sorted(
            ready, key=lambda seq: (0.0 if (said := self._speech.of(seq.id)) is None else said.last_s, seq.id)
        )
        return waited[:count]

    def _take_prompts(self, step: OpenStep, prompts: tuple[Prompt, ...], now: float) -> tuple[Prompt, ...]:
        """As many of them as fit, in order; those that wait for somebody's prefix are passed over."""
        taken = []
        for prompt in prompts:
            seq = self._living(prompt.seq)
            if seq is None:
                continue
            if step.budget <= 0:
                break
            if seq.state is SeqState.RUNNING:
                self._take(step, seq, seq.num_plannable, now)
            else:
                blocked = self._beginning.begin(step, seq, now)
                if blocked is Blocked.BY_PREFIX:
                    continue
                if blocked is not None:
                    break
            taken.append(prompt)
        return tuple(one for one in taken if one.seq in step.chunks)

    def _take(self, step: OpenStep, seq: Sequence, num_tokens: int, now: float) -> None:
        if seq.state is not SeqState.RUNNING or seq.num_scheduled or step.budget <= 0:
            return
        if seq.lane != step.lane:
            self._lives.move(seq, step.lane)
        num_running = len(self._lives.running)
        drafted = self._verifying.of(seq) if num_tokens == 1 else None
        if drafted is None or not self._lives.verify(step, seq, drafted, now):
            go_on_beside(self._lives, step, seq, num_tokens, now)
        self._has_news = self._has_news or len(self._lives.running) < num_running

    def _sent(self, step: OpenStep, prompts: tuple[Prompt, ...], now: float) -> Submit | None:
        if not step.chunks:
            return None
        submit = self._lives.submit(step)
        shape = submit.plan.shape()
        if step.lane == self._decode_lane:
            self._verifying.sent(submit.plan)
        self._tracker.begin(step.lane, shape, now)
        self._flights[step.lane] = Flight(submit.plan, shape, prompts, self._promise(step.lane, shape, now))
        return submit

    def _promise(self, lane: LaneId, shape: StepShape, now: float) -> Promise | None:
        """Of a step of decode that begins now, or begins late because prompts were to stop earlier."""
        form, expected_s = self._choice.form, self._tracker.whole_s(lane)
        # Somebody waits for its token, on lanes beside prompts. Long steps of prompts say nothing about short ones.
        counts = any([chunk.num_tokens == 1 for chunk in shape.chunks]) and self._choice.reason is not Reason.UNBOUND
        counts = counts and (form is not Form.LANES or self._front in self._flights)
        if self._pacing is None or lane != self._decode_lane or not counts or expected_s <= 0:
            return None
        begin_s, self._turn_end_s = min(now, self._turn_end_s), NEVER
        is_bounded = form is not Form.DECODE or self._choice.reason is not Reason.ALONE
        return self._pacing.promise(form, begin_s if is_bounded else None, expected_s)

    # `plait.sched.scheduler.Scheduler`.

    @property
    def num_waiting(self) -> int:
        return len(self._lives.waiting)

    @property
    def num_running(self) -> int:
        return len(self._lives.running)

    @property
    def num_in_flight(self) -> int:
        return self._lives.num_in_flight

    @property
    def blocked(self) -> Blocked | None:
        if self._beginning.blocked is None and self.num_waiting:
            return Blocked.BY_BUDGET
        return self._beginning.blocked

    def admit(self, seq: Sequence, now: float) -> None:
        self._lives.admit(seq)
        if self._preset.leases:
            self._view.arrived(seq, now)
        if self._preset.refuses:
            prompts = ((lane, one) for lane, one in self._flights.items() if one.prompts)
            prefills = [Prefill(one.prompts, one.shape, self._tracker.left(lane, now)) for lane, one in prompts]
            if (refusal := self._outlook.refusal(seq, prefills, self._pacing, now)) is not None:
                self._lives.abort(seq.id, now)
                self._view.forget(seq.id)
                raise refusal
        self._by_id[seq.id] = seq
        self._has_arrived = True

    def commit(self, result: StepResult, now: float) -> list[SeqUpdate]:
        updates = self._lives.commit(result, now)
        if result.lane == self._decode_lane:
            self._verifying.ended(result)
        flight, price_s = self._flights.pop(result.lane), self._tracker.whole_s(result.lane)
        ratio = self._tracker.end(result.lane, now)
        if self._pacing is not None and result.status is StepStatus.COMPLETED:
            self._pacing.went(ratio, price_s, is_prompts=result.lane != self._decode_lane)
            if flight.promise is not None:
                self._pacing.ended(flight.promise, result.end_s - result.start_s, now)
        if result.lane == self._decode_lane and self._behind is not None:
            flight, self._behind = self._behind, None
            self._choice = flight.choice or self._choice
            self._tracker.begin(result.lane, flight.shape, now)
            flight.promise = self._promise(result.lane, flight.shape, now)
            self._flights[result.lane] = flight
        self._has_news = True
        for update in updates:
            if update.tokens:
                self._speech.tokens(update.seq, len(update.tokens), now)
            if update.finish_reason is not None:
                self._forget(update.seq, now)
        return updates

    def expire(self, now: float) -> list[SeqUpdate]:
        updates = self._lives.expire(now)
        for update in updates:
            self._forget(update.seq, now)
        self._has_news = self._has_news or bool(updates)
        return updates

    def abort(self, seq: SeqId, now: float) -> None:
        self._lives.abort(seq, now)
        self._forget(seq, now)
        self._has_news = True

    def _forget(self, seq: SeqId, now: float) -> None:
        if (ended := self._by_id.pop(seq, None)) is not None:
            self._outlook.ended(ended, now)
        self._speech.forget(seq)
        self._view.forget(seq)

    def wake_at(self) -> float | None:
        deadline_s = self._lives.earliest_deadline_s
        later_s = NEVER if self._later is None else self._later[0]
        first_s = min(self._choice.until_s, later_s, NEVER if deadline_s is None else deadline_s)
        return None if first_s == NEVER else first_s

    def explain(self) -> str:
        choice = self._choice
        return (
            f"{self._preset.name}: {choice.form} with {choice.units} of {self._config.share_units} units for decode "
            f"({choice.reason}); {self._lives.explain()}"
        )

    def check(self) -> None:
        """Raise `InvariantError` naming the first broken invariant. Reads everything: for tests and idle times."""
        self._lives.check()
