"""Synthetic: a device that is not there, to try estimators on where no real one is at hand.

Owns a device model assembled from what Bullet and MuxWise publish (ASPLOS 2026): wave quantisation, a factor that falls
with size, bandwidth divided by demand, a largest slowdown, noise. What an estimator is not told, it has to find.
Whatever rests on it is evidence "simulated". Invariant: equal seeds give equal times, in whatever order states come.

    time = factor * sum over ops of max(flops / C in whole waves, bytes / B) + launch, times noise
    B    = D(n); of decode beside a prefill the part of D_peak that is in proportion to demand, if that is less
    noise: normal, 95 % within +-6.8 % of the mean (Bullet, 7,360 states)
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from plait.core.step import StepShape
from plait.cost.grid import Axis, Grid
from plait.cost.hardware import HardwareSpec
from plait.cost.needs import ProgramNeeds, rest_key, totals
from plait.cost.roofline import RooflineModel
from plait.cost.solo import Sample, phases, prefill_shape
from plait.model.cost import Formats, cost_sheet
from plait.model.program import Program

NOISE_95 = 0.068
_SIGMA = NOISE_95 / 1.96
FACTOR, SMALL_FACTOR, SMALL_TOKENS = 1.35, 0.55, 16.0
"""The factor is FACTOR for large steps and FACTOR + SMALL_FACTOR for tiny ones, half way at SMALL_TOKENS: kernels that
run short come less near to their roof. With whole waves on top, its mean over a profile is Bullet's 1.61.
"""
LAUNCH_S = 0.5e-3
PRESSURE = 2.0
"""What a byte that a prefill moves costs its neighbours, in bytes: chosen so that slowdowns reach MuxWise's largest."""
ERRATIC = 0.03
"""A slowdown differs from one split to the next by up to so much, and by no rule (MuxWise, figure of contention)."""


class SyntheticDevice:
    """Times of steps of one program. `hardware` has tiles and a largest slowdown."""

    def __init__(self, program: Program, formats: Formats, hardware: HardwareSpec, seed: int) -> None:
        self._hardware = hardware
        self._cap = hardware.worst_slowdown or 1.0
        bare = replace(hardware, worst_slowdown=None, step_overhead_s=0.0, seq_overhead_s=0.0)
        self._decode = RooflineModel(program, formats, bare)
        self._prefill = RooflineModel(program, formats, bare, waves=True)
        self._needs = ProgramNeeds(cost_sheet(program, formats))
        self._program, self._formats, self._bare = program, formats, bare
        self._seed = seed

    def mean_s(self, shape: StepShape, share: int, beside: StepShape | None = None) -> float:
        """Without noise."""
        is_prefill = bool(phases(shape)[0].chunks)
        alone_s = (self._prefill if is_prefill else self._decode).roof(shape, share).seconds
        factor = FACTOR + SMALL_FACTOR * SMALL_TOKENS / (SMALL_TOKENS + shape.num_tokens)
        seconds = alone_s * factor
        if beside is not None:
            seconds *= self._slowdown(shape, share, beside, alone_s)
        return seconds + LAUNCH_S

    def sample(self, shape: StepShape, share: int, beside: StepShape | None = None, repeats: int = 30) -> Sample:
        """The mean of repetitions, as a profile keeps it."""
        company = () if beside is None else (beside,)
        rng = random.Random(repr((self._seed, share, shape.chunks[:1], len(shape.chunks), company)))
        noise = sum(1.0 + rng.gauss(0.0, _SIGMA) for _ in range(repeats)) / repeats
        return Sample(shape, share, self.mean_s(shape, share, beside) * noise, company)

    def bandwidth(self, shares: Sequence[int], prefills: Sequence[int]) -> Grid:
        """D_p,sl: what a copy on a share reads beside a prefill of so many tokens on the rest, as probes find it."""
        axes = (Axis("share", tuple(map(float, shares))), Axis("beside", tuple(map(float, prefills)), is_log=True))
        return Grid(axes, tuple(self._left(share, prefill_shape(tokens)) for share in shares for tokens in prefills))

    def _left(self, share: int, beside: StepShape) -> float:
        """Bandwidth of a share that draws all it can beside a prefill."""
        peak, alone = self._hardware.bytes_per_s, self._hardware.memory_rate(share)
        other_share = max(1, self._hardware.share_units - share)
        _, moved = totals((*self._needs.rest(rest_key(beside)), *self._needs.attention(beside)))
        other = PRESSURE * moved / self._prefill.roof(beside, other_share).seconds
        left = alone if alone + other <= peak else min(alone, peak * alone / (alone + other))
        return max(left, alone / self._cap)

    def _slowdown(self, shape: StepShape, share: int, beside: StepShape, alone_s: float) -> float:
        """Of a decode step; a prefill is bound by compute and hardly feels it."""
        erratic = ERRATIC * self._erratic(share, beside)
        if phases(shape)[0].chunks:
            return 1.0 + erratic
        slowed = replace(self._bare, bytes_per_s=self._left(share, beside), memory_knee_units=1.0)
        found = RooflineModel(self._program, self._formats, slowed).roof(shape, share).seconds / alone_s
        return min(self._cap, max(1.0, found + erratic))

    def _erratic(self, share: int, beside: StepShape) -> float:
        """Between 0 and 1, by split and by the neighbour's order of magnitude."""
        return random.Random(repr((self._seed, share // 4, beside.num_tokens.bit_length()))).random()
