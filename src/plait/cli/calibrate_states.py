"""Calibrate states: which steps are measured, and which of them nothing is fitted to.

Owns the sparse grid of shapes, shares and neighbours. Knows neither an executor nor a clock.
Invariant: a state that is held out lies inside what is fitted, between its crossings, and is never fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from plait.core.step import StepShape
from plait.cost.guard import GuardTable
from plait.cost.solo import decode_shape, prefill_shape

_ROWS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (64, 256, 512, 1024, 2048, 8192)
"""Close to each other where most steps of a server are: weights and keys have alphas of their own, so between two
contexts that of both is no straight line.
"""
_PROMPTS = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_STARTS = (0, 512, 2048, 8192)
_PART_ROWS, _PART_CONTEXTS = (1, 4, 16, 64, 256), (64, 512, 2048, 8192)
_PART_PROMPTS, _PART_STARTS = (4, 16, 64, 256, 512, 1024, 2048), (0, 2048, 8192)
"""On a part of the device, where a step takes longest and whole servers hardly ever are: every other crossing. Prices
of those between lie on the line through their neighbours.
"""
_MIXED_PROMPTS = (2, 4, 8, 16, 32, 64, 256, 448)
"""Close to each other where chunks are cut by time: what rows above a whole tile cost is no straight line."""
_MIXED_ROWS = (1, 8, 32)
_MIXED_STARTS = (0, 1024)
_MIXED_FEW, _MIXED_FEW_ROWS, _MIXED_FAR = 32, 8, (3072,)
"""Few prompt tokens beside decode are what steps with a bound on gaps consist of, and those of a long prompt come
behind thousands of others.
"""
_BESIDE_ROWS = (1, 4, 16)
_BESIDE_PROMPTS = (64, 256, 512)
_BESIDE_STARTS = (0, 1024)
_CONTEXT = 512
"""Before what is measured at one context only."""
_SHORT_TOKENS, _SHORT_CONTEXT = 32, 1024

_HELD_ROWS = (5, 12, 24, 48, 96)
_HELD_CONTEXTS = (160, 768)
_HELD_PROMPTS = (48, 96, 192, 384)
_HELD_STARTS = (256, 1024)
_HELD_MIXED = ((12, 6), (24, 8), (128, 4), (320, 12))
_HELD_FEW = ((3, 8), (6, 8), (12, 8))
_HELD_BESIDE = ((2, 128), (8, 384))


@dataclass(frozen=True, slots=True)
class Limits:
    """What can be measured here."""

    units: int
    most_rows: int
    most_tokens: int
    """Of a step."""
    most_context: int
    """Before a chunk, as far as the model and memory reach."""
    block: int
    """Contexts are multiples of it."""


@dataclass(frozen=True, slots=True)
class State:
    """A step to measure, alone or beside another that has the rest of the units."""

    shape: StepShape
    share: int
    beside: StepShape | None = None
    is_held_out: bool = False

    def is_short(self, units: int) -> bool:
        """Alone on the whole device, few tokens behind a short context: what most steps of a server are, and what a
        machine's good and bad moments change most.
        """
        if self.beside is not None or self.share < units or self.shape.num_tokens > _SHORT_TOKENS:
            return False
        return all(chunk.start <= _SHORT_CONTEXT for chunk in self.shape.chunks)


def shares_of(units: int) -> tuple[int, ...]:
    """Two are enough for a line (Bullet, figure 9); a device of many units gets its middle too."""
    return tuple(sorted({1, units // 2, units} - {0}))


def states(limits: Limits) -> list[State]:
    found = [*_alone(limits), *_mixed(limits), *_beside(limits), *_held_out(limits)]
    # The same shape may come out of several lists where limits are narrow; what was fitted is not held out.
    unique: dict[tuple[StepShape, int, StepShape | None], State] = {}
    for state in found:
        unique.setdefault((state.shape, state.share, state.beside), state)
    return list(unique.values())


def part_on_whole_device(wanted: Sequence[State], units: int, number: int, parts: int) -> list[State]:
    """For who measures in so many parts with something else in between, and only what has all units to itself: short
    ones in each, the others in one.
    """
    whole = [state for state in wanted if state.share == units and state.beside is None]
    others = [state for state in whole if not state.is_short(units)]
    return [*(state for state in whole if state.is_short(units)), *others[number % parts :: parts]]


def _alone(limits: Limits) -> Iterator[State]:
    for share in shares_of(limits.units):
        is_whole = share == limits.units
        rows_of, contexts = (_ROWS, _CONTEXTS) if is_whole else (_PART_ROWS, _PART_CONTEXTS)
        for rows, context in product(_fitting(rows_of, limits.most_rows), _contexts(contexts, limits)):
            yield State(decode_shape(rows, context), share)
        prompts, starts = (_PROMPTS, _STARTS) if is_whole else (_PART_PROMPTS, _PART_STARTS)
        for tokens, start in product(_fitting(prompts, limits.most_tokens), _contexts(starts, limits)):
            yield State(prefill_shape(tokens, start), share)


def _mixed(limits: Limits) -> Iterator[State]:
    (context,) = _contexts((_CONTEXT,), limits)
    for tokens, rows, start in product(_MIXED_PROMPTS, _MIXED_ROWS, _contexts(_MIXED_STARTS, limits)):
        if tokens + rows <= limits.most_tokens and rows < limits.most_rows:
            yield State(_both(tokens, rows, start, context), limits.units)
    if limits.most_rows > _MIXED_FEW_ROWS:
        few = [tokens for tokens in _MIXED_PROMPTS if tokens <= min(_MIXED_FEW, limits.most_tokens - _MIXED_FEW_ROWS)]
        for tokens, start in product(few, _contexts(_MIXED_FAR, limits)):
            yield State(_both(tokens, _MIXED_FEW_ROWS, start, context), limits.units)


def _beside(limits: Limits) -> Iterator[State]:
    """With every share of decode that leaves something to prefill."""
    (context,) = _contexts((_CONTEXT,), limits)
    for share in _splits(limits.units):
        for rows, tokens in product(_fitting(_BESIDE_ROWS, limits.most_rows), _BESIDE_PROMPTS):
            for start in _contexts(_BESIDE_STARTS, limits):
                if tokens <= limits.most_tokens:
                    yield State(decode_shape(rows, context), share, prefill_shape(tokens, start))


def _held_out(limits: Limits) -> Iterator[State]:
    contexts = _contexts(_HELD_CONTEXTS, limits)
    for share in shares_of(limits.units):
        for place, rows in enumerate(_fitting(_HELD_ROWS, limits.most_rows)):
            yield State(decode_shape(rows, contexts[place % len(contexts)]), share, is_held_out=True)
        for tokens, start in product(_fitting(_HELD_PROMPTS, limits.most_tokens), _contexts(_HELD_STARTS, limits)):
            yield State(prefill_shape(tokens, start), share, is_held_out=True)
    for tokens, rows in _HELD_MIXED:
        if tokens + rows <= limits.most_tokens and rows < limits.most_rows:
            yield State(_both(tokens, rows, contexts[0], contexts[0]), limits.units, is_held_out=True)
    for (tokens, rows), start in product(_HELD_FEW, _contexts((_CONTEXT, 2048), limits)):
        if tokens + rows <= limits.most_tokens and rows < limits.most_rows:
            yield State(_both(tokens, rows, start, contexts[-1]), limits.units, is_held_out=True)
    for share, (rows, tokens) in product(_splits(limits.units), _HELD_BESIDE):
        if rows <= limits.most_rows and tokens <= limits.most_tokens:
            beside = prefill_shape(tokens, contexts[-1])
            yield State(decode_shape(rows, contexts[0]), share, beside, is_held_out=True)


def _splits(units: int) -> tuple[int, ...]:
    return tuple(share for share in shares_of(units) if share < units)


def _both(tokens: int, rows: int, start: int, context: int) -> StepShape:
    return StepShape((*prefill_shape(tokens, start).chunks, *decode_shape(rows, context).chunks))


def _fitting(values: Sequence[int], most: int) -> tuple[int, ...]:
    """And the limit itself, so that nothing lies beyond."""
    return tuple(sorted({value for value in values if value <= most} | ({most} if most < max(values) else set())))


def _contexts(values: Sequence[int], limits: Limits) -> tuple[int, ...]:
    """Cut to what is possible, whole blocks, each once."""
    most = (limits.most_context - limits.most_tokens) // limits.block * limits.block
    return tuple(sorted({max(0, min(value // limits.block * limits.block, most)) for value in values}))


def guard_edges(units: int) -> GuardTable:
    """Cells that what is measured beside each other falls into."""
    return GuardTable(
        _splits(units),
        tuple(map(float, _BESIDE_PROMPTS)),
        tuple(map(float, _BESIDE_STARTS)),
        tuple(map(float, _BESIDE_ROWS)),
        (float(_CONTEXT),),
        {},
    )
