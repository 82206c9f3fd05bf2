"""Engine: the loop. Drain arrivals, collect and commit, plan, apply, wait.

Owns requests from arrival to their last delta. Decides nothing about order, memory or shares: the scheduler does;
runs nothing: the executor does; knows no time but its clock's.
Invariant: every request that was put into the inbox gets exactly one final answer per choice, or one refusal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from plait.core.client import Delta, Health
from plait.core.clock import Clock
from plait.core.decision import Assign, Cancel, Decision, Resume, SeqUpdate, Submit, Suspend
from plait.core.errors import InvariantError, RequestError
from plait.core.events import (
    Applied,
    Arrived,
    Collected,
    Emitted,
    EventSink,
    Finished,
    Refused,
    Started,
    Submitted,
    TokenSink,
)
from plait.core.executor import Executor
from plait.core.ids import RequestId, SeqId
from plait.core.profiling import Phase, PhaseSink, unheard
from plait.core.request import FinishReason, Request, Sequence, ServiceClass, Slo, Task
from plait.core.text_stream import TextStreamFactory
from plait.engine.answering import Answering, LiveRequest
from plait.engine.inbox import Abort, Arrive, Close, Inbox
from plait.engine.outbox import NullOutbox, Outbox
from plait.engine.watchdog import Watchdog
from plait.sched.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class EngineConfig:
    vocab_size: int
    max_model_tokens: int
    """Prompt and output tokens of one sequence together; the smaller of the model's context and the cache's size."""
    seed: int = 0
    """Where the seeds of unseeded requests come from."""
    step_limit_s: float = 600.0
    step_limit_s_per_token: float = 10.0
    """A step that could run for longer than `step_limit_s`, or than the limit per token times its tokens if that is
    more, is taken for a hang: the engine stops loudly. Nobody waits ten seconds for a token, so a long step of a slow
    machine is none.
    """
    slos: Mapping[ServiceClass, Slo] = field(default_factory=dict)
    """Latency targets of requests, where they bring none of a kind."""
    plans_first: bool = False
    """Where nothing is in flight, answers to a step are made when the next one is on its way, and the device does not
    wait for them: for devices that work while we do. A stop string then ends its sequence a step later.
    """

    def with_targets(self, request: Request) -> Request:
        default = self.slos.get(request.service_class)
        return request if default is None else replace(request, slo=request.slo.over(default))


@dataclass(frozen=True, slots=True)
class Ports:
    """What connects an engine to the world above it."""

    inbox: Inbox
    outbox: Outbox
    events: EventSink
    text_streams: TextStreamFactory | None = None
    """None: answers carry tokens and no text."""
    phases: PhaseSink = unheard
    """Told what the loop is at."""
    tokens: TokenSink | None = None
    """Where nobody reads answers, told of output tokens in place of `events`, those of a step before the ends that come
    with them.
    """


class Engine:
    """One loop for every clock and executor."""

    def __init__(
        self, config: EngineConfig, clock: Clock, scheduler: Scheduler, executor: Executor, ports: Ports
    ) -> None:
        self._config = config
        self._clock = clock
        self._scheduler = scheduler
        self._executor = executor
        self._inbox = ports.inbox
        self._outbox = ports.outbox
        self._events = ports.events
        self._tokens = ports.tokens
        self._phase = ports.phases
        self._answering = Answering(ports.text_streams)
        self._is_read = ports.text_streams is not None or not isinstance(ports.outbox, NullOutbox)
        """Whether anything comes of deltas: somebody takes them, or text may end an answer."""
        self._live: dict[RequestId, LiveRequest] = {}
        self._sequences: dict[SeqId, Sequence] = {}
        self._first_token_s: dict[SeqId, float] = {}
        self._next_seq = 0
        self._watchdog = Watchdog(config.step_limit_s, config.step_limit_s_per_token)
        self._closed = False
        self._events(Started(clock.now(), executor.info))

    def run(self) -> None:
        """Tick until a `Close` message has come."""
        while not self._closed:
            self.tick()

    def tick(self) -> None:
        now = self._clock.now()
        self._phase(Phase.ARRIVALS)
        self._drain(now)
        updates, first_s = self._collect(now)
        self._plan(now)
        if updates:
            num_live = len(self._sequences)
            self._phase(Phase.ANSWER)
            self._answer(updates, now, first_s)
            if len(self._sequences) < num_live:
                self._plan(now)
        self._phase(Phase.FLUSH)
        self._outbox.flush()
        self._phase(Phase.WAIT)
        if not self._closed:
            self._clock.wait(self._inbox, self._executor, until=self._wake_at(now))

    def health(self) -> Health:
        return Health(not self._closed, self._scheduler.num_waiting, self._scheduler.num_running)

    def _drain(self, now: float) -> None:
        for message in self._inbox.drain():
            match message:
                case Arrive(request):
                    self._arrive(request, now)
                case Abort(request_id):
                    self._abort(request_id, now)
                case Close():
                    for request_id in list(self._live):
                        self._abort(request_id, now)
                    self._closed = True

    def _arrive(self, request: Request, now: float) -> None:
        try:
            self._admit(self._config.with_targets(request), now)
        except RequestError as error:
            self._events(Refused(now, request.id, error.code or error.kind, error.message))
            self._outbox.put(request.id, error)

    def _admit(self, request: Request, now: float) -> None:
        if self._closed:
            raise RequestError("the engine is closing; send the request to another replica", status=503, code="closing")
        if request.id in self._live:
            raise RequestError(f"request id {request.id!r} is in use; choose another", param="request_id")
        request.validate(self._config.vocab_size)
        admitted: list[Sequence] = []
        try:
            for choice in range(request.n):
                seq = sequence_of(request, choice, SeqId(self._next_seq), self._config, now)
                self._next_seq += 1
                self._scheduler.admit(seq, now)
                admitted.append(seq)
        except RequestError:
            for seq in admitted:
                self._scheduler.abort(seq.id, now)
            raise
        self._live[request.id] = LiveRequest(request.id, admitted)
        for seq in admitted:
            self._sequences[seq.id] = seq
            self._answering.open(seq)
            self._events(Arrived(now, request.id, seq.id, request.service_class, seq.num_prompt, request.slo))

    def _abort(self, request_id: RequestId, now: float) -> None:
        live = self._live.get(request_id)
        if live is None:
            return
        for seq in list(live.sequences):
            if seq.id in self._sequences:
                self._scheduler.abort(seq.id, now)
                self._answer([SeqUpdate(seq.id, finish_reason=FinishReason.ABORT)], now)

    def _collect(self, now: float) -> tuple[list[SeqUpdate], float | None]:
        """Returns what is better answered when the next step is on its way, as `_answer` takes it."""
        self._phase(Phase.COLLECT)
        results = self._executor.collect()
        for result in results:
            self._watchdog.collected(result.step, now)
            self._events(Collected(now, result))
            self._phase(Phase.COMMIT)
            updates = self._scheduler.commit(result, now)
            first_s = result.ends_s[0] if result.ends_s else None
            if self._config.plans_first and len(results) == 1 and updates and self._may_plan_first(now):
                return updates, first_s
            self._phase(Phase.ANSWER)
            self._answer(updates, now, first_s)
        self._answer(self._scheduler.expire(now), now)
        return [], None

    def _may_plan_first(self, now: float) -> bool:
        due_s = self._scheduler.wake_at()  # whoever expires must have been answered
        return not (self._closed or self._scheduler.num_in_flight or (due_s is not None and due_s <= now))

    def _plan(self, now: float) -> None:
        self._phase(Phase.PLAN)
        while decisions := self._scheduler.plan(now):
            for decision in decisions:
                self._apply(decision, now)

    def _answer(self, updates: list[SeqUpdate], now: float, first_s: float | None = None) -> None:
        if self._tokens is not None and updates and not self._is_read:
            self._answer_unread(updates, now, first_s, self._tokens)
            return
        for update in updates:
            seq = self._sequences[update.seq]
            said: Delta | SeqUpdate = self._answering.delta(seq, update) if self._is_read else update
            num_tokens, reason = len(said.tokens), said.finish_reason
            if num_tokens:
                self._first_token_s.setdefault(seq.id, now)
                self._events(Emitted.of(now, seq.id, num_tokens, first_s))
            if reason is not None:
                if update.finish_reason is None:
                    self._scheduler.abort(seq.id, now)  # a stop string: the scheduler cannot know
                self._finish(seq, reason, len(update.tokens) - num_tokens, now)
            if isinstance(said, Delta):
                self._outbox.put(seq.request.id, said)

    def _answer_unread(self, updates: list[SeqUpdate], now: float, first_s: float | None, tokens: TokenSink) -> None:
        """Nobody takes deltas, so only the scheduler ends sequences, and nothing is kept from anybody's text."""
        known = self._first_token_s
        said = [(update.seq, len(update.tokens)) for update in updates if update.tokens]
        for seq_id, _ in said:
            if seq_id not in known:
                known[seq_id] = now
        tokens(now, first_s, said)
        for update in updates:
            if update.finish_reason is not None:
                self._finish(self._sequences[update.seq], update.finish_reason, 0, now)

    def _finish(self, seq: Sequence, reason: FinishReason, num_overshoot: int, now: float) -> None:
        del self._sequences[seq.id]
        self._answering.close(seq)
        live = self._live[seq.request.id]
        live.num_finished += 1
        if live.num_finished == len(live.sequences):
            del self._live[seq.request.id]
        self._events(_finished(seq, reason, num_overshoot, self._first_token_s.pop(seq.id, None), now))

    def _apply(self, decision: Decision, now: float) -> None:
        match decision:
            case Submit(plan):
                self._phase(Phase.SUBMIT)
                self._executor.submit(plan)
                scheduler = self._scheduler
                self._events(Submitted(now, plan, scheduler.num_waiting, scheduler.num_running, scheduler.blocked))
                self._watchdog.submitted(plan, now)
                self._phase(Phase.PLAN)
                return
            case Cancel(step, seqs):
                self._executor.cancel(step, seqs)
            case Assign(shares, may_help):
                self._executor.assign(shares, may_help=may_help)
                self._watchdog.assigned(shares, now)
            case Suspend(lane):
                self._executor.suspend(lane)
                self._watchdog.suspended(lane, now)
            case Resume(lane):
                self._executor.resume(lane)
                self._watchdog.resumed(lane, now)
        self._events(Applied(now, decision))

    def _wake_at(self, now: float) -> float | None:
        """The scheduler's next moment, or when a step in flight is overdue."""
        due_s, wake_s = self._watchdog.wake_at(), self._scheduler.wake_at()
        if due_s is None:
            return wake_s
        if now >= due_s and (overdue := self._watchdog.overdue(now)) is not None:
            raise InvariantError(f"{overdue}; {self._executor.info.name}: {self._scheduler.explain()}")
        return due_s if wake_s is None else min(due_s, wake_s)


def sequence_of(request: Request, choice: int, seq: SeqId, config: EngineConfig, now: float) -> Sequence:
    """One of the answers that a request asks for, as it arrives."""
    sampling = request.sampling
    left = max(config.max_model_tokens - len(request.prompt), 1)
    limit = left if sampling.max_tokens is None else sampling.max_tokens
    return Sequence(
        id=seq,
        request=request,
        choice=choice,
        seed=sampling.seed if sampling.seed is not None else _drawn_seed(config.seed, request.id),
        max_output_tokens=0 if request.task is Task.EMBED else limit,
        arrival_s=now,
        tokens=list(request.prompt),
        constraint=None if request.constraint is None else request.constraint.begin(),
        mask=sampling.mask(config.vocab_size),
    )


def _drawn_seed(seed: int, request: RequestId) -> int:
    """By request id and not by order of arrival, so that a resumed batch draws the same."""
    digest = hashlib.blake2b(f"{seed}/{request}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _finished(
    seq: Sequence, reason: FinishReason, num_overshoot: int, first_token_s: float | None, now: float
) -> Finished:
    return Finished(
        at_s=now,
        request=seq.request.id,
        seq=seq.id,
        reason=reason,
        num_prompt=seq.num_prompt,
        num_cached=seq.num_cached,
        num_output=seq.num_output - num_overshoot,
        num_preemptions=seq.num_preemptions,
        arrival_s=seq.arrival_s,
        scheduled_s=seq.scheduled_s,
        first_token_s=first_token_s,
    )
