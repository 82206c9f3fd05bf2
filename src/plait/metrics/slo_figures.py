"""SLO figures: how many sequences met their latency targets, and how many of late.

Owns the judgement of every sequence that has targets; told by `ServingFigures`, on the engine's thread. Other threads
read counts. Invariants: of each kind a sequence has a target of, it is judged once at most; counters never go down; a
sequence that ended is forgotten.

A sequence that failed before its first token missed that target. A wait that a client's leaving cut short is missed if
it was longer than the target by then, and says nothing otherwise.
Kinds (`core.request.Slo`): ttft, arrival to the first token; itl, the longest gap; tpot, the mean gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from plait.core.events import Arrived, Emitted, Finished
from plait.core.ids import SeqId
from plait.core.request import FinishReason, ServiceClass, Slo

RECENT_S = 300.0
_NUM_SLOTS = 30
_SLOT_S = RECENT_S / _NUM_SLOTS


class Target(StrEnum):
    TTFT = "ttft"
    ITL = "itl"
    TPOT = "tpot"

    def of(self, slo: Slo) -> float | None:
        """The target of this kind, for a prompt of any length."""
        return {Target.TTFT: slo.ttft_s, Target.ITL: slo.itl_s, Target.TPOT: slo.tpot_s}[self]


class Attainment:
    """Counts of one class and kind: since the start, and of the last five minutes, to ten seconds."""

    __slots__ = ("_slots", "attained", "missed")

    def __init__(self) -> None:
        self.attained = self.missed = 0
        self._slots = [(-1, 0, 0)] * _NUM_SLOTS
        """(which ten seconds, attained, missed). Replaced whole, so that a reader on another thread sees no half."""

    def judge(self, met: bool, at_s: float) -> None:
        number = int(at_s // _SLOT_S)
        found, attained, missed = self._slots[number % _NUM_SLOTS]
        if found != number:
            attained = missed = 0
        self._slots[number % _NUM_SLOTS] = (number, attained + met, missed + (not met))
        self.attained += met
        self.missed += not met

    def recent(self, now_s: float) -> float | None:
        """Share that met the target of late; None: nobody was judged."""
        oldest = int(now_s // _SLOT_S) - _NUM_SLOTS
        kept = [slot for slot in self._slots if slot[0] > oldest]
        attained, missed = sum(slot[1] for slot in kept), sum(slot[2] for slot in kept)
        return attained / (attained + missed) if attained + missed else None


@dataclass(slots=True)
class _Watched:
    """A sequence with targets, on its way."""

    service_class: ServiceClass
    slo: Slo
    first_token_target_s: float | None
    arrival_s: float
    first_s: float | None = None
    last_s: float = 0.0
    longest_s: float = 0.0
    num_tokens: int = 0
    is_late: bool = False
    """It missed a target."""


def _zeros() -> dict[tuple[ServiceClass, Target], Attainment]:
    return {(one, target): Attainment() for one in ServiceClass for target in Target}


@dataclass(slots=True)
class SloFigures:
    attainments: dict[tuple[ServiceClass, Target], Attainment] = field(default_factory=_zeros)
    goodput: dict[ServiceClass, int] = field(default_factory=lambda: dict.fromkeys(ServiceClass, 0))
    """Sequences with targets that came to their end and met all of them."""
    _open: dict[SeqId, _Watched] = field(default_factory=dict)

    def arrived(self, event: Arrived) -> None:
        slo, first_s = event.slo, event.slo.first_token_s(event.num_prompt)
        if first_s is not None or slo.itl_s is not None or slo.tpot_s is not None:
            self._open[event.seq] = _Watched(event.service_class, slo, first_s, event.at_s)

    def emitted(self, event: Emitted) -> None:
        seq = self._open.get(event.seq)
        if seq is None:
            return
        seq.num_tokens += event.num_tokens
        if seq.first_s is None:
            seq.first_s = event.at_s
            self._judge(seq, Target.TTFT, seq.first_token_target_s, event.at_s - seq.arrival_s, event.at_s)
        else:
            seq.longest_s = max(seq.longest_s, event.at_s - seq.last_s)
        seq.last_s = event.at_s

    def finished(self, event: Finished) -> None:
        seq = self._open.pop(event.seq, None)
        if seq is None:
            return
        is_whole = event.reason in (FinishReason.STOP, FinishReason.LENGTH)
        if seq.first_s is None:
            # An embedding has no token: its end is what was waited for. What failed never comes.
            took_s = math.inf if event.reason is FinishReason.ERROR else event.at_s - seq.arrival_s
            self._judge(seq, Target.TTFT, seq.first_token_target_s, took_s, event.at_s, is_whole)
        else:
            self._judge_gaps(seq, seq.first_s, event.at_s, is_whole)
        self.goodput[seq.service_class] += is_whole and not seq.is_late

    def _judge_gaps(self, seq: _Watched, first_s: float, end_s: float, is_whole: bool) -> None:
        longest_s = seq.longest_s if is_whole else max(seq.longest_s, end_s - seq.last_s)
        is_judged = seq.num_tokens > 1
        self._judge(seq, Target.ITL, seq.slo.itl_s, longest_s, end_s, is_judged)
        num_gaps = max(1, seq.num_tokens - 1)
        self._judge(seq, Target.TPOT, seq.slo.tpot_s, (seq.last_s - first_s) / num_gaps, end_s, is_judged)

    def _judge(
        self, seq: _Watched, kind: Target, target_s: float | None, took_s: float, at_s: float, is_over: bool = True
    ) -> None:
        """`is_over`: what was waited for came. If not, only that it took too long is certain."""
        if target_s is None:
            return
        met = took_s <= target_s
        if met and not is_over:
            return
        self.attainments[seq.service_class, kind].judge(met, at_s)
        seq.is_late |= not met

    def rows(self, now_s: float) -> Iterator[tuple[ServiceClass, Target, Attainment, float | None]]:
        """Every class and kind with its counts and its recent share."""
        for (service_class, target), one in self.attainments.items():
            yield service_class, target, one, one.recent(now_s)
