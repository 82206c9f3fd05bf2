"""Recurrences for the native runtime: what `Conv` and `Scan` are on the tape, and which of them it has.

Owns their numbers, and the order in which a convolution's weights lie there. What is computed is in csrc/ops.
Invariant: the parts of a layer's state lie one behind another, as the cache layout places them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from plait.exec.native import tape
from plait.exec.native.tape import NONE, OpKind, OpSpec
from plait.model.ops import Activation, Conv, Scan, ScanKind, Shift
from plait.model.program import CacheGroup

Floats = npt.NDArray[np.float32]

SCANS: Final[Mapping[ScanKind, tape.ScanCode]] = {
    ScanKind.MAMBA2: tape.ScanCode.MAMBA2,
    ScanKind.RWKV7: tape.ScanCode.RWKV7,
}
"""Kinds that kernels exist for."""
MOST_TAPS: Final = 16
MOST_RWKV_HEAD: Final = 256
"""Columns of a head of RWKV-7."""


def is_known(op: Conv | Scan) -> bool:
    if isinstance(op, Conv):
        return 2 <= op.width <= MOST_TAPS and op.activation in (None, Activation.SILU)
    return op.kind in SCANS and (op.kind is not ScanKind.RWKV7 or op.head_dim <= MOST_RWKV_HEAD)


def conv_spec(op: Conv, group: CacheGroup, vector: Callable[[str | None], int]) -> OpSpec:
    """`vector`: the number of a weight among the tape's vectors."""
    return OpSpec(
        OpKind.CONV,
        weight=(vector(op.weight), NONE, NONE),
        bias=vector(op.bias),
        group=op.group,
        layer=op.slot,
        state_begin=sum(group.state_parts[: op.part]),
        taps=op.width,
        activates=op.activation is not None,
    )


def shift_spec(op: Shift, group: CacheGroup, vector: Callable[[str | None], int]) -> OpSpec:
    return OpSpec(
        OpKind.SHIFT,
        weight=(vector(op.weight), NONE, NONE),
        group=op.group,
        layer=op.slot,
        state_begin=sum(group.state_parts[: op.part]),
    )


def scan_spec(op: Scan, group: CacheGroup, vector: Callable[[str | None], int]) -> OpSpec:
    numbers = [*map(vector, op.weights), NONE, NONE, NONE]
    return OpSpec(
        OpKind.SCAN,
        weight=(numbers[0], numbers[1], numbers[2]),
        group=op.group,
        layer=op.slot,
        heads=op.heads,
        kv_heads=op.groups,
        head_dim_k=op.state_dim,
        head_dim_v=op.head_dim,
        scan=SCANS[op.kind],
        state_begin=sum(group.state_parts[: op.part]),
    )


def taps_of(made: tape.Tape) -> dict[int, int]:
    """Vectors that are weights of convolutions, and how many taps each has."""
    return {op.weight[0]: op.taps for op in made.ops if op.kind is OpKind.CONV}


def by_tap(weights: Floats, num_taps: int) -> Floats:
    """[C, W] as the kernels read it: [W, C], flat."""
    return np.ascontiguousarray(weights.reshape(-1, num_taps).T).reshape(-1)
