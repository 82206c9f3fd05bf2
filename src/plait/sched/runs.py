"""Runs: when a step may be planned as the first of many equal ones.

Owns the conditions, and the memory that the later steps will need, reserved in the order in which they would ask for it
one by one. Used only where somebody knows what is to come (`plait.core.executor.Foresight`), as in a simulation.
Invariant: a run is what the same steps planned one by one would be, block ids included (docs/adr/0013).
"""

from __future__ import annotations

import math
from collections.abc import Sequence as AnySequence

from plait.core.executor import Foresight
from plait.core.request import Sequence
from plait.core.step import FROM_DEVICE
from plait.kv.cache import Grants, KVCache
from plait.sched.open_step import OpenStep


def prolong(
    step: OpenStep,
    running: AnySequence[Sequence],
    kv: KVCache,
    foresight: Foresight,
    now: float,
    before_s: float | None,
) -> None:
    """Turn `step`, whose memory is reserved, into as long a run as will bring nothing new; perhaps of one step.
    `before_s`: when a deadline passes.
    """
    most = _longest(step, running)
    # What leaves a window is free after each step; a run would only learn of it at its end.
    if most < 2 or kv.is_settling or not kv.keeps_all:
        return
    foreseen = foresight.num_steps(step.lane, step.shape(), most, math.inf if before_s is None else before_s)
    if foreseen < 2:
        return
    num_steps, grants = _reserve(foreseen, step, running, kv, now)
    if num_steps > 1:
        step.prolong(num_steps, running, grants)


def _longest(step: OpenStep, running: AnySequence[Sequence]) -> int:
    """Steps until the first sequence of those that run ends; 1 if they are not all in the step with one token that only
    the device knows, or if something else is.
    """
    if step.joins or step.moves or step.masks or len(step.chunks) != len(running):
        return 1
    most = 1 << 30
    for seq, chunk in zip(running, step.chunks.values(), strict=True):
        if chunk.tokens is not FROM_DEVICE or chunk.seq != seq.id or not seq.ends_by_length:
            return 1
        # Nobody computes the last token of an answer.
        most = min(most, seq.num_prompt + seq.max_output_tokens - 1 - chunk.start)
    return most


def _reserve(
    num_steps: int, step: OpenStep, running: AnySequence[Sequence], kv: KVCache, now: float
) -> tuple[int, list[Grants]]:
    """Memory for as many steps as there is memory for, and how many these are. Step after step, as they would ask."""
    ends = [chunk.end for chunk in step.chunks.values()]
    size = kv.tokens_per_block
    # A sequence asks when its next slot is the first of a block: places of steps, 0 being the first, which has asked.
    asking = sorted(
        (place, number) for number, end in enumerate(ends) for place in range(1 + -end % size, num_steps, size)
    )
    room = kv.available_tokens // size
    if len(asking) > room:
        # A step that cannot have everything preempts somebody: no part of what it asks for may be taken before.
        num_steps = asking[room][0]
    found: list[Grants] = []
    for place, number in asking:
        if place >= num_steps:
            break
        grants = kv.reserve(running[number].id, ends[number] + place, now)
        if grants is None:
            return place, found
        found.append(grants)
    return num_steps, found
