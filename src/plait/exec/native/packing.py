"""Packing: from the tensors of a model file to the panels and vectors that the runtime multiplies with.

Owns which number scheme each matrix gets, and that packed pages of the file are let go. The bytes themselves are
packed in csrc/formats; `repacking.py` has the formats that kernels do not know.
Invariant: a matrix is packed piece by piece, so that beside the packed weights there is never more than a piece.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from plait import _native
from plait.exec.native.repacking import BITS, repacked, scheme_of
from plait.exec.native.tape import Scheme, Tape
from plait.model.ops import Embed, Experts, Linear, Op
from plait.model.program import Program
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

PANEL: Final = 16
"""Rows of a matrix that a panel holds: pieces are whole panels."""
PIECE_WEIGHTS: Final = 1 << 20
"""That are computed anew at a time: ten megabytes with all that is made on the way."""
PIECE_BYTES: Final = 32 << 20
"""Of rows that are packed as they lie in the file."""


class WeightDtype(StrEnum):
    """What matrices are computed in."""

    AUTO = "auto"
    """As the file stores them."""
    F32 = "f32"
    """Dequantised to float32: the most exact, and the largest."""


def schemes_of(program: Program, weights: WeightTable, dtype: WeightDtype) -> dict[str, Scheme]:
    """The scheme of every weight that is looked up in or multiplied with."""
    schemes: dict[str, Scheme] = {}
    for op in program.ops:
        for name in _matrices(op):
            schemes[name] = Scheme.F32 if dtype is WeightDtype.F32 else scheme_of(weights[name].format)
    return schemes


def _matrices(op: Op) -> tuple[str, ...]:
    match op:
        case Embed():
            return (op.table,)
        case Linear():
            return (op.weight,)
        case Experts():
            return (*op.gate, *op.up, *op.down)
        case _:
            return ()


def pack(tape: Tape, weights: WeightTable, schemes: Mapping[str, Scheme], num_threads: int) -> _native.Panels:
    """Every matrix of the tape, in its order."""
    shapes = [(int(schemes[name]), *_shape(weights[name])) for name in tape.matrices]
    panels = _native.Panels(shapes)
    files: dict[int, mmap.mmap] = {}
    for index, name in enumerate(tape.matrices):
        tensor = weights[name]
        for start, stop in _pieces(tensor, schemes[name]):
            panels.pack(index, _stored(tensor, schemes[name], start, stop), start, num_threads)
            # Where rows are reordered these are not quite the rows that were read; all are let go in the end.
            _let_go(tensor.stored[start:stop])
        if (file := _let_go(tensor.stored)) is not None:
            files[id(file)] = file
    for file in files.values():
        file.madvise(mmap.MADV_DONTNEED)
    return panels


def vectors(tape: Tape, weights: WeightTable) -> list[Floats]:
    """Norm weights, biases and sinks, in the tape's order."""
    return [weights[name].dequantize().reshape(-1) for name in tape.vectors]


def _shape(tensor: Tensor) -> tuple[int, int]:
    columns, depth = tensor.shape
    return columns, depth


def kept_texts(weights: WeightTable, schemes: Mapping[str, Scheme]) -> tuple[str, ...]:
    """A line on each format whose weights take more memory than in the file, for the start-up report."""
    kept = {weights[name].format.name: (weights[name].format, scheme) for name, scheme in schemes.items()}
    return tuple(
        f"{name} weights are kept in {BITS[scheme]:g} bits each, {known.bits_per_weight:g} in the file; "
        "their values are the same"
        for name, (known, scheme) in sorted(kept.items())
        if scheme is not Scheme.F32 and BITS.get(scheme, 0) > known.bits_per_weight
    )


def _pieces(tensor: Tensor, scheme: Scheme) -> Iterator[tuple[int, int]]:
    """Ranges of rows, whole panels but for the last."""
    rows, width = _shape(tensor)
    row_bytes = tensor.format.bytes_of(width)
    is_made = tensor.rounded_from is not None or scheme.name != tensor.format.name
    wanted = PIECE_WEIGHTS // width if is_made else PIECE_BYTES // row_bytes
    step = max(PANEL, wanted // PANEL * PANEL)
    return ((start, min(rows, start + step)) for start in range(0, rows, step))


def _stored(tensor: Tensor, scheme: Scheme, start: int, stop: int) -> Bytes:
    """Rows of the matrix as a file of that scheme would hold them."""
    if scheme.name == tensor.format.name:
        return np.ascontiguousarray(tensor.raw(start, stop))
    if scheme is Scheme.F32:
        return tensor.dequantize(start, stop).view(np.uint8)
    return repacked(tensor.raw(start, stop), tensor.format, scheme)


def _let_go(stored: Bytes) -> mmap.mmap | None:
    """Give the pages of a tensor in a mapped file back to the system; who reads them again finds them in its cache.

    Returns the file. Reading what lies beside them brings some of these pages back.
    """
    whole = stored
    owner: object = stored.base
    while isinstance(owner, np.ndarray):
        whole, owner = owner, owner.base
    mapped = owner.obj if isinstance(owner, memoryview) else owner
    if not isinstance(mapped, mmap.mmap):
        return None
    start = (stored.ctypes.data - whole.ctypes.data) // mmap.PAGESIZE * mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, start, min(stored.nbytes + mmap.PAGESIZE, len(mapped) - start))
    return mapped
