"""Idle: which resource online traffic leaves idle now.

Owns seconds of computing and of cache traffic that online steps took lately, from prices and not from clocks, so that a
simulation and a server say the same. Reads events only.
Invariant: nobody online leaves both resources idle alike, so that the ratio is 1 and a job runs at its own density.
"""

from __future__ import annotations

import math

from plait.core.events import Arrived, Collected, Event, Finished, Scheduled, Started
from plait.core.ids import SeqId
from plait.core.request import ServiceClass
from plait.core.step import StepResult
from plait.sched.blend.job import Lives

WINDOW_S = 1.0
"""Over which what is idle is averaged: an exponential mean."""

LATELY_S = 600.0
"""Online traffic of the last minutes says how much there will be."""

LEAST_IDLE = 0.05
"""Of a resource: what is never taken to be busy, so that no ratio is without bound."""

READ_AT = 1024
"""Tokens of cache at which a row's traffic is looked up; it is taken to be in proportion."""


class Idle:
    """Seconds that online rows took of both resources, lately."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._compute = self._memory = 0.0
        """Parts of the time."""
        self._at_s = 0.0

    def spent(self, at_s: float, compute_s: float, memory_s: float) -> None:
        """By a step that ended then."""
        fade = self._fade(at_s)
        self._at_s = max(self._at_s, at_s)
        self._compute = fade * self._compute + compute_s / self._window_s
        self._memory = fade * self._memory + memory_s / self._window_s

    def ratio(self, now: float) -> float:
        """Idle seconds of computing for each idle second of memory traffic."""
        fade = self._fade(now)
        compute, memory = (max(LEAST_IDLE, 1.0 - fade * busy) for busy in (self._compute, self._memory))
        return compute / memory

    def _fade(self, now: float) -> float:
        return math.exp(-max(0.0, now - self._at_s) / self._window_s)


class OnlineTime:
    """Seconds in which steps ran that held online rows: all of them, and as a share of the time of late."""

    def __init__(self, window_s: float = LATELY_S) -> None:
        self._window_s = window_s
        self.total_s = 0.0
        self._busy_s = 0.0
        """Each second counts less the longer it is ago."""
        self._begun_s: float | None = None
        self._at_s = 0.0

    def begin(self, at_s: float) -> None:
        """From then on everything is known."""
        if self._begun_s is None:
            self._begun_s = self._at_s = at_s

    def ran(self, start_s: float, end_s: float) -> None:
        """A step with online rows. What it has in common with the one before is counted once."""
        self.begin(start_s)
        seconds = max(0.0, end_s - max(start_s, self._at_s))
        fade = math.exp(-max(0.0, end_s - self._at_s) / self._window_s)
        self._busy_s = fade * self._busy_s + seconds
        self._at_s = max(self._at_s, end_s)
        self.total_s += seconds

    def lately(self, now: float) -> tuple[float, float]:
        """The share of the time, and for how many seconds of it that stands; both 0 before anything is known."""
        if self._begun_s is None or now <= self._begun_s:
            return 0.0, 0.0
        known_s = self._window_s * -math.expm1((self._begun_s - now) / self._window_s)
        busy_s = self._busy_s * math.exp(-max(0.0, now - self._at_s) / self._window_s)
        return min(1.0, busy_s / known_s), known_s


class IdleMeter:
    """An `EventSink` that tells `idle` and `online`. `lives`: what a token computes and reads on this device."""

    def __init__(self, lives: Lives, window_s: float = WINDOW_S) -> None:
        self.idle = Idle(window_s)
        self.online = OnlineTime()
        self._token_s = (lives.prompt_token_s, lives.output_token_s)
        self._read_s = lives.memory_s(READ_AT, 1) / READ_AT
        self._computed: dict[SeqId, int] = {}
        """Of online sequences that live: tokens in the cache."""

    def __call__(self, event: Event) -> None:
        match event:
            case Arrived(service_class=ServiceClass.ONLINE):
                self._computed[event.seq] = 0
            case Scheduled() if event.seq in self._computed:
                self._computed[event.seq] = event.num_cached
            case Finished():
                self._computed.pop(event.seq, None)
            case Collected(result=result) if self._computed:
                self._collected(result)
            case Started():
                self.online.begin(event.at_s)
            case _:
                pass

    def _collected(self, result: StepResult) -> None:
        compute_s = memory_s = 0.0
        has_online = False
        for one in result.seqs:
            before = self._computed.get(one.seq)
            if before is None or not one.num_computed:
                continue
            has_online = True
            self._computed[one.seq] = before + one.num_computed
            if one.num_computed == result.num_steps:
                compute_s += one.num_computed * self._token_s[1]
                memory_s += one.num_computed * before * self._read_s
            else:
                compute_s += one.num_computed * self._token_s[0]
        self.idle.spent(result.end_s, compute_s, memory_s)
        if has_online:
            self.online.ran(result.start_s, result.end_s)
