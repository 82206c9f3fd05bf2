"""Fit: tables of a calibration from steps that were measured.

Owns how samples become alpha, the factor of mixed steps, the guard and the spread. Knows neither a clock nor a device.
Invariant: a crossing of a grid that was measured has what was measured there; equal samples give equal tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from plait.core.errors import UsageError
from plait.cost.alpha import AXES, AlphaTable, State, alpha_axes, is_decode, state_of
from plait.cost.calibrated import CalibratedModel
from plait.cost.calibration import Calibration, without_overhead
from plait.cost.grid import Axis, Grid
from plait.cost.guard import GuardTable, guard_from, pair_of, prefill_beside
from plait.cost.roofline import RooflineModel
from plait.cost.solo import Sample, fit_solo, phases

_SWEEPS = 30
_PULL = 0.5
SPREAD_PART = 0.99
"""Of the steps of a fit, that stay below their price times the spread."""
MOST_SPREAD = 100.0
"""A bound beyond that bounds nothing; the machine was not at work on steps."""


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
    """From steps of one phase, the median of what was measured in each state. A crossing without samples takes those
    that are nearest; samples between crossings pull those around them until they meet.
    """
    knots = Knots.of(samples) if knots is None else knots
    return AlphaTable(
        _fit_grid(_alphas(samples, roofline, decode=False), knots.prefill),
        _fit_grid(_alphas(samples, roofline, decode=True), knots.decode),
    )


def fit_mixed(samples: Sequence[Sample], model: CalibratedModel) -> Grid | None:
    """What steps of both phases take by what their parts' alphas say; `model` has no such factor yet."""
    found: dict[tuple[float, float, float], list[float]] = {}
    for sample in samples:
        prefill, decode = phases(sample.shape)
        if prefill.chunks and decode.chunks and not sample.beside:
            at = (float(sample.share), float(prefill.num_tokens), float(len(decode.chunks)))
            found.setdefault(at, []).append(sample.seconds / model.price(sample.shape, sample.share).expected_s)
    if not found:
        return None
    axes = tuple(
        Axis(name, tuple(sorted({at[place] for at in found})), is_log=place > 0)
        for place, name in enumerate(("share", "tokens", "rows"))
    )
    return _fit_grid({at: median(values) for at, values in found.items()}, axes)


def fit_guard(samples: Sequence[Sample], model: CalibratedModel, edges: GuardTable) -> GuardTable:
    """Cell maxima of measured time by predicted time alone, of decode steps beside a prefill. `edges`: its cells."""
    pairs = []
    for sample in samples:
        prefill = prefill_beside(sample.beside)
        if prefill is not None and is_decode(sample.shape):
            alone_s = model.price(sample.shape, sample.share).expected_s - model.overhead_s(sample.shape)
            pairs.append((pair_of(sample.shape, sample.share, prefill), sample.seconds / alone_s))
    return guard_from(
        pairs,
        edges.shares,
        new_tokens=edges.new_tokens,
        reused_tokens=edges.reused_tokens,
        batch=edges.batch,
        context=edges.context,
    )


def fit_spread(samples: Sequence[Sample], model: CalibratedModel) -> float:
    """Of steps alone: measured by predicted time that all but one in a hundred stay below."""
    ratios = sorted(
        sample.seconds / (model.price(sample.shape, sample.share).expected_s - model.overhead_s(sample.shape))
        for sample in samples
        if not sample.beside
    )
    found = ratios[min(len(ratios) - 1, int(SPREAD_PART * len(ratios)))] if ratios else 1.0
    return min(MOST_SPREAD, max(1.0, found))


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
    mixed = fit_mixed(samples, CalibratedModel(roofline, bare))
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
    for sample in samples:
        if sample.shape.chunks and _is_of(sample, decode=decode):
            roof_s = roofline.roof(sample.shape, sample.share, sample.beside).seconds
            state = state_of(sample.shape, sample.share, sample.beside)
            found.setdefault(state, []).append(sample.seconds / roof_s)
    return {state: median(values) for state, values in found.items()}


def _is_of(sample: Sample, *, decode: bool) -> bool:
    prefill_part, decode_part = phases(sample.shape)
    return bool(decode_part.chunks) == decode and bool(prefill_part.chunks) != decode


def _axes_of(states: Sequence[State]) -> tuple[Axis, ...]:
    if not states:
        return alpha_axes((1.0,), (1.0,), (0.0,))
    share, tokens, context, beside = (sorted({state[place] for state in states}) for place in range(len(AXES)))
    return alpha_axes(share, tokens, context, beside)


def _fit_grid(alphas: Mapping[State, float] | Mapping[tuple[float, float, float], float], axes: Sequence[Axis]) -> Grid:
    """Measured crossings, then the others from the nearest samples, then sweeps for what lies between crossings."""
    if not alphas:
        return Grid.filled(axes, 1.0)
    measured: dict[tuple[float, ...], float] = dict(alphas.items())
    grid = Grid(tuple(axes), tuple(_nearest(point, measured, axes) for point in _crossings(axes)))
    between = {state: alpha for state, alpha in measured.items() if len(grid.around(state)) > 1}
    for _ in range(_SWEEPS if between else 0):
        for state, alpha in between.items():
            if grid.contains(state):
                grid = grid.moved(state, grid.at(state) + (alpha - grid.at(state)) / _weight(grid, state), _PULL)
    return grid


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
