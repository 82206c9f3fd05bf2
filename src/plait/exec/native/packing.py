"""Packing: from the tensors of a model file to the panels and vectors that the runtime multiplies with.

Owns which number scheme each matrix gets, and that packed pages of the file are let go. The bytes themselves are
packed in csrc/formats.
Invariant: once packed, no second copy of a matrix stays in memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from plait import _native
from plait.exec.native.tape import Scheme, Tape
from plait.model.ops import Embed, Linear
from plait.model.program import Program
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


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
        name = op.table if isinstance(op, Embed) else op.weight if isinstance(op, Linear) else None
        if name is not None:
            schemes[name] = Scheme.F32 if dtype is WeightDtype.F32 else Scheme[weights[name].format.name]
    return schemes


def pack(tape: Tape, weights: WeightTable, schemes: Mapping[str, Scheme], num_threads: int) -> _native.Panels:
    """Every matrix of the tape, in its order."""
    shapes = [(int(schemes[name]), *_shape(weights[name])) for name in tape.matrices]
    panels = _native.Panels(shapes)
    files: dict[int, mmap.mmap] = {}
    for index, name in enumerate(tape.matrices):
        tensor = weights[name]
        panels.pack(index, _stored(tensor, schemes[name]), num_threads)
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


def _stored(tensor: Tensor, scheme: Scheme) -> Bytes:
    """The matrix's rows as a file of that scheme would hold them."""
    if scheme.name == tensor.format.name:
        return np.ascontiguousarray(tensor.raw())
    return tensor.dequantize().view(np.uint8)


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
