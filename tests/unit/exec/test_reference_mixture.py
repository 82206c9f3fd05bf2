"""Experts in NumPy against their definitions, number by number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plait.exec.reference.mixture import experts, gated, route
from plait.exec.reference.ops import Floats
from plait.model.ops import Activation, ClampedSwish, Experts, Route, RouteScore, ValueId

X, Y, Z = ValueId(0), ValueId(1), ValueId(2)


def drawn(*shape: int) -> Floats:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_a_row_chooses_the_best_of_its_logits_and_weighs_them_by_their_share() -> None:
    logits = np.log(np.array([[1, 4, 2, 3], [3, 1, 1, 3]], np.float32))
    routing = route(Route((X,), Y, 4, 2), logits, {})
    assert routing[:, :2].tolist() == [[1, 3], [0, 3]], "equal ones in their order"
    assert routing[:, 2:] == pytest.approx(np.array([[4 / 7, 3 / 7], [0.5, 0.5]]))
    of_all = route(Route((X,), Y, 4, 2, normalize=False, scale=2.0), logits, {})
    assert of_all[:, 2:] == pytest.approx(np.array([[0.8, 0.6], [0.75, 0.75]]))


def test_a_bias_ranks_and_does_not_weigh() -> None:
    logits = np.array([[0.0, 2.0, -1.0]], np.float32)
    op = Route((X,), Y, 3, 1, RouteScore.SIGMOID, normalize=False, bias="bias")
    routing = route(op, logits, {"bias": np.array([0, 0, 5], np.float32)})
    assert routing[0].tolist() == pytest.approx([2, 1 / (1 + math.e)])


def test_what_is_no_number_is_chosen_last_and_stays_visible() -> None:
    routing = route(Route((X,), Y, 3, 2), np.array([[np.nan, 1, 2], [np.nan] * 3, [3, 1, 2]], np.float32), {})
    assert routing[:, :2].tolist() == [[2, 1], [0, 1], [0, 2]]
    assert np.isnan(routing[:2, 2:]).all()
    assert np.isfinite(routing[2]).all()


@pytest.mark.parametrize("activation", [Activation.SILU, ClampedSwish(1.702, 0.7)])
def test_a_row_is_the_weighted_sum_of_its_own_experts(activation: Activation | ClampedSwish) -> None:
    count, top_k, inner, hidden = 4, 2, 6, 5
    names = {part: tuple(f"{part}{expert}" for expert in range(count)) for part in ("gate", "up", "down")}
    weights = {name: drawn(inner, hidden) * np.float32(0.5 + i) for i, name in enumerate((*names["gate"], *names["up"]))}
    weights |= {name: drawn(hidden, inner) * np.float32(1 + i) for i, name in enumerate(names["down"])}
    weights |= {"a": drawn(count, inner), "b": drawn(count, inner + 0), "c": drawn(count, hidden)}
    op = Experts((X, Y), Z, *names.values(), top_k, inner, activation, ("a", "b", "c"))
    x = drawn(16, hidden)
    chosen = np.array([[row % count, (row + 1 + row // 4) % count] for row in range(16)])
    shares = np.abs(drawn(16, top_k))
    given = experts(op, x, np.concatenate([chosen, shares], axis=1).astype(np.float32), weights)
    for row in range(16):
        wanted = np.zeros(hidden)
        for rank, expert in enumerate(chosen[row]):
            gate = weights[f"gate{expert}"] @ x[row] + weights["a"][expert]
            up = weights[f"up{expert}"] @ x[row] + weights["b"][expert]
            if isinstance(activation, ClampedSwish):
                inside = gated(activation, gate, up)
            else:
                inside = gate / (1 + np.exp(-gate)) * up
            wanted += shares[row, rank] * (weights[f"down{expert}"] @ inside + weights["c"][expert])
        assert given[row] == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    # Whoever else is there: a row alone gets the same bits.
    alone = np.zeros_like(x)
    alone[3] = x[3]
    routing = np.concatenate([chosen, shares], axis=1).astype(np.float32)
    assert np.array_equal(experts(op, alone, routing, weights)[3], given[3])


def test_the_clamped_gate_is_the_definition() -> None:
    gate, up = np.array([9, -9, 0.5], np.float32), np.array([0.25, 9, -9], np.float32)
    wanted = [
        g / (1 + math.exp(-1.702 * g)) * (u + 1) for g, u in ((7.0, 0.25), (-9.0, 7.0), (0.5, -7.0))
    ]
    assert gated(ClampedSwish(1.702, 7.0), gate, up) == pytest.approx(wanted, rel=1e-6)
