"""Beginning: whose prompts are computed next under a policy that prices steps, and what keeps the first who cannot.

Owns the order of those that were begun and of the first that waits, and what he is short of: a row, memory, or time
(`plait.sched.multiplex.time_room`). Who is online and short of a row or of memory takes it from offline sequences.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.decision import Blocked
from plait.core.ids import LaneId, SeqId
from plait.core.request import Sequence
from plait.kv.cache import Hit
from plait.sched.filling import give_way
from plait.sched.lives import Lives
from plait.sched.multiplex.situation import Prompt
from plait.sched.multiplex.time_room import TimeRoom
from plait.sched.multiplex.viewing import View
from plait.sched.waiting import is_offline

_GIVEN = (Blocked.BY_ROWS, Blocked.BY_MEMORY)
"""What somebody online gets from who is offline."""


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
            short = self._short_of(seq, hit, lane)
            while short in _GIVEN and not is_offline(seq) and give_way(self._lives, now):
                self._lives.gather_leaves(lane)
                hit = self._lives.lookup(seq)
                short = self._short_of(seq, hit, lane)
            if short is None:
                ordered = (self._view.prompt(seq, hit.num_reused), *waiting[place + 1 :])
                return (*self._begun(), *ordered)
            self.blocked = short
            break
        return self._begun()

    def has_time(self, seq: Sequence) -> bool:
        """Whether decode steps with a waiting sequence would hold what it and those who run were promised."""
        return self._room is None or self._room.has_room(self._lives.running, seq)

    def _begun(self) -> tuple[Prompt, ...]:
        running = self._lives.running
        return tuple([self._view.prompt(seq) for seq in running if not seq.num_scheduled and seq.num_plannable > 1])

    def _short_of(self, seq: Sequence, hit: Hit, lane: LaneId) -> Blocked | None:
        if not self._lives.num_free_rows(lane):
            return Blocked.BY_ROWS
        if self._lives.fitting(seq, hit) is None:
            return Blocked.BY_MEMORY
        return None if self.has_time(seq) else Blocked.BY_TIME
