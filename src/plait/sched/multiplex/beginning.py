"""Beginning: whose prompts are computed next under a policy that prices steps, and what keeps the first who cannot.

Owns the order of those that were begun and of the first that waits, what he is short of: a row, memory, or time
(`plait.sched.multiplex.time_room`), and his joining. Who is online and short of a row or of memory takes it from
offline sequences.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.decision import Blocked
from plait.core.ids import LaneId, SeqId
from plait.core.request import SeqState, Sequence
from plait.sched.filling import make_way, start
from plait.sched.lives import Lives
from plait.sched.multiplex.pricing import cut
from plait.sched.multiplex.situation import Prefill, Prompt
from plait.sched.multiplex.time_room import TimeRoom
from plait.sched.multiplex.viewing import View
from plait.sched.open_step import OpenStep
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

    def prompts(self, lane: LaneId, units: int, now: float, *, ahead: bool = False) -> tuple[Prompt, ...]:
        """Those that could be computed from now on, in order: what was begun before the others. `ahead`: behind what is
        in flight of them.
        """
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
                return (*self._begun(ahead), *ordered)
            self.blocked = short or Blocked.BY_TIME
            break
        return self._begun(ahead)

    def prefill(self, prompts: tuple[Prompt, ...], units: int, most: int) -> tuple[int, Prefill | None]:
        """How many of them are begun together, and what that is. One step holds so much of a prompt, and what is behind
        it comes in the next ones.
        """
        if not prompts:
            return 0, None
        num_begun = sum([self._by_id[one.seq].state is SeqState.RUNNING for one in prompts])
        count = self._view.together(prompts, num_begun, units, most)
        return count, Prefill(prompts[:count], cut(prompts[:count], most))

    def begin(self, step: OpenStep, seq: Sequence, now: float) -> Blocked | None:
        """Somebody who waits joins the step, or is short of what is returned."""
        blocked = start(self._lives, step, seq, now).blocked if self.has_time(seq) else Blocked.BY_TIME
        if blocked is None:
            self._view.forget(seq.id)
        elif blocked is not Blocked.BY_PREFIX:
            self.blocked = blocked
        return blocked

    @property
    def is_near(self) -> bool:
        """Whether somebody who waits may begin once what is in flight has ended, though nobody's answer has. Who is
        online takes an offline row, but none that a step names.
        """
        if self.blocked not in (Blocked.BY_ROWS, Blocked.BY_MEMORY):
            return len(self._lives.waiting) > 0
        return self.needs_idle_row

    @property
    def needs_idle_row(self) -> bool:
        """Whether the first who waits is online and short of what an offline sequence has, which no step may name when
        he takes it.
        """
        waiting, running = self._lives.waiting, self._lives.running
        is_short = waiting.num_online > 0 and self.blocked in (Blocked.BY_ROWS, Blocked.BY_MEMORY)
        return is_short and len(running) > 0 and is_offline(running[-1])

    def has_time(self, seq: Sequence) -> bool:
        """Whether decode steps with a waiting sequence would hold what it and those who run were promised."""
        return self._room is None or self._room.has_room(self._lives.running, seq)

    def _begun(self, ahead: bool) -> tuple[Prompt, ...]:
        running = self._lives.running
        free = [seq for seq in running if (ahead or not seq.num_scheduled) and seq.num_plannable > 1]
        return tuple([self._view.prompt(seq) for seq in free])
