"""Roofline: a step's price from what its operations need and what a share of the device can do.

Owns the SM-scaling roofline of Bullet (ASPLOS 2026, section 2.3): per op, time = max(flops / C, bytes / D, comm bytes /
W) with C linear in the share, D and W linear up to a knee; summed over ops, times a calibration factor, plus overhead.
docs/concepts/cost-model.md has the formulas and what they leave out.
Invariant: a price depends on its arguments alone, and more share never costs more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from plait.core.errors import InvariantError, UsageError
from plait.core.step import StepShape
from plait.cost.grid import Grid
from plait.cost.hardware import HardwareSpec
from plait.cost.model import Bound, StepPrice, both
from plait.cost.needs import REMEMBERED, OpNeeds, ProgramNeeds, RestKey, rest_key, totals
from plait.cost.rest_times import RestTimes
from plait.cost.solo import phases
from plait.cost.waves import idle_ratio
from plait.model.cost import Formats, Parallel, cost_sheet
from plait.model.program import Program

Seconds = tuple[float, float, float]
"""Of compute, memory and link: each op counts under what bounds it."""


@dataclass(frozen=True, slots=True)
class Roof:
    """What a step takes on a share if every op keeps to its roof: no overhead, no calibration."""

    expected: Seconds
    worst_s: float

    @property
    def seconds(self) -> float:
        return sum(self.expected)


class RooflineModel:
    """Implements `plait.cost.model.CostModel` for one program on one device.

    `alpha` is measured time over roofline time (Bullet reports a mean of 1.61 on an A100); 1 is the bare roofline.
    With `waves`, products and the attention of prompts take the time of whole blocks on whole units, on a device that
    has tiles; a measured alpha has that in it already. `bandwidth`: D_p,sl, what a share reads beside a prefill of so
    many tokens, in place of an estimate.
    """

    def __init__(
        self,
        program: Program,
        formats: Formats,
        hardware: HardwareSpec,
        parallel: Parallel | None = None,
        alpha: float = 1.0,
        *,
        waves: bool = False,
        bandwidth: Grid | None = None,
    ) -> None:
        if not alpha > 0:
            raise InvariantError(f"calibration factor alpha is {alpha}; it must be positive")
        if parallel is not None and parallel.tensor > 1 and not hardware.comm_bytes_per_s:
            raise UsageError(f"hardware {hardware.name} has no link to other devices; choose tensor parallelism 1")
        if waves and hardware.tiles is None:
            raise UsageError(f"hardware {hardware.name} names no tiles, so its waves cannot be counted; leave them out")
        sheet = cost_sheet(program, formats, parallel)
        self._needs = ProgramNeeds(sheet, hardware.tiles if waves else None)
        self._rest = None if waves else RestTimes(sheet, hardware.relative_rate)
        """None: operations are counted in blocks, one by one."""
        self._hardware = hardware
        self._alpha = alpha
        self._bandwidth = bandwidth
        self._blocks_per_unit = hardware.tiles.blocks_per_unit if hardware.tiles is not None else 1
        self._roof = lru_cache(REMEMBERED)(self._find_roof)
        self._rest_seconds = lru_cache(REMEMBERED)(self._time_rest)
        self._price = lru_cache(REMEMBERED)(self._compute)
        self._price_both = lru_cache(REMEMBERED)(self._compute_both)
        self._others = lru_cache(REMEMBERED)(self._count_others)
        self.bandwidths = lru_cache(REMEMBERED)(self._find_bandwidths)
        """(share, beside): memory bandwidth of this share, expected, and if all others drew as much as they can."""

    @property
    def hardware(self) -> HardwareSpec:
        return self._hardware

    @property
    def alpha(self) -> float:
        return self._alpha

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        return self._price(shape, share, tuple(beside))

    def run_prices(self, shape: StepShape, share: int) -> Iterator[float]:
        """Expected seconds of step after step alone on a share, without end: the first of `shape`, and in each further
        one every chunk one token later. Exactly the numbers that `price` gives for them one by one.
        """
        overhead_s = self.overhead_s(shape)
        return (self._alpha * roof_s + overhead_s for roof_s in self.run_roofs(shape, share))

    def roof(self, shape: StepShape, share: int, beside: tuple[StepShape, ...] = ()) -> Roof:
        """The part of a price that the device's roofs give."""
        return self._roof(shape, share, beside)

    def run_roofs(self, shape: StepShape, share: int) -> Iterator[float]:
        """Seconds of `roof` along a run as in `run_prices`."""
        self._check(share)
        bytes_per_s, key = self._hardware.memory_rate(share), rest_key(shape)
        return (
            sum(self._expected(key, attention, share, bytes_per_s, is_alone=True))
            for attention in self._needs.attention_of_run(shape)
        )

    def price_both(self, first: StepShape, second: StepShape, share: int) -> StepPrice:
        """As `plait.cost.model.pair_prices` has it."""
        return self._price_both(first, second, share)

    def _compute_both(self, first: StepShape, second: StepShape, share: int) -> StepPrice:
        if not first.chunks or not second.chunks:
            return self.price(first if first.chunks else second, share)
        if self._rest is None:
            return self.price(both(first, second), share)
        chunks = len(first.chunks) + len(second.chunks)
        return price_of(self.roof_of_both(first, second, share), self._alpha, self._overhead_s(chunks))

    def roof_of_both(self, first: StepShape, second: StepShape, share: int) -> Roof:
        """Of a step of the chunks of both, alone, without making it."""
        if self._rest is None:
            return self.roof(both(first, second), share)
        self._check(share)
        one, other = self._needs.rest_key(first), self._needs.rest_key(second)
        key = (one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3])
        attention, rate = self._needs.attention_of_both(first, second), self._hardware.memory_rate(share)
        found = self._expected(key, attention, share, rate, is_alone=True)
        if not self._needs.is_sparse:
            return Roof(found, sum(found))
        return Roof(found, sum(self._step_seconds(key, attention, share, rate, worst=True)))

    def parts(self, shape: StepShape, share: int) -> tuple[float, float]:
        """Seconds of a step that is cut into two halves whose products do not run at once, alone on a share: of all but
        the attention of decode, which reads weights once for each half, and of that attention.
        """
        self._check(share)
        prefill, decode = phases(shape)
        return self._halves(shape, prefill, share), self._attention_s(self._needs.attention(decode), share)

    def run_parts(self, shape: StepShape, share: int) -> Iterator[tuple[float, float]]:
        """`parts` along a run of decode steps, as in `run_prices`."""
        products = self._halves(shape, StepShape(()), share)
        return ((products, self._attention_s(needs, share)) for needs in self._needs.attention_of_run(shape))

    def _halves(self, shape: StepShape, prefill: StepShape, share: int) -> float:
        tokens, outputs, chunks, snapshots = self._needs.rest_key(shape)
        tokens, chunks = -(-tokens // 2), -(-chunks // 2)
        half = (tokens, min(-(-outputs // 2), tokens), chunks, snapshots)
        bytes_per_s = self._hardware.memory_rate(share)
        of_prompts = self._attention_s(self._needs.attention(prefill), share) if prefill.chunks else 0.0
        return 2 * sum(self._rest_seconds(half, share, bytes_per_s, False)) + of_prompts

    def _attention_s(self, needs: Sequence[OpNeeds], share: int) -> float:
        return sum(self._seconds(needs, share, self._hardware.memory_rate(share), worst=False))

    def overhead_s(self, shape: StepShape) -> float:
        return self._overhead_s(len(shape.chunks))

    def _overhead_s(self, num_chunks: int) -> float:
        return self._hardware.step_overhead_s + self._hardware.seq_overhead_s * num_chunks

    def intensity(self, shape: StepShape) -> float:
        """FLOP per byte of memory of a step; above `balance` of a share it is bound by compute there."""
        flops, moved = totals((*self._needs.rest(rest_key(shape)), *self._needs.attention(shape)))
        return flops / moved if moved else 0.0

    def balance(self, share: int) -> float:
        """FLOP per byte at which a share computes as long as it reads."""
        return self._hardware.compute_rate(share) / self._hardware.memory_rate(share)

    def _find_bandwidths(self, share: int, beside: tuple[StepShape, ...]) -> tuple[float, float]:
        """Memory bandwidth of this share beside others: expected, and if they all drew as much as their shares can.

        The others are taken to divide the rest of the units evenly. Expected is what was measured, or what their
        average demand leaves, but never less than the worst: a part in proportion to what each share could draw alone.
        """
        hardware = self._hardware
        alone, peak = hardware.memory_rate(share), hardware.bytes_per_s
        if not beside:
            return alone, alone
        other_share = max(1, (hardware.share_units - share) // len(beside))
        worst = alone * min(1.0, peak / (alone + hardware.memory_rate(other_share) * len(beside)))
        prefill = sum(phases(other)[0].num_tokens for other in beside)
        if self._bandwidth is not None and prefill:
            measured = min(alone, self._bandwidth.at((float(share), float(prefill))))
            return (measured, min(worst, measured)) if measured > 0 else (worst, worst)
        demand = sum(self._demand(other, other_share) for other in beside)
        return max(worst, min(alone, peak - demand)), worst

    def _compute(self, shape: StepShape, share: int, beside: tuple[StepShape, ...]) -> StepPrice:
        roof, overhead_s = self.roof(shape, share, beside), self.overhead_s(shape)
        return price_of(roof, self._alpha, overhead_s)

    def _find_roof(self, shape: StepShape, share: int, beside: tuple[StepShape, ...]) -> Roof:
        self._check(share)
        expected, worst = self.bandwidths(share, beside)
        attention, key = self._needs.attention(shape), self._needs.rest_key(shape)
        found = self._expected(key, attention, share, expected, is_alone=not beside)
        if worst == expected and not self._needs.is_sparse:
            return Roof(found, sum(found))
        worst_s = sum(self._step_seconds(key, attention, share, worst, worst=True))
        if beside and (cap := self._hardware.worst_slowdown) is not None:
            worst_s = min(worst_s, cap * self.roof(shape, share).worst_s)
        return Roof(found, worst_s)

    def _expected(
        self, key: RestKey, attention: Sequence[OpNeeds], share: int, bytes_per_s: float, *, is_alone: bool
    ) -> Seconds:
        """Seconds at a bandwidth; neighbours cost at most so much as was ever seen."""
        found = self._step_seconds(key, attention, share, bytes_per_s)
        cap = self._hardware.worst_slowdown
        if is_alone or cap is None:
            return found
        alone = self._step_seconds(key, attention, share, self._hardware.memory_rate(share))
        return found[0], found[1] - max(0.0, sum(found) - cap * sum(alone)), found[2]

    def _check(self, share: int) -> None:
        if not 1 <= share <= self._hardware.share_units:
            name, units = self._hardware.name, self._hardware.share_units
            raise InvariantError(f"share is {share} of {units} units of {name}")

    def _demand(self, shape: StepShape, share: int) -> float:
        """Bytes per second that a step draws on average while it runs alone on a share."""
        attention, key = self._needs.attention(shape), self._needs.rest_key(shape)
        seconds = sum(self._step_seconds(key, attention, share, self._hardware.memory_rate(share)))
        if self._rest is None:
            _, moved = totals((*self._needs.rest(key), *attention))
        else:
            _, moved = totals((*self._others(key), *attention))
            moved += self._rest.moved(key)
        return moved / seconds if seconds > 0 else 0.0

    def _step_seconds(
        self, key: RestKey, attention: Sequence[OpNeeds], share: int, bytes_per_s: float, *, worst: bool = False
    ) -> Seconds:
        rest = self._rest_seconds(key, share, bytes_per_s, worst)
        more = self._seconds(attention, share, bytes_per_s, worst)
        return rest[0] + more[0], rest[1] + more[1], rest[2] + more[2]

    def _time_rest(self, key: RestKey, share: int, bytes_per_s: float, worst: bool) -> Seconds:
        if self._rest is None:
            return self._seconds(self._needs.rest(key), share, bytes_per_s, worst)
        compute_s, memory_s = self._rest.seconds(key, self._hardware.compute_rate(share), bytes_per_s)
        others = self._others(key)
        if not others:
            return compute_s, memory_s, 0.0
        more = self._seconds(others, share, bytes_per_s, worst)
        return compute_s + more[0], memory_s + more[1], more[2]

    def _count_others(self, key: RestKey) -> Sequence[OpNeeds]:
        return () if self._rest is None else self._rest.others(key)

    def _seconds(self, needs: Iterable[OpNeeds], share: int, bytes_per_s: float, worst: bool) -> Seconds:
        hardware = self._hardware
        compute_s = memory_s = comm_s = 0.0
        for op in needs:
            flops_s = op.flops / hardware.compute_rate(share, op.numbers)
            if op.blocks:
                flops_s /= 1.0 - idle_ratio(op.blocks, share, self._blocks_per_unit)
            bytes_s = (op.worst_bytes if worst else op.bytes) / bytes_per_s
            link_s = op.comm_bytes / hardware.comm_rate(share) if op.comm_bytes else 0.0
            if link_s > flops_s and link_s > bytes_s:
                comm_s += link_s
            elif flops_s > bytes_s:
                compute_s += flops_s
            else:
                memory_s += bytes_s
        return compute_s, memory_s, comm_s


def price_of(roof: Roof, alpha: float, overhead_s: float) -> StepPrice:
    """The price of a roof. What decides most of it is its bound."""
    compute_s, memory_s, comm_s = roof.expected
    largest_s, bound = compute_s, Bound.COMPUTE
    if memory_s > largest_s:
        largest_s, bound = memory_s, Bound.MEMORY
    if comm_s > largest_s:
        largest_s, bound = comm_s, Bound.COMM
    if overhead_s > alpha * largest_s:
        bound = Bound.OVERHEAD
    expected_s = alpha * (compute_s + memory_s + comm_s) + overhead_s
    return StepPrice(expected_s, max(expected_s, alpha * roof.worst_s + overhead_s), bound)
