"""Fit: tables of a calibration from steps that were measured.

Owns how samples become alpha, the factor of mixed steps, the guard, the spread and the scatter. Knows neither a clock
nor a device.
Invariant: a crossing of a grid that was measured has what was measured there; equal samples give equal tables.

Samples of a state that follow each other are a visit. A machine is slower in one moment than in another, hardly ever
faster than it can be, and a moment lasts longer than a visit; so of several visits the quiet ones say how states
compare, and what all took more is in one factor, and in the scatter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TypeVar

from plait.core.errors import UsageError
from plait.cost.alpha import AXES, AlphaTable, State, alpha_axes, is_decode, state_of
from plait.cost.calibrated import CalibratedModel
from plait.cost.calibration import MIXED_AXES, Calibration, without_overhead
from plait.cost.grid import Axis, Grid
from plait.cost.guard import MOST_SPREAD, Cell, GuardTable, pair_of, prefill_beside
from plait.cost.roofline import RooflineModel
from plait.cost.scatter import MOST_RATIO, Scatter, evenly
from plait.cost.solo import Sample, fit_solo, phases

Point = TypeVar("Point", bound=tuple[float, ...])

_FEW = 8
"""Samples of a cell, too few to know what is usual in it."""
_SWEEPS = 30
_PULL = 0.5
SPREAD_PART = 0.99
"""Of the steps of a fit, that stay below their price times the spread."""
GUARD_PART = 0.985
"""Of those beside a prefill. What is usual in a cell rests on few samples and scatters too, so that more steps keep to
their bound: of those that were held out, all but one in 150 to 300 (docs/lab/2026-11-30-bounds.md).
"""


@dataclass(frozen=True, slots=True)
class Knots:
    """Where the two grids of alpha have their crossings."""

    prefill: tuple[Axis, ...]
    decode: tuple[Axis, ...]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Knots:
        """Crossings at every share, number of tokens, context and company that was measured."""
        return cls(_axes_of(_states(samples, decode=False)), _axes_of(_states(samples, decode=True)))


def fit_alpha(samples: Sequence[Sample], roofline: RooflineModel, knots: Knots | None = None) -> AlphaTable:
    """From steps of one phase, the median of what was measured in each state. A crossing without samples lies on the
    line between two that have some, or takes those that are nearest; samples between crossings pull those around them
    until they meet.
    """
    knots = Knots.of(samples) if knots is None else knots
    return AlphaTable(
        _fit_grid(_alphas(samples, roofline, decode=False), knots.prefill),
        _fit_grid(_alphas(samples, roofline, decode=True), knots.decode),
    )


def fit_mixed(samples: Sequence[Sample], model: CalibratedModel, *, by_context: bool = False) -> Grid | None:
    """What steps of both phases take by what their parts' alphas say; `model` has no such factor yet. `by_context`:
    also by how many tokens of their prompts come before.
    """
    names = MIXED_AXES if by_context else MIXED_AXES[:-1]
    found: dict[tuple[float, ...], list[float]] = {}
    for visit in _visits(samples):
        prefill, decode = phases(visit[0].shape)
        if prefill.chunks and decode.chunks and not visit[0].beside:
            _, tokens, context, _ = state_of(prefill, visit[0].share)
            at = (float(visit[0].share), tokens, float(len(decode.chunks)), context)[: len(names)]
            priced_s = model.price(visit[0].shape, visit[0].share).expected_s
            found.setdefault(at, []).append(median(sample.seconds for sample in visit) / priced_s)
    if not found:
        return None
    axes = tuple(
        Axis(name, tuple(sorted({at[place] for at in found})), is_log=name in ("tokens", "rows"))
        for place, name in enumerate(names)
    )
    return _fit_grid(_as_usual(found, {at: _quiet(visits) for at, visits in found.items()}), axes)


def fit_guard(samples: Sequence[Sample], model: CalibratedModel, edges: GuardTable) -> GuardTable:
    """How much longer than alone decode steps beside a prefill take, at worst, by cell of `edges`.

    Of a cell with dozens of samples the maximum is the most disturbed one. There it is what is usual in the cell, times
    how far nearly all samples stay from what is usual in theirs: the machine scatters everywhere alike, so that all
    cells say together how wide. Cells of a few samples have nothing but their maximum.
    """
    cells: dict[Cell, list[float]] = {}
    for sample in samples:
        prefill = prefill_beside(sample.beside)
        if prefill is not None and is_decode(sample.shape):
            alone_s = model.price(sample.shape, sample.share).expected_s - model.overhead_s(sample.shape)
            cell = edges.cell(pair_of(sample.shape, sample.share, prefill))
            cells.setdefault(cell, []).append(sample.seconds / alone_s)
    if not cells or median(map(len, cells.values())) < _FEW:
        return replace(edges, cells={cell: max(1.0, *found) for cell, found in cells.items()})
    usual = {cell: median(found) for cell, found in cells.items()}
    around = sorted(slowdown / usual[cell] for cell, found in cells.items() for slowdown in found)
    return replace(edges, cells=usual, spread=min(MOST_SPREAD, max(1.0, _all_but(around, GUARD_PART))))


def fit_spread(samples: Sequence[Sample], model: CalibratedModel) -> float:
    """Of steps alone: measured by predicted time that all but one in a hundred stay below."""
    ratios = sorted(
        sample.seconds / (model.price(sample.shape, sample.share).expected_s - model.overhead_s(sample.shape))
        for sample in samples
        if not sample.beside
    )
    return min(MOST_SPREAD, max(1.0, _all_but(ratios, SPREAD_PART)))


def _all_but(ascending: Sequence[float], part: float) -> float:
    """What so large a part stays below; 1 if there is nothing."""
    return ascending[min(len(ascending) - 1, int(part * len(ascending)))] if ascending else 1.0


def fit_scatter(
    samples: Sequence[Sample],
    model: CalibratedModel,
    units: int,
    jitter_s: Sequence[float],
    late_s: Sequence[float],
    rested_s: float,
) -> Scatter | None:
    """Spells from visits of steps alone on the whole device, in their order: each until the next one, whatever else was
    measured in between (side by side, both lanes tell of the same time). None: there are none, or nothing of an engine.
    """
    spell_s: list[float] = []
    ratios: list[float] = []
    for visit in _visits(samples):
        lasted_s = sum(sample.seconds for sample in visit)
        if visit[0].share == units and not visit[0].beside:
            priced_s = model.price(visit[0].shape, units).expected_s - model.overhead_s(visit[0].shape)
            spell_s.append(lasted_s)
            ratios.append(min(median(sample.seconds for sample in visit) / priced_s, MOST_RATIO))
        elif spell_s:
            spell_s[-1] += lasted_s / 2 if visit[0].beside else lasted_s
    if not spell_s or not jitter_s or not late_s:
        return None
    return Scatter(tuple(spell_s), tuple(ratios), evenly(jitter_s), evenly(late_s), rested_s)


def fit_calibration(
    samples: Sequence[Sample],
    roofline: RooflineModel,
    about: Calibration,
    edges: GuardTable,
    knots: Knots | None = None,
) -> Calibration:
    """All tables from steps without the engine's overhead; `about` has the rest: model, machine, day, overheads."""
    if not any(phases(sample.shape)[0].chunks for sample in samples):
        raise UsageError("no prompt was measured, so prompts would have no price; give prompts too")
    if not any(is_decode(sample.shape) and not phases(sample.shape)[0].chunks for sample in samples):
        raise UsageError("no decode step was measured, so answers would have no price; give answers too")
    found = replace(about, alpha=fit_alpha(samples, roofline, knots), solo=fit_solo(samples), num_steps=len(samples))
    bare = without_overhead(replace(found, mixed=None, guard=None, spread=1.0))
    mixed = fit_mixed(samples, CalibratedModel(roofline, bare), by_context=True)
    model = CalibratedModel(roofline, replace(bare, mixed=mixed))
    guard = fit_guard(samples, model, edges) if edges.shares else None
    return replace(found, mixed=mixed, guard=guard, spread=fit_spread(samples, model))


def _states(samples: Sequence[Sample], *, decode: bool) -> list[State]:
    return [
        state_of(sample.shape, sample.share, sample.beside)
        for sample in samples
        if sample.shape.chunks and _is_of(sample, decode=decode)
    ]


def _alphas(samples: Sequence[Sample], roofline: RooflineModel, *, decode: bool) -> dict[State, float]:
    found: dict[State, list[float]] = {}
    roofs_s: dict[State, float] = {}
    for visit in _visits([one for one in samples if one.shape.chunks and _is_of(one, decode=decode)]):
        shape, share, beside = visit[0].shape, visit[0].share, visit[0].beside
        state = state_of(shape, share, beside)
        roofs_s[state] = roofline.roof(shape, share, beside).seconds
        found.setdefault(state, []).append(median(one.seconds for one in visit))
    quiet = {state: _quiet(visits) for state, visits in found.items()}
    agreed = _as_usual(found, {state: _agreed(state, visits, quiet) for state, visits in found.items()})
    return {state: seconds / roofs_s[state] for state, seconds in agreed.items()}


def _visits(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Samples of equal steps that follow each other."""
    found: list[list[Sample]] = []
    for sample in samples:
        if not found or replace(found[-1][0], seconds=sample.seconds) != sample:
            found.append([])
        found[-1].append(sample)
    return found


def _quiet(visits: Sequence[float]) -> float:
    """The lower quartile, linear between two."""
    ordered, place = sorted(visits), 0.25 * (len(visits) - 1)
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def _as_usual(visits: Mapping[Point, Sequence[float]], quiet: Mapping[Point, float]) -> dict[Point, float]:
    """With one factor for all, so that half of what the visits say is more: quiet times become usual ones again."""
    usual = median(median(found) / quiet[point] for point, found in visits.items()) if visits else 1.0
    return {point: usual * value for point, value in quiet.items()}


def _agreed(state: State, visits: Sequence[float], quiet: Mapping[State, float]) -> float:
    """Of what the visits of a state say, from the least to the median, what lies nearest to the line through states
    with less and more context: what a step reads of the cache grows in a line. A single visit is what it is.
    """
    share, tokens, context, beside = state
    others = sorted(other[2] for other in quiet if (other[0], other[1], other[3]) == (share, tokens, beside))
    others.remove(context)
    if len(others) < 2:
        return quiet[state]
    place = min(max(1, bisect_right(others, context)), len(others) - 1)
    low, high = others[place - 1], others[place]
    low_s, high_s = (quiet[share, tokens, one, beside] for one in (low, high))
    line_s = low_s + (context - low) / (high - low) * (high_s - low_s)
    return min(max(line_s, min(visits)), median(visits))


def _is_of(sample: Sample, *, decode: bool) -> bool:
    prefill_part, decode_part = phases(sample.shape)
    return bool(decode_part.chunks) == decode and bool(prefill_part.chunks) != decode


def _axes_of(states: Sequence[State]) -> tuple[Axis, ...]:
    if not states:
        return alpha_axes((1.0,), (1.0,), (0.0,))
    share, tokens, context, beside = (sorted({state[place] for state in states}) for place in range(len(AXES)))
    return alpha_axes(share, tokens, context, beside)


def _fit_grid(alphas: Mapping[State, float] | Mapping[tuple[float, ...], float], axes: Sequence[Axis]) -> Grid:
    """Measured crossings, lines between them, the others from the nearest samples, then sweeps for what lies between
    crossings.
    """
    if not alphas:
        return Grid.filled(axes, 1.0)
    measured: dict[tuple[float, ...], float] = dict(alphas.items())
    known = _with_lines(measured, axes)
    grid = Grid(
        tuple(axes),
        tuple(known[point] if point in known else _nearest(point, measured, axes) for point in _crossings(axes)),
    )
    between = {state: alpha for state, alpha in measured.items() if len(grid.around(state)) > 1}
    for _ in range(_SWEEPS if between else 0):
        for state, alpha in between.items():
            if grid.contains(state):
                grid = grid.moved(state, grid.at(state) + (alpha - grid.at(state)) / _weight(grid, state), _PULL)
    return grid


def _with_lines(measured: Mapping[tuple[float, ...], float], axes: Sequence[Axis]) -> dict[tuple[float, ...], float]:
    """And the crossings between two that are known and differ from it along one axis only, by the line through them:
    contexts first, for steps grow in a line along them.
    """
    known = dict(measured)
    for place in sorted(range(len(axes)), key=lambda place: axes[place].is_log):
        axis, lines = axes[place], dict[tuple[float, ...], list[float]]()
        for point in known:
            lines.setdefault((*point[:place], *point[place + 1 :]), []).append(point[place])
        for others, at in lines.items():
            for low, high in pairwise(sorted(at)):
                ends = [(*others[:place], value, *others[place:]) for value in (low, high)]
                for knot in axis.knots:
                    if low < knot < high:
                        _, part = Axis(axis.name, (low, high), axis.is_log).between(knot, beyond=False)
                        value = known[ends[0]] + part * (known[ends[1]] - known[ends[0]])
                        known[*others[:place], knot, *others[place:]] = value
    return known


def _weight(grid: Grid, state: Sequence[float]) -> float:
    """How far the value at a point moves when the cells around it are moved: the sum of squared weights."""
    return sum(weight * weight for _, weight in grid.around(state))


def _crossings(axes: Sequence[Axis]) -> list[tuple[float, ...]]:
    points: list[tuple[float, ...]] = [()]
    for axis in axes:
        points = [(*point, knot) for point in points for knot in axis.knots]
    return points


def _nearest(point: tuple[float, ...], measured: dict[tuple[float, ...], float], axes: Sequence[Axis]) -> float:
    """The mean of the samples that are nearest, on axes scaled to 1; another share or company is farther than any."""

    def distance(state: tuple[float, ...]) -> float:
        return sum(
            (_FAR.get(axis.name, 1.0) * (axis.scaled(a) - axis.scaled(b)) / _span(axis)) ** 2
            for axis, a, b in zip(axes, point, state, strict=True)
        )

    distances = {state: distance(state) for state in measured}
    least = min(distances.values())
    near = [measured[state] for state, far in distances.items() if far <= least + 1e-12]
    return sum(near) / len(near)


_FAR = {"share": 4.0, "beside": 2.0}


def _span(axis: Axis) -> float:
    return (axis.scaled(axis.knots[-1]) - axis.scaled(axis.knots[0])) or 1.0
