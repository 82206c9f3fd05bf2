"""Policies of one launch, written from their descriptions: XY-Serve's reserved slots (section 2.5), chunked prefill by
time, and layer-wise prefill that takes turns with decode (MuxWise, ASPLOS 2026, section 3.7).

XY-Serve publishes neither the number of slots nor a formula: half of a step here, who has waited longest goes first,
and what prompts leave is decode's as well.
"""

from __future__ import annotations

import math

from plait.core.step import ChunkShape, StepShape
from plait.cost.model import CostModel
from plait.sched.multiplex.situation import Situation


def xyserve(decode_last_s: dict[int, float], prompt_tokens: list[int], size: int, part: float) -> tuple[list[int], int]:
    """(decode rows in the step, by id; prompt tokens in it)."""
    by_wait = sorted(decode_last_s, key=lambda seq: (decode_last_s[seq], seq))
    reserved = by_wait[: int(size * part)]
    prompts = min(size - len(reserved), sum(prompt_tokens))
    more = by_wait[len(reserved) :][: size - len(reserved) - prompts]
    return reserved + more, prompts


def timed_chunk(s: Situation, cost: CostModel, units: int, seconds: float, size: int) -> int:
    """Most prompt tokens, in steps of 16, below that of 2, or all of them, with which the step takes no longer than so
    many seconds; if none, 16 or a half, quarter or eighth of that, whichever first makes it a tenth longer at most.
    """
    assert s.prefill is not None
    prompts = [(one.start, one.num_tokens) for one in (*s.prefill.prompts, *s.waiting)]
    most = min(size - len(s.decoding), sum(count for _, count in prompts))
    fitting = [n for n in fine(most) if takes(s, prompts, n, cost, units) <= seconds]
    if fitting:
        return max(fitting)
    most_s = 1.1 * takes(s, prompts, 0, cost, units)
    return min(size - len(s.decoding), next((n for n in (16, 8, 4) if takes(s, prompts, n, cost, units) <= most_s), 2))


def fine(most: int) -> list[int]:
    return [n for n in [*range(2, 16, 2), *range(16, most, 16)] if n < most] + [most]


def takes(s: Situation, prompts: list[tuple[int, int]], num_tokens: int, cost: CostModel, units: int) -> float:
    chunks = list(s.decode.chunks)
    for start, count in prompts:
        taken = min(count, num_tokens)
        if taken:
            chunks.append(ChunkShape(start, taken, int(taken == count)))
        num_tokens -= taken
    return cost.price(StepShape(tuple(chunks)), units).expected_s


def temporal(s: Situation, cost: CostModel, units: int, layers: int) -> tuple[str, float]:
    """(whose turn it is, until when)."""
    if s.prefill is None:
        return "decode", math.inf
    if not s.decoding:
        return "prefill", math.inf
    if s.is_stepping:
        return "decode", math.inf
    due = min((one.last_s + one.itl_s for one in s.decoding if one.itl_s is not None), default=math.inf)
    slack = due - s.now_s - cost.price(s.decode, units).worst_s
    layer = cost.price(s.prefill.shape, units).expected_s / layers
    if slack < layer and s.form == "prefill":
        return "decode", math.inf
    return "prefill", s.now_s + max(layer, slack)
