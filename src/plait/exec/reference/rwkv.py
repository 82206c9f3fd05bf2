"""RWKV-7 of the reference executor: tokens mixed with those before them, and its generalised delta rule.

Owns the arithmetic of `Shift` and of the scan `RWKV7`, as their definitions in `plait.model.ops` read; states come in
and go out as arrays, as in `recurrence.py`.
Invariant: a token's result depends on its own row and the state before it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from plait.exec.reference.ops import ONE, activate
from plait.model.ops import Activation, Scan, Shift

Floats = npt.NDArray[np.float32]

_SLOWEST = np.float32(math.exp(-0.5))
_SMALLEST_NORM = np.float32(1e-12)


def shift(
    op: Shift,
    x: Floats,
    weights: Mapping[str, Floats],
    state: Floats,
    offsets: Sequence[int],
    keep: Callable[[int, Floats], None],
) -> Floats:
    """Rows `x` [n, D] of a chunk behind `state` [D]; y [n, M D]. The state behind each of `offsets` goes to `keep`."""
    before = np.concatenate([state[None, :], x[:-1]])
    y = x[:, None, :] + (before - x)[:, None, :] * weights[op.weight]
    for offset in offsets:
        keep(offset, x[offset])
    return y.reshape(len(x), -1)


def rwkv7(op: Scan, inputs: Sequence[Floats], weights: Sequence[Floats], state: Floats) -> Floats:
    """`ScanKind.RWKV7`: one token."""
    r, w, k, v, a = (one.reshape(op.heads, op.head_dim) for one in inputs)
    key_scale, key_rate, bonus = (one.reshape(op.heads, op.head_dim) for one in weights)
    decay = np.exp(-_SLOWEST * activate(Activation.SIGMOID, w))
    key = k * key_scale
    length = np.sqrt(np.square(key).sum(axis=1, keepdims=True))
    key = key / np.maximum(length, _SMALLEST_NORM)
    k = k * (ONE + (a - ONE) * key_rate)
    found = (state * key[:, None, :]).sum(axis=2)
    state *= decay[:, None, :]
    state -= found[:, :, None] * (key * a)[:, None, :]
    state += v[:, :, None] * k[:, None, :]
    read = (state * r[:, None, :]).sum(axis=2)
    own = (r * k * bonus).sum(axis=1, keepdims=True) * v
    return np.concatenate([read.ravel(), own.ravel()])
