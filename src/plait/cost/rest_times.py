"""Rest times: seconds of all operations but attention, on any rates, in a few additions.

Owns the order in which operations cease to be bound by memory. All but a few take a number of FLOP and bytes for each
row, and bytes once; those whose FLOP per byte are below what the rates give are bound by memory whatever the number of
rows, and their sums are known beforehand. Knows no device: rates come in.
Invariant: the times are those of each operation by itself, added up; only the order of the sum differs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from plait.core.step import ChunkShape, StepShape
from plait.cost.needs import OpNeeds, RestKey, needs_of
from plait.model.cost import CostSheet, KindRates, OpRates
from plait.model.ops import Attend, Experts, Space

Relative = Callable[[str | None], float]
"""How fast a number format is computed, by the device's usual one."""


@dataclass(frozen=True, slots=True)
class RowOp:
    """An operation in all its layers. FLOP count as those of the usual format that take as long."""

    flops: float
    row_bytes: float
    once_bytes: float


class RowOps:
    """Of one space of rows."""

    def __init__(self, ops: Iterable[RowOp]) -> None:
        ordered = sorted(ops, key=lambda op: op.flops / op.row_bytes)
        self._ratios = [op.flops / op.row_bytes for op in ordered]
        self._row_bytes = [0.0, *accumulate(op.row_bytes for op in ordered)]
        self._once_bytes = [0.0, *accumulate(op.once_bytes for op in ordered)]
        self._ops = [(op.flops, op.row_bytes, op.once_bytes) for op in ordered]

    def seconds(self, rows: int, flops_per_s: float, bytes_per_s: float) -> tuple[float, float]:
        """(bound by compute, bound by memory)."""
        if not rows:
            return 0.0, 0.0
        place = bisect_right(self._ratios, flops_per_s / bytes_per_s)
        compute_s, moved = 0.0, self._once_bytes[place] + rows * self._row_bytes[place]
        for flops, row_bytes, once in self._ops[place:]:
            flops_s, op_bytes = rows * flops / flops_per_s, once + rows * row_bytes
            if flops_s > op_bytes / bytes_per_s:
                compute_s += flops_s
            else:
                moved += op_bytes
        return compute_s, moved / bytes_per_s

    def moved(self, rows: int) -> float:
        return self._once_bytes[-1] + rows * self._row_bytes[-1] if rows else 0.0


class RestTimes:
    """Of one program on a device. `relative`: how fast it computes a format, by its usual one."""

    def __init__(self, sheet: CostSheet, relative: Relative) -> None:
        plain: dict[bool, list[RowOp]] = {False: [], True: []}
        others = []
        for kind in sheet.kinds:
            kept = [rates for rates in kind.rates if not isinstance(rates.op, Attend)]
            others.append(replace(kind, rates=tuple(rates for rates in kept if not _is_plain(rates))))
            for rates in kept:
                if _is_plain(rates):
                    plain[rates.space is Space.OUTPUTS].append(_row_op(rates, kind, relative))
        self._tokens, self._outputs = RowOps(plain[False]), RowOps(plain[True])
        self._others = replace(sheet, kinds=tuple(kind for kind in others if kind.rates))

    def seconds(self, key: RestKey, flops_per_s: float, bytes_per_s: float) -> tuple[float, float]:
        """(bound by compute, bound by memory), of all but `others`."""
        of_tokens = self._tokens.seconds(key[0], flops_per_s, bytes_per_s)
        of_outputs = self._outputs.seconds(key[1], flops_per_s, bytes_per_s)
        return of_tokens[0] + of_outputs[0], of_tokens[1] + of_outputs[1]

    def moved(self, key: RestKey) -> float:
        """Bytes of memory, of all but `others`."""
        return self._tokens.moved(key[0]) + self._outputs.moved(key[1])

    def others(self, key: RestKey) -> Sequence[OpNeeds]:
        """Needs of those whose weights, states or messages are no matter of rows."""
        if not self._others.kinds or not key[2]:
            return ()
        tokens, outputs, chunks, snapshots = key
        ones = [ChunkShape(0, 1, 0)] * (chunks - 1)
        shape = StepShape((ChunkShape(0, tokens - len(ones), outputs, snapshots), *ones))
        return tuple(map(needs_of, self._others.costs(shape)))


def _is_plain(rates: OpRates) -> bool:
    is_by_rows = not isinstance(rates.op, Experts) and not rates.state_per_chunk and not rates.comm
    return is_by_rows and rates.activations > 0


def _row_op(rates: OpRates, kind: KindRates, relative: Relative) -> RowOp:
    row_bytes = rates.weights_per_row + rates.cache_write + rates.activations
    return RowOp(
        kind.count * rates.flops / relative(rates.numbers), kind.count * row_bytes, kind.count * rates.weights_once
    )
