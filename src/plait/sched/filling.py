"""Filling: putting sequences into an open step, whoever decided that they are to be in it.

Owns what happens when memory is short for somebody who runs (one leaves), who that is, and the reasons why somebody who
waits cannot be taken. Chooses nobody to be in a step.
Invariant: what a step in flight names is never preempted; whoever cannot be taken is left as he was.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass

from plait.core.decision import Blocked
from plait.core.ids import LaneId
from plait.core.request import SeqState, Sequence
from plait.kv.cache import Hit
from plait.sched.lives import Lives
from plait.sched.open_step import OpenStep
from plait.sched.waiting import has_reserve, is_offline


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of trying to let a waiting sequence join."""

    blocked: Blocked | None = None
    """What is short; None: it joined."""
    may_pass: bool = False
    """Its time may come once what runs has gone on a little, without anybody ending."""


JOINED = Taken()

Allows = Callable[[Sequence, Hit], bool]


def anybody(seq: Sequence, hit: Hit) -> bool:
    """No more is asked than that there is room."""
    return True


def victim(running: AnySequence[Sequence]) -> Sequence:
    """Who leaves first of those who run, in `order_key` order: of the offline ones those that were not retracted often,
    are not urgent, rank low, and have said least; at equals the youngest. Of online ones alone the youngest.
    """
    youngest = running[-1]
    if not is_offline(youngest):
        return youngest
    return min(
        [seq for seq in reversed(running) if is_offline(seq)],
        key=lambda seq: (has_reserve(seq), seq.request.is_urgent, -seq.request.priority, seq.num_output),
    )


def give_way(lives: Lives, now: float) -> bool:
    """An offline sequence that no step names gives back its row and its memory. False: there is none."""
    idle = [seq for seq in lives.running if is_offline(seq) and not seq.num_scheduled]
    if not idle:
        return False
    lives.preempt(victim(idle), now)
    return True


def make_way(lives: Lives, lane: LaneId, seq: Sequence, hit: Hit, now: float) -> tuple[Hit, Blocked | None]:
    """What keeps somebody who waits from joining on a lane, after offline sequences gave way if he is online; and his
    hit, which may be another then.
    """
    while (short := _short_of(lives, lane, seq, hit)) is not None:
        if is_offline(seq) or not give_way(lives, now):
            break
        lives.gather_leaves(lane)
        hit = lives.lookup(seq)
    return hit, short


def _short_of(lives: Lives, lane: LaneId, seq: Sequence, hit: Hit) -> Blocked | None:
    if not lives.num_free_rows(lane):
        return Blocked.BY_ROWS
    return Blocked.BY_MEMORY if lives.fitting(seq, hit) is None else None


def make_room(lives: Lives, step: OpenStep, seq: Sequence, num_tokens: int, now: float) -> Sequence | None:
    """The next chunk of a running sequence for which there was no memory, at the cost of the first victim.

    What a step in flight names cannot leave: the victim, returned then, rests in this step, so that it can when
    the step before is collected. Until then, or while memory is coming anyway, `seq` gets nothing. It may also have
    become a victim itself.
    """
    while not (lives.is_memory_coming or lives.is_in_its_own_way(seq)):
        first = victim(lives.running)
        if first.num_scheduled:
            return first
        lives.preempt(first, now)
        if seq.state is not SeqState.RUNNING or lives.go_on(step, seq, num_tokens, now):
            break
    return None


def go_on_beside(lives: Lives, step: OpenStep, seq: Sequence, num_tokens: int, now: float) -> None:
    """The next chunk while other lanes run: the victim is the first whom no step names, so that a long prompt in
    flight does not make everybody wait for its end.
    """
    while seq.state is SeqState.RUNNING and not lives.go_on(step, seq, num_tokens, now):
        if lives.is_memory_coming or lives.is_in_its_own_way(seq):
            return
        idle = [one for one in lives.running if not one.num_scheduled]
        if not idle:
            return
        lives.preempt(victim(idle), now)


def start(
    lives: Lives,
    step: OpenStep,
    seq: Sequence,
    now: float,
    *,
    can_foresee: bool = False,
    allows: Allows = anybody,
) -> Taken:
    """Let a waiting sequence join the step, or say what is short. `can_foresee`: find out whether its time may come.
    `allows` may ask for more room than there must be.
    """
    if step.budget <= 0:
        return Taken(Blocked.BY_BUDGET)
    if not lives.num_free_rows(step.lane):
        return Taken(Blocked.BY_ROWS)
    hit = lives.lookup(seq)
    if lives.is_held(seq, hit):
        return Taken(Blocked.BY_PREFIX, may_pass=True)
    fitting = lives.fitting(seq, hit)
    if fitting is None or not allows(seq, fitting):
        return Taken(Blocked.BY_MEMORY, may_pass=can_foresee and lives.may_grow(hit))
    lives.join(step, seq, fitting, now)
    return JOINED
