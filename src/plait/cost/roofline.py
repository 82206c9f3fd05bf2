"""Roofline: a step's price from what its operations need and what a share of the device can do.

Owns the SM-scaling roofline of Bullet (ASPLOS'26): per op, time = max(flops / C, bytes / D, comm bytes / W) with C
linear in the share, D and W linear up to a knee; summed over ops, times a calibration factor, plus overhead.
docs/concepts/cost-model.md has the formulas and what they leave out.
Invariant: a price depends on its arguments alone, and more share never costs more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from plait.core.errors import InvariantError, UsageError
from plait.core.step import ChunkShape, StepShape
from plait.cost.hardware import HardwareSpec
from plait.cost.model import Bound, StepPrice
from plait.model.cost import CostSheet, Formats, OpCost, Parallel, cost_sheet
from plait.model.ops import Attend
from plait.model.program import Program

# A plan is priced a few times while it is chosen and run, then hardly ever again.
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class OpNeeds:
    """Totals of one op over all spans of its kind."""

    flops: float
    bytes: float
    worst_bytes: float
    comm_bytes: float


@dataclass(frozen=True, slots=True)
class _Rates:
    flops_per_s: float
    bytes_per_s: float
    comm_bytes_per_s: float


class RooflineModel:
    """Implements `plait.cost.model.CostModel` for one program on one device.

    `alpha` is measured time over roofline time (Bullet reports a mean of 1.61 on an A100); 1 is the bare roofline.
    """

    def __init__(
        self,
        program: Program,
        formats: Formats,
        hardware: HardwareSpec,
        parallel: Parallel | None = None,
        alpha: float = 1.0,
    ) -> None:
        if not alpha > 0:
            raise InvariantError(f"calibration factor alpha is {alpha}; it must be positive")
        if parallel is not None and parallel.tensor > 1 and not hardware.comm_bytes_per_s:
            raise UsageError(f"hardware {hardware.name} has no link to other devices; choose tensor parallelism 1")
        sheet = cost_sheet(program, formats, parallel)
        self._attention = _part_of(sheet, attention=True)
        self._rest = _part_of(sheet, attention=False)
        self._hardware = hardware
        self._alpha = alpha
        self._rest_needs = lru_cache(_REMEMBERED)(self._count_rest)
        self._needs = lru_cache(_REMEMBERED)(self._count_needs)
        self._price = lru_cache(_REMEMBERED)(self._compute)

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        return self._price(shape, share, tuple(beside))

    def _compute(self, shape: StepShape, share: int, beside: tuple[StepShape, ...]) -> StepPrice:
        hardware = self._hardware
        if not 1 <= share <= hardware.share_units:
            raise InvariantError(f"share is {share} of {hardware.share_units} units of {hardware.name}")
        needs = self._needs(shape)
        expected, worst = self._bandwidths(share, beside)
        times = _times(needs, self._rates(share, expected))
        worst_s = sum(_times(needs, self._rates(share, worst), worst=True).values())
        overhead_s = hardware.step_overhead_s + hardware.seq_overhead_s * len(shape.chunks)
        spent = {bound: self._alpha * seconds for bound, seconds in times.items()} | {Bound.OVERHEAD: overhead_s}
        return StepPrice(
            expected_s=sum(spent.values()),
            worst_s=self._alpha * worst_s + overhead_s,
            bound=max(spent, key=lambda bound: spent[bound]),
        )

    def _count_needs(self, shape: StepShape) -> tuple[OpNeeds, ...]:
        rest = self._rest_needs(shape.num_tokens, shape.num_outputs, len(shape.chunks))
        return rest + tuple(_needs_of(cost) for cost in self._attention.costs(shape))

    def _count_rest(self, num_tokens: int, num_outputs: int, num_chunks: int) -> tuple[OpNeeds, ...]:
        """All but attention, which alone depends on where chunks start: equal for every decode step of so many rows."""
        ones = [ChunkShape(0, 1, 0)] * (num_chunks - 1)
        chunks = [ChunkShape(0, num_tokens - len(ones), num_outputs), *ones] if num_chunks else []
        return tuple(_needs_of(cost) for cost in self._rest.costs(StepShape(tuple(chunks))))

    def _rates(self, share: int, bytes_per_s: float) -> _Rates:
        return _Rates(self._hardware.compute_rate(share), bytes_per_s, self._hardware.comm_rate(share))

    def _bandwidths(self, share: int, beside: tuple[StepShape, ...]) -> tuple[float, float]:
        """Memory bandwidth of this share beside others: expected, and if they all drew as much as their shares can.

        The others are taken to divide the rest of the units evenly. Expected is what their average demand leaves, but
        never less than the worst: a part in proportion to what each share could draw alone.
        """
        hardware = self._hardware
        alone, peak = hardware.memory_rate(share), hardware.bytes_per_s
        if not beside:
            return alone, alone
        other_share = max(1, (hardware.share_units - share) // len(beside))
        demand = sum(self._demand(self._needs(other), other_share) for other in beside)
        worst = alone * min(1.0, peak / (alone + hardware.memory_rate(other_share) * len(beside)))
        return max(worst, min(alone, peak - demand)), worst

    def _demand(self, needs: Sequence[OpNeeds], share: int) -> float:
        """Bytes per second that a step draws on average while it runs alone on a share."""
        seconds = sum(_times(needs, self._rates(share, self._hardware.memory_rate(share))).values())
        return sum(op.bytes for op in needs) / seconds if seconds > 0 else 0.0


def _part_of(sheet: CostSheet, *, attention: bool) -> CostSheet:
    kinds = [replace(k, rates=tuple(r for r in k.rates if isinstance(r.op, Attend) == attention)) for k in sheet.kinds]
    return replace(sheet, kinds=tuple(kinds))


def _needs_of(cost: OpCost) -> OpNeeds:
    moved = cost.cache_read + cost.cache_write + cost.activation_bytes
    return OpNeeds(
        flops=cost.count * cost.flops,
        bytes=cost.count * (moved + cost.weight_bytes),
        worst_bytes=cost.count * (moved + cost.weight_bytes * cost.worst_factor),
        comm_bytes=cost.count * cost.comm_bytes,
    )


def _times(needs: Iterable[OpNeeds], rates: _Rates, *, worst: bool = False) -> dict[Bound, float]:
    """Seconds of all ops, each counted under what bounds it."""
    compute_s = memory_s = comm_s = 0.0
    for op in needs:
        flops_s = op.flops / rates.flops_per_s
        bytes_s = (op.worst_bytes if worst else op.bytes) / rates.bytes_per_s
        link_s = op.comm_bytes / rates.comm_bytes_per_s if op.comm_bytes else 0.0
        if link_s > flops_s and link_s > bytes_s:
            comm_s += link_s
        elif flops_s > bytes_s:
            compute_s += flops_s
        else:
            memory_s += bytes_s
    return {Bound.COMPUTE: compute_s, Bound.MEMORY: memory_s, Bound.COMM: comm_s}
