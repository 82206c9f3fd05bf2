"""Blocking: how the runtime cuts operations into units, where that is not left to its own estimates.

Owns the numbers and the names of products; csrc/runtime/blocking.h is the twin and owns the limits. Knows no file.
Invariant: products with equal names take the same time for the same rows; no number here can change a bit of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from plait.exec.native.tape import NONE, OpKind, OpSpec, Scheme, Tape
from plait.weights.table import WeightTable

ROW_BUCKETS = 21
"""Numbers of rows that share blocks: 1, 2, 3 to 4, 5 to 8, and so on up to 2^20."""


@dataclass(frozen=True, slots=True)
class UnitSizes:
    """Sizes of units by rough cost, in microseconds; defaults are those of the runtime."""

    smallest_us: float = 8.0
    """Below this a unit is not worth being claimed."""
    largest_us: float = 80.0
    per_worker: float = 4.0
    """Units for each worker, between the two."""
    largest_attend_us: float = 250.0
    """Of attention with many rows, which share the reading of keys."""
    least_attend_rows: int = 8
    stack_tasks_per_worker: int = 9


@dataclass(frozen=True, slots=True)
class GemmBlocks:
    most_rows: int
    """Blocks of rows are as few and as even as this allows."""
    panels_per_block: int
    """Panels of 16 columns that one unit multiplies with its rows."""


@dataclass(frozen=True, slots=True)
class Blocking:
    sizes: UnitSizes = UnitSizes()
    products: Mapping[str, Mapping[int, GemmBlocks]] = field(default_factory=dict)
    """By name, then by bucket. What is not there is cut by rough cost."""


def row_bucket(num_rows: int) -> int:
    return min((num_rows - 1).bit_length(), ROW_BUCKETS - 1)


def product_names(tape: Tape, schemes: Mapping[str, Scheme], weights: WeightTable) -> dict[int, str]:
    """The name of every product of a tape, by operation: its depth and its matrices' columns and schemes."""
    named: dict[int, str] = {}
    for index, op in enumerate(tape.ops):
        if op.kind in (OpKind.GEMM, OpKind.GEMM_GLU):
            named[index] = _name(
                op, [tape.matrices[matrix] for matrix in op.matrix if matrix != NONE], schemes, weights
            )
    return named


def gemm_entries(blocking: Blocking, names: Mapping[int, str]) -> list[tuple[int, int, int, int]]:
    """(operation, bucket, most rows, panels per block), as the runtime takes them."""
    return [
        (op, bucket, blocks.most_rows, blocks.panels_per_block)
        for op, name in names.items()
        for bucket, blocks in blocking.products.get(name, {}).items()
    ]


def _name(op: OpSpec, matrices: list[str], schemes: Mapping[str, Scheme], weights: WeightTable) -> str:
    columns = [f"{weights[name].shape[0]} {schemes[name].name.lower()}" for name in matrices]
    joined = (" * " if op.kind is OpKind.GEMM_GLU else " + ").join(columns)
    return f"{weights[matrices[0]].shape[1]} to {joined}"
