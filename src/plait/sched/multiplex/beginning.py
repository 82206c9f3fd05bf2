"""Beginning: whose prompts are computed next under a policy that prices steps, and what keeps the first who cannot.

Owns the order of those that were begun and of the first that waits, and what he is short of: a row, memory, or time
(`plait.sched.multiplex.time_room`). Who is online and short of a row or of memory takes it from offline sequences.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.decision import Blocked
from plait.core.ids import LaneId, SeqId
from plait.core.request import Sequence
from plait.sched.filling import make_way
from plait.sched.lives import Lives
from plait.sched.multiplex.situation import Prompt
from plait.sched.multiplex.time_room import TimeRoom
from plait.sched.multiplex.viewing import View
from plait.sched.waiting import is_offline


class Beginning:
    """`by_id`: everybody who waits or runs. `room`: None: time is not looked at."""

    def __init__(self, lives: Lives, view: View, room: TimeRoom | None, by_id: Mapping[SeqId, Sequence]) -> None:
        self._lives = lives
        self._view = view
        self._room = room
        self._by_id = by_id
        self.blocked: Blocked | None = None
        """What the first who waits was short of when it was last looked."""

    def prompts(self, lane: LaneId, units: int, now: float) -> tuple[Prompt, ...]:
        """Those that could be computed from now on, in order: what was begun before the others."""
        waiting = self._view.waiting(units, now)
        self.blocked = None
        self._lives.gather_leaves(lane)
        for place, prompt in enumerate(waiting):
            seq = self._by_id[prompt.seq]
            hit = self._lives.lookup(seq)
            if self._lives.is_held(seq, hit):
                self.blocked = Blocked.BY_PREFIX
                continue
            hit, short = make_way(self._lives, lane, seq, hit, now)
            if short is None and self.has_time(seq):
                ordered = (self._view.prompt(seq, hit.num_reused), *waiting[place + 1 :])
                return (*self._begun(), *ordered)
            self.blocked = short or Blocked.BY_TIME
            break
        return self._begun()

    @property
    def is_near(self) -> bool:
        """Whether somebody who waits may begin once what is in flight has ended, though nobody's answer has. Who is
        online takes an offline row, but none that a step names.
        """
        waiting, running = self._lives.waiting, self._lives.running
        if not waiting or self.blocked not in (Blocked.BY_ROWS, Blocked.BY_MEMORY):
            return len(waiting) > 0
        return waiting.num_online > 0 and len(running) > 0 and is_offline(running[-1])

    def has_time(self, seq: Sequence) -> bool:
        """Whether decode steps with a waiting sequence would hold what it and those who run were promised."""
        return self._room is None or self._room.has_room(self._lives.running, seq)

    def _begun(self) -> tuple[Prompt, ...]:
        running = self._lives.running
        return tuple([self._view.prompt(seq) for seq in running if not seq.num_scheduled and seq.num_plannable > 1])
