"""Recurrences of the reference executor: convolutions along tokens and scans, token after token.

Owns the arithmetic of `Conv` and `Scan` for the rows of one chunk, from the state behind the token before it to the
state behind its last one. Knows no cache: states come in and go out as arrays, and whoever calls keeps them. Each kind
of scan is one function of one token; a new kind is a function and a line in `STEPS`.
Invariant: a token's result depends on its own row and the state before it alone, so a chunk may end anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from plait.exec.reference.ops import activate
from plait.exec.reference.rwkv import rwkv7
from plait.model.ops import Conv, Scan, ScanKind

Floats = npt.NDArray[np.float32]

Keep = Callable[[int, Floats], None]
"""Takes the state, flat, behind the chunk's token at an offset; must copy it."""

Step = Callable[[Scan, Sequence[Floats], Sequence[Floats], Floats], Floats]
"""(op, one row of each input, the weights, the state [H, P, N]) -> y, one row; changes the state in place."""


def conv(
    op: Conv, x: Floats, weights: Mapping[str, Floats], state: Floats, offsets: Sequence[int], keep: Keep
) -> Floats:
    """Rows `x` [n, C] of one chunk behind `state` [C, W - 1]; the state behind each of `offsets` goes to `keep`."""
    known = np.concatenate([state.reshape(x.shape[1], -1).T, x])  # the row of token t is at t + W - 1
    taps = weights[op.weight].reshape(x.shape[1], op.width)
    y = np.zeros(x.shape, np.float32)
    for tap in range(op.width):
        y += known[tap : tap + len(x)] * taps[:, tap]
    if op.bias is not None:
        y += weights[op.bias]
    for offset in offsets:
        keep(offset, np.ascontiguousarray(known[offset + 1 : offset + op.width].T).ravel())
    return y if op.activation is None else activate(op.activation, y)


def scan(
    op: Scan,
    inputs: Sequence[Floats],
    weights: Mapping[str, Floats],
    state: Floats,
    offsets: Sequence[int],
    keep: Keep,
) -> Floats:
    """The same for a scan: rows of every input, `state` [H, P, N]; y [n, op.width]."""
    running = state.reshape(op.heads, op.head_dim, op.state_dim).copy()
    numbers = [weights[name] for name in op.weights]
    step, kept = STEPS[op.kind], frozenset(offsets)
    y = np.empty((len(inputs[0]), op.width), np.float32)
    for token in range(len(y)):
        y[token] = step(op, [rows[token] for rows in inputs], numbers, running)
        if token in kept:
            keep(token, running.ravel())
    return y


def mamba2(op: Scan, inputs: Sequence[Floats], weights: Sequence[Floats], state: Floats) -> Floats:
    """`ScanKind.MAMBA2`: one token."""
    x, dt, b, c = inputs
    a_log, skip, dt_bias = weights
    delta = np.logaddexp(np.float32(0), dt + dt_bias)
    heads = x.reshape(op.heads, op.head_dim)
    state *= np.exp(-delta * np.exp(a_log))[:, None, None]
    state += (delta[:, None] * heads)[:, :, None] * _by_head(op, b)[:, None, :]
    y: Floats = (state * _by_head(op, c)[:, None, :]).sum(axis=2) + skip[:, None] * heads
    return y.ravel()


def _by_head(op: Scan, of_groups: Floats) -> Floats:
    """[G N] to [H, N]."""
    return np.repeat(of_groups.reshape(op.groups, op.state_dim), op.heads // op.groups, axis=0)


STEPS: Mapping[ScanKind, Step] = {ScanKind.MAMBA2: mamba2, ScanKind.RWKV7: rwkv7}
"""The kinds that this executor has."""
