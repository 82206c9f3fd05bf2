"""Operations in NumPy, each as its definition in `plait.model.ops` reads.

Owns the arithmetic of every op that works on rows alone; attention and the cache are in `attention.py`. Arrays are
float32, [rows, width], C order, and rows are padded to a multiple of `ROW_TILE`.
Invariant: an output row depends on its own input row and the weights only: neither on how many rows there are nor on
its place among them, as far as the BLAS treats the columns of one product alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from plait.model.ops import Activation, Norm, NormKind, Pairing, Rope
from plait.model.rope import RopeSpec, frequencies

Floats = npt.NDArray[np.float32]

ONE = np.float32(1)
ROW_TILE = 16
"""Rows of every matrix product, which are the columns of what a BLAS is asked for. It chooses kernels by shape, and
kernels differ in how they round; in this orientation and at this width one kernel does all columns of OpenBLAS on x86.
Weights times rows, 16 wide, is what has that property: rows times weights does not, nor do 24 or more columns.
"""


def padded(num_rows: int) -> int:
    """`num_rows` rounded up to whole row tiles."""
    return -(-num_rows // ROW_TILE) * ROW_TILE


def norm(op: Norm, x: Floats, weights: Mapping[str, Floats]) -> Floats:
    parts = x.reshape(len(x), op.parts, x.shape[1] // op.parts)
    if op.kind is NormKind.LAYER:
        parts = parts - parts.mean(axis=2, keepdims=True)
    mean_square = np.square(parts).mean(axis=2, keepdims=True)
    y: Floats = (parts / np.sqrt(mean_square + np.float32(op.eps))).reshape(x.shape)
    if op.weight is not None:
        y = y * _per_column(np.float32(op.offset) + weights[op.weight], y.shape[1])
    if op.bias is not None:
        y = y + _per_column(weights[op.bias], y.shape[1])
    return y


def _per_column(weight: Floats, width: int) -> Floats:
    repeated: Floats = np.tile(weight, width // len(weight))
    return repeated


def linear(x: Floats, weight: Floats, bias: Floats | None, out_scale: float) -> Floats:
    """`x` has whole row tiles."""
    # In C order whatever the products left: NumPy sums a row in another order when its columns are not neighbours.
    y = np.empty((len(x), len(weight)), np.float32)
    for first in range(0, len(x), ROW_TILE):
        tile = slice(first, first + ROW_TILE)
        y[tile] = (weight @ x[tile].T).T
    if bias is not None:
        y = y + bias
    return y if out_scale == 1.0 else y * np.float32(out_scale)


class RopeTable:
    """Cosines and sines for positions 0, 1, ... of one spec, float32 from double precision; grown as positions come."""

    def __init__(self, spec: RopeSpec, mscale: float) -> None:
        self._frequencies = np.asarray(frequencies(spec))
        self._mscale = mscale
        self._cos = np.empty((0, len(self._frequencies)), np.float32)
        self._sin = self._cos

    def at(self, positions: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """[rows, 1, pairs] each, to be broadcast over heads."""
        needed = int(positions.max()) + 1
        if needed > len(self._cos):
            # Each entry depends on its own position alone, so growing cannot change one.
            angles = np.arange(needed + needed // 2, dtype=np.float64)[:, None] * self._frequencies
            self._cos = (np.cos(angles) * self._mscale).astype(np.float32)
            self._sin = (np.sin(angles) * self._mscale).astype(np.float32)
        return self._cos[positions][:, None, :], self._sin[positions][:, None, :]


def rope(op: Rope, x: Floats, cos: Floats, sin: Floats) -> Floats:
    heads = x.reshape(len(x), op.heads, op.head_dim)
    rotated = heads[:, :, : op.spec.rotary_dim]
    y = heads.copy()
    dim = op.spec.rotary_dim
    first, second = slice(0, dim // 2, 1), slice(dim // 2, dim, 1)
    if op.pairing is Pairing.INTERLEAVED:
        first, second = slice(0, dim, 2), slice(1, dim, 2)
    y[:, :, first] = rotated[:, :, first] * cos - rotated[:, :, second] * sin
    y[:, :, second] = rotated[:, :, second] * cos + rotated[:, :, first] * sin
    return y.reshape(x.shape)


def activate(activation: Activation, x: Floats) -> Floats:
    y: Floats
    match activation:
        case Activation.SILU:
            y = np.divide(x, ONE + np.exp(-x), dtype=np.float32)
        case Activation.SIGMOID:
            y = np.divide(ONE, ONE + np.exp(-x), dtype=np.float32)
        case Activation.TANH:
            y = np.tanh(x)
        case Activation.RELU2:
            y = np.square(np.maximum(x, np.float32(0)))
        case Activation.GELU_TANH:
            inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
            y = np.multiply(x / np.float32(2), ONE + np.tanh(inner), dtype=np.float32)
        case Activation.GELU:
            y = np.multiply(x / np.float32(2), ONE + _erf(x * np.float32(np.sqrt(0.5))), dtype=np.float32)
    return y


def _erf(x: Floats) -> Floats:
    """Number by number: slow and exact, and nothing that is fast here needs it."""
    exact = [math.erf(float(value)) for value in x.ravel()]
    return np.asarray(exact, np.float32).reshape(x.shape)
