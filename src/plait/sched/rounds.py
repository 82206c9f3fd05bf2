"""Rounds: the steps of a draft model that guess for all sequences at once, between two steps of the target.

Owns which sequences the draft model's executor knows, its rows, and the round under way: first what it has not seen of
the texts is computed, then every step says one more token of each (docs/adr/0021). Decides neither whether a round is
worth it nor how long it is.
Invariant: no two rounds are under way, and none begins while a step of the target is in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass, replace

from plait.core.ids import LaneId, SeqId, StepId
from plait.core.request import Sequence
from plait.core.step import (
    DRAFT_PROGRAM,
    SAMPLES_ONE,
    BlockGrant,
    Chunk,
    Join,
    Leave,
    OutputKind,
    Outputs,
    SeqStatus,
    StepPlan,
    StepResult,
)
from plait.draft.draft_model import ModelDrafter
from plait.draft.round_times import RoundTimes
from plait.kv.drafts import DraftTables
from plait.sched.rows import Rows


@dataclass(frozen=True, slots=True)
class RoundsConfig:
    lane: LaneId
    max_rows: int
    max_step_tokens: int
    queue_depth: int
    max_positions: int
    """Of the draft model."""
    eos_token_ids: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Asked:
    """A sequence in a round."""

    seq: Sequence
    drafter: ModelDrafter
    most: int
    """Tokens that it may say at most."""
    behind: list[int] | None = None
    """Tokens still to be computed before it says one."""
    place: int = 0
    """Slot of the next token."""
    num_left: int = 0
    """Tokens still to be said that no step was planned for."""
    is_dead: bool = False

    @property
    def num_behind(self) -> int:
        """Tokens before the last one that the draft model has not computed."""
        return len(self.seq.tokens) - 1 - self.drafter.follow(self.seq.tokens)


@dataclass(slots=True, eq=False)
class _Seat:
    """A sequence that the draft model's executor knows."""

    row: int
    end: int = 0
    """Slots that it has seen computed."""


class Rounds:
    """`tables`: the draft model's memory; `times`: what is learned of its steps."""

    def __init__(self, config: RoundsConfig, tables: DraftTables, times: RoundTimes) -> None:
        self._config = config
        self._tables = tables
        self.times = times
        self._rows = Rows(config.max_rows)
        self._joined: dict[SeqId, _Seat] = {}
        self._asked: dict[SeqId, Asked] = {}
        """Of the round under way."""
        self._num_running = 0
        self._flights: dict[StepId, StepPlan] = {}
        self._spent_s = 0.0

    @property
    def is_under_way(self) -> bool:
        return bool(self._asked)

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    @property
    def most_step_tokens(self) -> int:
        return self._config.max_step_tokens

    def has_memory(self, seq: Sequence) -> bool:
        """Whether what the draft model computed of a sequence is still there."""
        return seq.id in self._tables

    def room(self, seq: Sequence) -> int:
        """Tokens that the draft model can say behind those of a sequence, as far as its positions go."""
        return self._config.max_positions - len(seq.tokens)

    def prune(self, running: AnySequence[Sequence]) -> None:
        """Who runs no more gives its memory back. Who lost his is known to the executor no more, asked again or not:
        another one may get the same blocks.
        """
        for seq in [one for one in self._joined if one not in self._tables]:
            self._vacate(seq)
        known = [*self._joined, *self._tables.sequences]
        if known:
            kept = {seq.id for seq in running}
            for seq in dict.fromkeys(one for one in known if one not in kept):
                self._leave(seq)

    def begin(self, asked: AnySequence[Asked], depth: int, num_running: int) -> None:
        """Those who find no memory are left out. Who lost his has been told (`ModelDrafter.forget`)."""
        for one in asked:
            seq = one.seq
            one.num_left = min(depth, one.most)
            one.place = one.drafter.begin(seq.tokens)
            one.behind = seq.tokens[one.place :]
            seat = self._joined.get(seq.id)
            if seat is not None and seat.end != one.place:
                # It goes back behind rejected drafts: as somebody who joins behind what he finds computed.
                self._vacate(seq.id)
            self._asked[seq.id] = one
        self._num_running = num_running

    def stop(self) -> None:
        """No further step is planned."""
        for one in self._asked.values():
            one.num_left, one.behind = 0, None
        self._end_if_done()

    def step(self, take_id: Callable[[], StepId]) -> StepPlan | None:
        """The next one of the round under way; None: nothing can be planned now."""
        if len(self._flights) >= self._config.queue_depth:
            return None
        joins: list[Join] = []
        grants: list[BlockGrant] = []
        chunks: list[Chunk] = []
        budget = self._config.max_step_tokens
        is_reading = any(one.behind and not one.is_dead for one in self._asked.values())
        for one in list(self._asked.values()):
            num_tokens = min(len(one.behind) if one.behind else 1, budget)
            if not num_tokens or one.is_dead or not one.num_left or (is_reading and not one.behind):
                continue
            granted = self._tables.reserve(one.seq.id, one.place + num_tokens, self._num_running)
            is_known = one.seq.id in self._joined
            if granted is None or not (is_known or self._rows.num_free(self._config.lane)):
                one.num_left, one.behind = 0, None
                continue
            if not is_known:
                joins.append(self._join(one))
                granted = self._tables.whole(one.seq.id)
            grants += granted
            chunks.append(_chunk(one, num_tokens))
            budget -= num_tokens
        if not chunks and is_reading:
            # Those who had to read found no memory, and the others need not wait for them.
            return self.step(take_id)
        if not chunks:
            self._end_if_done()
            return None
        step, lane = take_id(), self._config.lane
        roster: tuple[Join | Leave, ...] = (*self._rows.submitted(step, lane), *joins)
        plan = StepPlan(step, lane, roster, tuple(grants), (), tuple(chunks), program=DRAFT_PROGRAM)
        self._tables.submitted(step, [chunk.seq for chunk in chunks])
        self._flights[step] = plan
        return plan

    def commit(self, result: StepResult) -> bool:
        """Whether it was a step of the draft model."""
        plan = self._flights.pop(result.step, None)
        if plan is None:
            return False
        self._tables.collected(result.step)
        self._rows.collected(result.step)
        seconds = result.end_s - result.start_s
        self._spent_s += seconds
        self.times.note(sum([chunk.num_tokens for chunk in plan.chunks]), seconds)
        for chunk, given in zip(plan.chunks, result.seqs, strict=True):
            one = self._asked.get(chunk.seq)
            if one is None or one.is_dead:
                continue
            if given.status is not SeqStatus.OK:
                one.is_dead = one.drafter.is_broken = True
                continue
            one.drafter.computed(chunk.end)
            self._joined[chunk.seq].end = chunk.end
            for token, logprob in zip(given.tokens, given.logprobs, strict=True):
                one.drafter.say(token, logprob.logprob)
        self._end_if_done()
        return True

    def take_spent_s(self) -> float:
        """Seconds of its steps since the call before."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def check(self) -> None:
        """Raise `InvariantError` naming the first broken invariant."""
        self._rows.check([seat.row for seat in self._joined.values()])

    def _end_if_done(self) -> None:
        if self._flights or any(one.num_left and not one.is_dead for one in self._asked.values()):
            return
        for one in self._asked.values():
            if one.is_dead:
                self._leave(one.seq.id)
                one.drafter.forget()
        self._asked = {}

    def _vacate(self, seq: SeqId) -> None:
        self._rows.leave(seq, self._joined.pop(seq).row, self._config.lane)

    def _leave(self, seq: SeqId) -> None:
        if seq in self._joined:
            self._vacate(seq)
        if seq in self._tables:
            self._tables.release(seq)

    def _join(self, one: Asked) -> Join:
        """With the parameters and the random numbers of the target, so that who thinks alike draws alike."""
        seq, row = one.seq, self._rows.take(self._config.lane)
        self._joined[seq.id] = _Seat(row, one.place)
        sampling = replace(seq.request.sampling, logprobs=0, prompt_logprobs=None)
        return Join(
            seq=seq.id,
            row=row,
            params=sampling,
            seed=seq.seed % 2**64,
            choice=seq.choice,
            num_prompt=seq.num_prompt,
            history=tuple(seq.tokens[: one.place]) if sampling.has_penalties else (),
            eos_token_ids=self._config.eos_token_ids,
        )


def _chunk(one: Asked, num_tokens: int) -> Chunk:
    """The next `num_tokens` tokens of a sequence; the last one it has, or has said, samples."""
    seq, start = one.seq.id, one.place
    one.place += num_tokens
    if not one.behind:
        one.num_left -= 1
        return Chunk.of_unknown(seq, start)
    tokens = tuple(one.behind[:num_tokens])
    del one.behind[:num_tokens]
    if one.behind:
        return Chunk(seq, start, num_tokens, tokens)
    one.num_left -= 1
    outputs = SAMPLES_ONE if num_tokens == 1 else (Outputs(num_tokens - 1, 1, OutputKind.SAMPLE),)
    return Chunk(seq, start, num_tokens, tokens, None, outputs)
