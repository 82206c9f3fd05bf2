"""Mixtures of experts in NumPy, as `Route` and `Experts` in `plait.model.ops` read.

Owns which experts a row chooses and the sum of what they give. Products are those of `ops.linear`, for the rows of one
expert after another.
Invariant: what a row gets depends on its own numbers only: neither on who else chose its experts nor on their order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from plait.exec.reference.ops import ONE, Floats, activate, linear, padded
from plait.model.ops import ClampedSwish, Experts, Route, RouteScore


def route(op: Route, logits: Floats, weights: Mapping[str, Floats]) -> Floats:
    """[R, experts] to [R, 2 top_k]."""
    scores = _softmax(logits) if op.score is RouteScore.SOFTMAX else ONE / (ONE + np.exp(-logits))
    keys = logits if op.bias is None else scores + weights[op.bias]
    # The sort is stable, so that equal ones stay in order of experts; what is not a number comes last.
    ranking = np.argsort(np.where(np.isnan(keys), np.inf, -keys), axis=1, kind="stable")[:, : op.top_k]
    chosen = np.take_along_axis(scores, ranking, axis=1)
    if op.normalize:
        chosen = chosen / _chain(chosen)
    if op.scale != 1.0:
        chosen = chosen * np.float32(op.scale)
    return np.concatenate([ranking.astype(np.float32), chosen.astype(np.float32)], axis=1)


def experts(op: Experts, x: Floats, routing: Floats, weights: Mapping[str, Floats]) -> Floats:
    chosen = routing[:, : op.top_k].astype(np.int64)
    outputs = np.zeros((len(x), op.top_k, x.shape[1]), np.float32)
    for expert in range(op.experts):
        rows, ranks = np.nonzero(chosen == expert)
        if len(rows):
            outputs[rows, ranks] = _expert(op, expert, _gathered(x, rows), weights)[: len(rows)]
    y = np.zeros_like(x)
    for rank in range(op.top_k):
        y = y + routing[:, op.top_k + rank, None] * outputs[:, rank]
    return y


def gated(activation: ClampedSwish, gate: Floats, up: Floats) -> Floats:
    limit = np.float32(activation.limit)
    gate, up = np.minimum(gate, limit), np.minimum(np.maximum(up, -limit), limit)
    swish: Floats = np.divide(gate, ONE + np.exp(np.float32(-activation.alpha) * gate), dtype=np.float32)
    return swish * (up + ONE)


def _expert(op: Experts, expert: int, x: Floats, weights: Mapping[str, Floats]) -> Floats:
    """One expert's answer to rows in whole tiles."""
    gate_bias, up_bias, down_bias = (
        (None, None, None) if op.biases is None else (weights[name][expert] for name in op.biases)
    )
    gate = linear(x, weights[op.gate[expert]], gate_bias, 1.0)
    up = linear(x, weights[op.up[expert]], up_bias, 1.0)
    if isinstance(op.activation, ClampedSwish):
        hidden = gated(op.activation, gate, up)
    else:
        hidden = activate(op.activation, gate) * up
    return linear(hidden, weights[op.down[expert]], down_bias, 1.0)


def _gathered(x: Floats, rows: npt.NDArray[np.intp]) -> Floats:
    gathered = np.zeros((padded(len(rows)), x.shape[1]), np.float32)
    gathered[: len(rows)] = x[rows]
    return gathered


def _softmax(z: Floats) -> Floats:
    powers: Floats = np.exp(z - z.max(axis=1, keepdims=True))
    return powers / _chain(powers)


def _chain(numbers: Floats) -> Floats:
    """[R, 1]: each row's sum, one number after another."""
    total = np.zeros((len(numbers), 1), np.float32)
    for column in range(numbers.shape[1]):
        total = total + numbers[:, column, None]
    return total
