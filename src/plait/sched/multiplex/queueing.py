"""Queueing: in which order prompts that wait are begun.

Owns Bullet's order (ASPLOS 2026, section 2.4): ascending predicted prefill time, without any move that would push a
waiting request past its target. Pure; times come in.
Invariant: whoever would have been in time in order of arrival is in time in this order, as far as times are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plait.sched.multiplex.situation import Prompt


@dataclass(slots=True)
class _Placed:
    prompt: Prompt
    seconds: float
    end_s: float = 0.0
    """When it would be done if everything began now, in the present order."""


def shortest_first(prompts: Sequence[Prompt], seconds: Sequence[float], start_s: float) -> tuple[Prompt, ...]:
    """`prompts` in order of arrival, each of which takes so many seconds; the first begins at `start_s`.

    Each prompt in turn goes ahead of those before it that take longer, until it meets one that would miss its target
    by that and would not otherwise.
    """
    line: list[_Placed] = []
    for prompt, needed in zip(prompts, seconds, strict=True):
        placed = _Placed(prompt, needed)
        before = line[-1].end_s if line else start_s
        placed.end_s = before + needed
        place = len(line)
        while place and _may_pass(placed, line[place - 1]):
            passed = line[place - 1]
            placed.end_s -= passed.seconds
            passed.end_s += needed
            place -= 1
        line.insert(place, placed)
    return tuple(one.prompt for one in line)


def _may_pass(placed: _Placed, other: _Placed) -> bool:
    if placed.seconds >= other.seconds:
        return False
    due_s = other.prompt.due_s
    return other.end_s + placed.seconds <= due_s or other.end_s > due_s
