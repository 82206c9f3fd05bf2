"""Least squares, with coefficients that cannot be negative and with any.

Owns the method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23) for a few unknowns. Times are
sums of work, so a negative coefficient is never right: it is what collinear measurements leave behind.
Invariant: the result is the non-negative vector with the smallest sum of squared residuals, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from plait.core.errors import UsageError

_ROUNDING = 1e-12

Rows = Sequence[Sequence[float]]


def non_negative_least_squares(rows: Rows, values: Sequence[float]) -> tuple[float, ...]:
    """x >= 0 that minimises the sum over rows of (row . x - value)^2. `UsageError`: there is nothing to fit."""
    normal, target, scales = _normal_equations(rows, values)
    found = _solve_active_set(normal, target)
    return tuple(value / scale for value, scale in zip(found, scales, strict=True))


def least_squares(rows: Rows, values: Sequence[float]) -> tuple[float, ...]:
    """The same with coefficients of any sign; one that others explain is 0."""
    normal, target, scales = _normal_equations(rows, values)
    found = _solve_on(normal, target, list(range(len(target))))
    return tuple(value / scale for value, scale in zip(found, scales, strict=True))


def _normal_equations(rows: Rows, values: Sequence[float]) -> tuple[list[list[float]], list[float], list[float]]:
    """With columns of length 1, and what they were divided by."""
    if not rows or len(rows) != len(values):
        raise UsageError(f"there are {len(rows)} rows for {len(values)} values; a fit needs one for each, and some")
    width = len(rows[0])
    scales = [sqrt(sum(row[column] ** 2 for row in rows)) or 1.0 for column in range(width)]
    scaled = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    normal = [[sum(row[i] * row[j] for row in scaled) for j in range(width)] for i in range(width)]
    target = [sum(row[i] * value for row, value in zip(scaled, values, strict=True)) for i in range(width)]
    return normal, target, scales


def _solve_active_set(normal: list[list[float]], target: list[float]) -> list[float]:
    """On the normal equations, whose columns have length 1. Passive: the set of unknowns that are not held at 0."""
    width = len(target)
    x = [0.0] * width
    passive: list[int] = []
    tolerance = _ROUNDING * max(1.0, *(abs(value) for value in target))
    for _ in range(10 * width):
        slopes = [target[i] - sum(normal[i][j] * x[j] for j in range(width)) for i in range(width)]
        best = max((i for i in range(width) if i not in passive), key=lambda i: slopes[i], default=None)
        if best is None or slopes[best] <= tolerance:
            break
        passive.append(best)
        wanted = _solve_on(normal, target, passive)
        while wanted and min(wanted) <= 0.0:
            steps = [x[i] / (x[i] - w) for i, w in zip(passive, wanted, strict=True) if w <= 0.0]
            for i, w in zip(passive, wanted, strict=True):
                x[i] += min(steps) * (w - x[i])
            kept = [i for i, w in zip(passive, wanted, strict=True) if not (w <= 0.0 and x[i] <= tolerance)]
            for i in set(passive) - set(kept):
                x[i] = 0.0
            if len(kept) == len(passive):
                break
            passive = kept
            wanted = _solve_on(normal, target, passive)
        for i, w in zip(passive, wanted, strict=True):
            x[i] = max(0.0, w)
    return x


def _solve_on(normal: list[list[float]], target: list[float], chosen: list[int]) -> list[float]:
    """The unconstrained solution in the chosen unknowns: Gauss with pivots; a column that others explain gets 0."""
    size = len(chosen)
    matrix = [[normal[i][j] for j in chosen] + [target[i]] for i in chosen]
    order = list(range(size))
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        if abs(matrix[column][column]) < _ROUNDING:
            matrix[column] = [0.0] * (size + 1)
            matrix[column][column] = 1.0
            continue
        for row in range(size):
            if row != column and (factor := matrix[row][column] / matrix[column][column]):
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[column], strict=True)]
    return [matrix[row][size] / matrix[row][row] for row in order]
