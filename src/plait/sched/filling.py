"""Filling: putting sequences into an open step, whoever decided that they are to be in it.

Owns what happens when memory is short for somebody who runs (the youngest leaves), and the reasons why somebody who
waits cannot be taken. Chooses nobody.
Invariant: what a step in flight names is never preempted; whoever cannot be taken is left as he was.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.decision import Blocked
from plait.core.request import SeqState, Sequence
from plait.sched.lives import Lives
from plait.sched.open_step import OpenStep


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of trying to let a waiting sequence join."""

    blocked: Blocked | None = None
    """What is short; None: it joined."""
    may_pass: bool = False
    """Its time may come once what runs has gone on a little, without anybody ending."""


JOINED = Taken()


def make_room(lives: Lives, step: OpenStep, seq: Sequence, num_tokens: int, now: float) -> Sequence | None:
    """The next chunk of a running sequence for which there was no memory, at the cost of the youngest.

    What a step in flight names cannot leave: the youngest, returned then, rests in this step, so that it can when
    the step before is collected. Until then, or while memory is coming anyway, `seq` gets nothing. It may also have
    become a victim itself.
    """
    while not (lives.is_memory_coming or lives.is_in_its_own_way(seq)):
        youngest = lives.running[-1]
        if youngest.num_scheduled:
            return youngest
        lives.preempt(youngest, now)
        if seq.state is not SeqState.RUNNING or lives.go_on(step, seq, num_tokens, now):
            break
    return None


def go_on_beside(lives: Lives, step: OpenStep, seq: Sequence, num_tokens: int, now: float) -> None:
    """The next chunk while other lanes run: the victim is the youngest whom no step names, so that a long prompt in
    flight does not make everybody wait for its end.
    """
    while seq.state is SeqState.RUNNING and not lives.go_on(step, seq, num_tokens, now):
        if lives.is_memory_coming or lives.is_in_its_own_way(seq):
            return
        victim = next((one for one in reversed(lives.running) if not one.num_scheduled), None)
        if victim is None:
            return
        lives.preempt(victim, now)


def start(lives: Lives, step: OpenStep, seq: Sequence, now: float, *, can_foresee: bool = False) -> Taken:
    """Let a waiting sequence join the step, or say what is short. `can_foresee`: find out whether its time may come."""
    if step.budget <= 0:
        return Taken(Blocked.BY_BUDGET)
    if not lives.num_free_rows(step.lane):
        return Taken(Blocked.BY_ROWS)
    hit = lives.lookup(seq)
    if lives.is_held(seq, hit):
        return Taken(Blocked.BY_PREFIX, may_pass=True)
    fitting = lives.fitting(seq, hit)
    if fitting is None:
        return Taken(Blocked.BY_MEMORY, may_pass=can_foresee and lives.may_grow(hit))
    lives.join(step, seq, fitting, now)
    return JOINED
