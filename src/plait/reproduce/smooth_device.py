"""Smooth device: times of steps by a law that no estimator of ours has, as a harder test than `plait.cost.synthetic`.

Owns the law. It is no model of a real device: its parameters are of the size that papers report, and its form differs
from the roofline's wherever real devices do.
Invariant: more share never takes longer; equal seeds give equal measurements.

    time       = sum over ops of (compute^p + memory^p)^(1/p) + launches * launch_s        no sharp corner
    compute    = flops of whole blocks / (C n / N * (1 - idle in the last wave) * efficiency of products or attention)
    memory     = bytes / (D * efficiency * (1 - exp(-n / n_s)) * part)                     no sharp knee
    part       = 1 / (1 + e x), x = demand of the other / D                                at any load
    measured   = time, and noise as of the synthetic device
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp
from statistics import NormalDist

from plait.core.errors import UsageError
from plait.core.step import StepShape
from plait.cost.grid import Axis, Grid
from plait.cost.hardware import HardwareSpec
from plait.cost.needs import OpNeeds, ProgramNeeds, rest_key, totals
from plait.cost.solo import Sample, prefill_shape
from plait.cost.synthetic import NOISE_95
from plait.cost.waves import idle_ratio
from plait.model.cost import Formats, cost_sheet
from plait.model.program import Program


@dataclass(frozen=True, slots=True)
class Law:
    sharpness: float = 4.0
    """p: how sharply time turns from one bound to the other; the roofline's is without end."""
    product_efficiency: float = 0.77
    attention_efficiency: float = 0.55
    memory_efficiency: float = 0.85
    saturation: float = 0.4
    """n_s by the device's knee: at the knee 1 - exp(-1 / 0.4), 92 %, of the bandwidth is reached."""
    contention: float = 1.7
    """e: slower by so much if others ask for all of the bandwidth. A prefill, bound by compute, asks for a tenth."""
    launch_s: float = 2e-6


SIGMA = NOISE_95 / NormalDist().inv_cdf(0.975)


class SmoothDevice:
    """One program on a device of `hardware`'s peaks, which must name its tiles; asked as `SyntheticDevice` is."""

    def __init__(self, program: Program, formats: Formats, hardware: HardwareSpec, seed: int) -> None:
        if hardware.tiles is None:
            raise UsageError(f"hardware {hardware.name} names no tiles, so no synthetic device is made of it")
        sheet = cost_sheet(program, formats)
        self._needs = ProgramNeeds(sheet, hardware.tiles)
        self._blocks_per_unit = hardware.tiles.blocks_per_unit
        self._num_launches = sum(kind.count * len(kind.rates) for kind in sheet.kinds)
        self._hardware = hardware
        self._law = Law()
        self._seed = seed

    def mean_s(self, shape: StepShape, share: int, beside: StepShape | None = None) -> float:
        """Without noise."""
        return self._at(shape, share, self._bandwidth(share, beside))

    def sample(self, shape: StepShape, share: int, beside: StepShape | None = None, repeats: int = 30) -> Sample:
        """The mean of repetitions."""
        company = () if beside is None else (beside,)
        rng = random.Random(repr((self._seed, share, shape.chunks[:1], len(shape.chunks), company)))
        noise = sum(1.0 + rng.gauss(0.0, SIGMA) for _ in range(repeats)) / repeats
        return Sample(shape, share, self.mean_s(shape, share, beside) * noise, company)

    def bandwidth(self, shares: Sequence[int], prefills: Sequence[int]) -> Grid:
        """What a copy on a share reads beside a prefill of so many tokens on the rest."""
        axes = (Axis("share", tuple(map(float, shares))), Axis("beside", tuple(map(float, prefills)), is_log=True))
        return Grid(axes, tuple(self._bandwidth(share, prefill_shape(n)) for share in shares for n in prefills))

    def _bandwidth(self, share: int, beside: StepShape | None = None) -> float:
        law, hardware = self._law, self._hardware
        reached = 1.0 - exp(-share / (law.saturation * hardware.memory_knee_units))
        alone = hardware.bytes_per_s * law.memory_efficiency * reached
        if beside is None:
            return alone
        demand = self._demand(beside, max(1, hardware.share_units - share))
        return alone / (1.0 + law.contention * demand / hardware.bytes_per_s)

    def _demand(self, shape: StepShape, share: int) -> float:
        """Bytes per second that a step draws while it runs alone."""
        _, moved = totals((*self._needs.rest(rest_key(shape)), *self._needs.attention(shape)))
        return moved / self._at(shape, share, self._bandwidth(share))

    def _at(self, shape: StepShape, share: int, bandwidth: float) -> float:
        law, parts = self._law, (self._needs.rest(rest_key(shape)), self._needs.attention(shape))
        found = self._num_launches * law.launch_s
        for needs, efficiency in zip(parts, (law.product_efficiency, law.attention_efficiency), strict=True):
            found += self._sum(needs, share, efficiency, bandwidth)
        return found

    def _sum(self, needs: Iterable[OpNeeds], share: int, efficiency: float, bandwidth: float) -> float:
        power, found = self._law.sharpness, 0.0
        for op in needs:
            rate = self._hardware.compute_rate(share, op.numbers) * efficiency
            if op.blocks:
                rate *= 1.0 - idle_ratio(op.blocks, share, self._blocks_per_unit)
            compute_s, memory_s = op.flops / rate, op.bytes / bandwidth
            longer, shorter = max(compute_s, memory_s), min(compute_s, memory_s)
            found += longer * (1.0 + (shorter / longer) ** power) ** (1.0 / power) if longer > 0 else 0.0
        return found
