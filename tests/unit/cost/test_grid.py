"""Grids: interpolation against the polynomial it must reproduce, and what an update moves."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import UsageError
from plait.cost.grid import Axis, Grid

AXES = (Axis("x", (0.0, 2.0, 5.0)), Axis("y", (1.0, 3.0, 15.0), is_log=True), Axis("z", (7.0,)))


def linear(x: float, y: float) -> float:
    """Linear in each of x and log(1 + y) alone: what multilinear interpolation gives back exactly."""
    u = math.log2(1 + y)
    return 3.0 - x + 2.0 * u + 0.5 * x * u


GRID = Grid(AXES, tuple(linear(x, y) for x, y, _ in product(*(axis.knots for axis in AXES))))


@given(x=st.floats(-3, 9), y=st.floats(0, 40), z=st.floats(0, 99))
def test_interpolation_and_extrapolation_give_back_what_is_linear(x: float, y: float, z: float) -> None:
    assert GRID.at((x, y, z)) == pytest.approx(linear(x, y), abs=1e-9)


@given(x=st.floats(-3, 9), y=st.floats(0, 40))
def test_weights_around_a_point_add_up_to_one_and_are_parts(x: float, y: float) -> None:
    weights = [weight for _, weight in GRID.around((x, y, 7.0))]
    assert sum(weights) == pytest.approx(1.0)
    assert all(0.0 <= weight <= 1.0 for weight in weights)


def test_an_update_moves_the_nearest_crossings_by_their_weight_and_no_other() -> None:
    flat = Grid.filled(AXES, 1.0)
    moved = flat.moved((0.5, 1.0, 7.0), 3.0, rate=0.5)
    assert moved.values == pytest.approx((1.75, 1, 1, 1.25, 1, 1, 1, 1, 1))
    on_knot = flat.moved((2.0, 3.0, 7.0), 3.0, rate=1.0)
    assert [value for value in on_knot.values if value != 1.0] == [3.0]
    assert on_knot.at((2.0, 3.0, 7.0)) == 3.0


def test_a_point_outside_moves_the_edge() -> None:
    moved = Grid.filled(AXES, 1.0).moved((99.0, 0.0, 7.0), 2.0, rate=1.0)
    assert moved.at((5.0, 1.0, 7.0)) == 2.0
    assert not moved.contains((99.0, 0.0, 7.0))
    assert moved.contains((5.0, 1.0, 7.0))


@pytest.mark.parametrize("knots", [(), (1.0, 1.0), (2.0, 1.0)])
def test_knots_ascend(knots: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="axis x has knots"):
        Axis("x", knots)


def test_each_crossing_has_a_value() -> None:
    with pytest.raises(UsageError, match="a grid of 9 crossings has 2 values"):
        Grid(AXES, (1.0, 2.0))
