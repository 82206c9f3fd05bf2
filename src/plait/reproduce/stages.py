"""Stages: one model on one device, its law, and what policies learn of it before they are compared on it.

Owns the law of each device (a roofline with whole waves and one factor) and the estimators of the papers, made of
samples: Bullet's roofline with alpha, MuxWise's regression of solo runs with its contention guard. Runs no engine.
Invariant: an estimator sees samples alone, never the law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

from plait.core.step import StepShape
from plait.cost.alpha import AlphaTable, alpha_axes
from plait.cost.calibrated import CalibratedModel
from plait.cost.calibration import Calibration, without_overhead
from plait.cost.fit import fit_alpha, fit_mixed
from plait.cost.grid import Grid
from plait.cost.guard import GuardTable, grid_points, guard_from, pair_of, prefill_beside
from plait.cost.hardware import HardwareSpec
from plait.cost.model import Bound, CostModel, StepPrice
from plait.cost.partitions import splits
from plait.cost.roofline import RooflineModel
from plait.cost.solo import SoloModel, decode_shape, fit_solo, phases, prefill_shape
from plait.model.cost import Formats, Parallel
from plait.model.program import Program
from plait.reproduce.models import BF16_NEAR_CACHE
from plait.reproduce.noisy_device import NoisyDevice
from plait.sched.multiplex.presets import MUXWISE, PLAIT, TEMPORAL, Preset

PREFILLS = (64, 256, 512, 1024, 2048, 4096, 8192, 16384)
ROWS, CONTEXTS, PROMPTS = (2, 8, 16, 32, 64, 128), (64, 1024, 4096, 16384), (1024, 16384)
"""Bullet's smaller budget: with six splits, 288 states of decode of the 308 that it measures."""
MIXED_TOKENS, MIXED_ROWS = (256, 1024, 2048), (8, 64)
SOLO_ROWS, SOLO_CONTEXTS = (1, 4, 16, 64, 128, 256), (256, 1024, 4096, 16384, 65536)
MOST_TOKENS = 64
"""Times as many as the largest step that alphas name: far enough."""
SOLO_NEW, SOLO_REUSED = (256, 1024, 4096, 16384, 65536), (0, 2048, 16384, 65536)


@dataclass(frozen=True, slots=True)
class Stage:
    """`alphas`: what a step of so many tokens takes by its roof, in straight lines over the logarithm of tokens and
    flat beyond. Each of `ranks` devices has `cache_bytes`.
    """

    program: Program
    hardware: HardwareSpec
    alphas: tuple[tuple[int, float], ...]
    cache_bytes: int
    ranks: int = 1
    decode_alpha: float | None = None
    """Of decode steps, where it is another one."""
    launch_s: float = 0.0
    """Further for a step that has prompts and is launched whole, operation by operation."""
    layered_launch_s: float = 0.0
    """The same where layers are launched as graphs, as lanes do."""
    formats: Formats = BF16_NEAR_CACHE
    max_model_tokens: int = 16_384
    max_rows: int = 512
    tokens_per_block: int = 32

    def law(self) -> CalibratedModel:
        (least, first), (most, last) = self.alphas[0], self.alphas[-1]
        points = ((1, first), *((least, first),) * (least > 1), *self.alphas[1:], (MOST_TOKENS * most, last))
        axes = alpha_axes((float(self.hardware.share_units),), [float(tokens) for tokens, _ in points], (0.0,))
        prefill = Grid(axes, tuple(alpha for _, alpha in points))
        decode = prefill if self.decode_alpha is None else Grid.filled(axes, self.decode_alpha)
        overheads = self.hardware.step_overhead_s, self.hardware.seq_overhead_s
        about = Calibration(self.program.name, "a law", "simulated", 1, AlphaTable(prefill, decode), *overheads)
        return CalibratedModel(self.roofline(), about)

    def roofline(self) -> RooflineModel:
        """What is known of it before anything is measured."""
        return RooflineModel(self.program, self.formats, self.hardware, Parallel(self.ranks))

    @property
    def splits(self) -> tuple[int, ...]:
        """Units of decode in MuxWise's partitions."""
        return tuple(split.decode for split in splits(self.hardware.share_units))


class Lab:
    """A device of a stage, and what each estimator has learned of it; nothing is measured before it is asked for."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage, self.seed = stage, seed
        law, worst = stage.law(), stage.hardware.worst_slowdown or 1.0
        self.device = NoisyDevice(law, worst, seed, stage.layered_launch_s)
        self.whole_device = NoisyDevice(law, worst, seed, stage.launch_s)
        """As those find it that launch whole steps."""

    @cached_property
    def bullet(self) -> CalibratedModel:
        """Roofline with alpha (Bullet, section 2.3): few states end to end, and straight lines between them."""
        return CalibratedModel(self.stage.roofline(), self._alpha)

    @cached_property
    def muxwise(self) -> GuardedSolo:
        """Equations 1 and 2 for every partition, and the largest slowdown of each cell (MuxWise, section 3.3)."""
        return GuardedSolo(self._solo, self._guard, self.stage.hardware.step_overhead_s)

    @cached_property
    def plait(self) -> CalibratedModel:
        """Both: alpha for what is to be expected, the guard for the worst."""
        return CalibratedModel(self.stage.roofline(), replace(self._alpha, guard=self._guard))

    def prices(self, preset: Preset) -> CostModel:
        """By what a policy decides."""
        match preset.name:
            case MUXWISE.name | TEMPORAL.name:
                return self.muxwise
            case PLAIT.name:
                return self.plait
            case _:
                return self.bullet

    @cached_property
    def _alpha(self) -> Calibration:
        stage, sample, roofline = self.stage, self.device.sample, self.stage.roofline()
        units = stage.hardware.share_units
        decode = [
            sample(decode_shape(rows, context), share, (prefill_shape(tokens),))
            for share, rows, context, tokens in product(stage.splits, ROWS, CONTEXTS, PROMPTS)
        ]
        alone = [sample(decode_shape(rows, context), units) for rows, context in product(ROWS, CONTEXTS)]
        prefill = [sample(prefill_shape(tokens), share) for share, tokens in product((units // 2, units), PREFILLS)]
        samples = [*decode, *alone, *prefill]
        overheads = stage.hardware.step_overhead_s, stage.hardware.seq_overhead_s
        alpha = fit_alpha(samples, roofline)
        found = Calibration(stage.program.name, "a synthetic device", "simulated", len(samples), alpha, *overheads)
        mixed = [
            sample(StepShape((*prefill_shape(tokens).chunks, *decode_shape(rows, 1024).chunks)), units)
            for tokens, rows in product(MIXED_TOKENS, MIXED_ROWS)
        ]
        return replace(found, mixed=fit_mixed(mixed, CalibratedModel(roofline, without_overhead(found))))

    @cached_property
    def _solo(self) -> SoloModel:
        stage, sample, units = self.stage, self.device.sample, self.stage.hardware.share_units
        shares = sorted({units, *stage.splits, *(units - split for split in stage.splits)})
        decode = [
            sample(decode_shape(rows, context), share)
            for share, rows, context in product(shares, SOLO_ROWS, SOLO_CONTEXTS)
        ]
        prefill = [
            sample(prefill_shape(new, reused), share) for share, new, reused in product(shares, SOLO_NEW, SOLO_REUSED)
        ]
        return fit_solo([*decode, *prefill])

    @cached_property
    def _guard(self) -> GuardTable:
        pairs = []
        for pair in grid_points(self.stage.splits):
            shape = decode_shape(int(pair.batch), int(pair.context))
            beside = (prefill_shape(int(pair.new_tokens), int(pair.reused_tokens)),)
            seconds = self.device.sample(shape, pair.share, beside).seconds
            pairs.append((pair, seconds / self._solo.seconds(shape, pair.share)))
        return guard_from(pairs, self.stage.splits)


class GuardedSolo:
    """MuxWise's estimator, as a `plait.cost.model.CostModel`: what is expected is the time alone, and what a step may
    take at worst is that times the largest slowdown of the guard's cell.
    """

    def __init__(self, solo: SoloModel, guard: GuardTable, overhead_s: float) -> None:
        self._solo = solo
        self._guard = guard
        self._overhead_s = overhead_s
        self._alone_s = lru_cache(4096)(solo.seconds)

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        alone_s, is_decode = self._alone_s(shape, share), not phases(shape)[0].chunks
        prefill, worst_s = prefill_beside(beside), alone_s
        if prefill is not None and is_decode:
            worst_s *= self._guard.slowdown(pair_of(shape, share, prefill))
        bound = Bound.MEMORY if is_decode else Bound.COMPUTE
        return StepPrice(alone_s + self._overhead_s, worst_s + self._overhead_s, bound)
