"""Waste: what a running engine's memory holds beyond what its sequences need, over simulated time.

Owns the measure. Reads events and the memory's usage; changes nothing.
Invariant: what is needed never depends on the layout: it follows from lengths and the model's kinds of layers.

Needed of a sequence are, in layers that keep everything, all tokens that are known of it, for which room is reserved;
in layers with a window or a stretch, those that a row from the next one on will see and those that a step in flight
writes. Cached prefixes that nobody uses are no waste: they are given up for anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.core.events import Arrived, Collected, Emitted, Event, Finished, Preempted, Submitted
from plait.core.ids import SeqId, StepId
from plait.kv.cache import KVCache
from plait.model.program import CacheGroup, GroupKind


@dataclass(slots=True)
class _Life:
    num_known: int
    planned: int = 0
    committed: int = 0
    is_running: bool = False


@dataclass(slots=True)
class WasteLog:
    """An event sink. `groups`: those of the model, whatever the memory makes of them. Two bytes a number."""

    groups: Sequence[CacheGroup]
    page_bytes: int
    kv: KVCache | None = None
    """From the moment at which the engine is made."""
    worst: float = 0.0
    _lives: dict[SeqId, _Life] = field(default_factory=dict)
    _ends: dict[StepId, list[tuple[SeqId, int]]] = field(default_factory=dict)
    _at_s: float | None = None
    _now: float = 0.0
    _area: float = 0.0
    _seconds: float = 0.0

    def watch(self, kv: KVCache) -> None:
        """The memory of the engine whose events come."""
        self.kv = kv

    @property
    def mean(self) -> float:
        """Over time, of what is held."""
        return self._area / self._seconds if self._seconds else 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case Arrived():
                self._lives[event.seq] = _Life(event.num_prompt)
            case Submitted():
                for chunk in event.plan.chunks:
                    life = self._lives[chunk.seq]
                    life.planned, life.is_running = chunk.end, True
                self._ends[event.plan.step] = [(chunk.seq, chunk.end) for chunk in event.plan.chunks]
                self._sample(event.at_s)
            case Collected():
                for seq, end in self._ends.pop(event.result.step, ()):
                    if seq in self._lives:
                        self._lives[seq].committed = end
            case Emitted():
                self._lives[event.seq].num_known += event.num_tokens
            case Preempted():
                life = self._lives[event.seq]
                life.planned, life.committed, life.is_running = 0, 0, False
            case Finished():
                del self._lives[event.seq]
            case _:
                pass

    def needed_bytes(self) -> float:
        running = [life for life in self._lives.values() if life.is_running]
        return sum(self._needed(group, life) for life in running for group in self.groups)

    def _needed(self, group: CacheGroup, life: _Life) -> float:
        match group.kind:
            case GroupKind.FULL:
                tokens = max(life.num_known, life.planned)
            case GroupKind.WINDOW:
                tokens = life.planned - max(0, life.committed - group.window + 1)
            case GroupKind.CHUNKED:
                tokens = life.planned - life.committed // group.window * group.window
            case _:
                tokens = 0
        return tokens * group.bytes_per_token(2.0)

    def _sample(self, at_s: float) -> None:
        if self.kv is None:
            return
        if self._at_s is not None:
            self._area += self._now * (at_s - self._at_s)
            self._seconds += at_s - self._at_s
        usage = self.kv.usage()
        held = usage.total_bytes - usage.free_pages * self.page_bytes - usage.evictable_bytes
        self._now = 1 - self.needed_bytes() / held if held else 0.0
        self._at_s = at_s
        self.worst = max(self.worst, self._now)
