"""Estimators of Bullet and MuxWise: what they learn from few measurements, on a device whose law is known.

Owns the sample budgets, the states that nothing was fitted to, and the comparison with simpler predictors. The device
is synthetic (`plait.cost.synthetic`); what a real processor says comes from the file that `plait calibrate` writes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from plait.cost.alpha import constant_alpha
from plait.cost.calibrated import CalibratedModel
from plait.cost.calibration import Calibration, HeldOut
from plait.cost.estimators import held_out
from plait.cost.fit import fit_calibration
from plait.cost.grid import Axis, Grid
from plait.cost.guard import GuardTable, grid_points
from plait.cost.hardware import HardwareSpec, find_hardware
from plait.cost.partitions import splits
from plait.cost.roofline import RooflineModel
from plait.cost.solo import (
    Sample,
    SoloModel,
    decode_features,
    decode_shape,
    fit_solo,
    prefill_features,
    prefill_shape,
)
from plait.cost.synthetic import Law, SyntheticDevice
from plait.reproduce.band import Between, Printed
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import BULLET, MUXWISE, Answer, Evidence, Figure, Measured, NotRun, Reference, Sampled
from plait.reproduce.models import BF16_NEAR_CACHE, llama_8b

SEEDS = range(5)
HELD_OUT_STATES = 500
TIMES = 30
"""Repetitions of each measurement, as in the paper."""

SHARES, PREFILL_SHARES = (24, 48, 72, 96), (24, 60, 96)
BATCHES, CONTEXTS = (1, 8, 32, 64, 96, 128), (1024, 4096, 16384)
PROMPTS = (1024, 4096, 16384)
# 4 * 6 * 3 * 4 = 288 decode states, within Bullet's 308; 3 * 3 * 2 = 18 prefill states.

THETA, PHI = (2e-10, 3e-10, 9e-6, 4e-3), (1.2e-8, 4e-5, 8e-3)
"""Planted, in seconds: of the size that an A100 would have for Llama-3.1-8B."""
NOISE = 0.03

NOISE_95 = Reference(BULLET, "2.3", "95 % of measurements lie within 6.8 % of their mean")
SLOWDOWN = Reference(MUXWISE, "3.3", "decode slows down by at most 1.2x on A100")
BETTER = Reference(BULLET, "2.3, Fig. 11", "a contention-blind predictor is much worse for decode, a linear one is bad")
CONTINUES = Reference(BULLET, "2.3, Fig. 11", "accurate outside of the sampled range")
NOT_MEASURED = "no hardware file with held-out errors was given; plait calibrate writes one, --hardware FILE names it"
RATIO = (
    "mean error over that of the simpler predictor; the paper's bars have no numbers, so less than half is asked for"
)

WITHIN, BEYOND = "decode to 16k", "decode to 32k, batch 256"
PREFILL, HERE = "prefill to 16k", "this machine's steps"
BLIND, LINEAR = "over contention-blind", "over linear"


def device() -> SyntheticDevice:
    return SyntheticDevice(llama_8b(), BF16_NEAR_CACHE, find_hardware("a100-80g"))


# MuxWise's regression


def planted(rng: random.Random, noise: float) -> list[Sample]:
    """Steps whose times follow the two equations, each off by a random part."""
    found = []
    for new, reused in product((512, 2048, 8192, 32768), (0, 2048, 8192, 32768)):
        shape = prefill_shape(new, reused)
        found.append(Sample(shape, 108, _times(THETA, prefill_features(shape)) * (1 + noise * rng.gauss(0, 1))))
    for rows, context in product(BATCHES, (1024, 4096, 16384, 65536)):
        shape = decode_shape(rows, context)
        found.append(Sample(shape, 108, _times(PHI, decode_features(shape)) * (1 + noise * rng.gauss(0, 1))))
    return found


def _times(coefficients: Sequence[float], features: Sequence[float]) -> float:
    return sum(one * value for one, value in zip(coefficients, features, strict=True))


def coefficient_error(found: Sequence[float], planted_ones: Sequence[float]) -> float:
    """Percent, the largest."""
    return 100 * max(abs(one - true) / true for one, true in zip(found, planted_ones, strict=True))


def deviation(samples: Iterable[Sample], model: SoloModel, *, of_prefill: bool) -> float:
    """Percent by which the fit misses a measurement at most."""
    chosen = [sample for sample in samples if (sample.shape.num_tokens > len(sample.shape.chunks)) == of_prefill]
    return 100 * max(abs(model.seconds(sample.shape, sample.share) / sample.seconds - 1) for sample in chosen)


def _regression_answers() -> dict[str, Answer]:
    exact = fit_solo(planted(random.Random(0), 0.0))
    noisy = [planted(random.Random(seed), NOISE) for seed in SEEDS]
    fits = [(samples, fit_solo(samples)) for samples in noisy]
    return {
        "theta of prefill, no noise": coefficient_error(exact.prefill[108], THETA),
        "phi of decode, no noise": coefficient_error(exact.decode[108], PHI),
        "prefill, 3 % noise": Sampled(tuple(deviation(one, fit, of_prefill=True) for one, fit in fits)),
        "decode, 3 % noise": Sampled(tuple(deviation(one, fit, of_prefill=False) for one, fit in fits)),
    }


# Bullet's roofline with alpha


@dataclass(frozen=True, slots=True)
class Fitted:
    decode: list[Sample]
    prefill: list[Sample]
    model: CalibratedModel
    solo: SoloModel


def fitted(rng: random.Random) -> Fitted:
    """Bullet's offline procedure on the synthetic device: bandwidth beside prompts, then few states end to end."""
    real = device()
    decode = [
        real.measured(decode_shape(rows, context), share, rng, (prefill_shape(tokens),) if tokens else (), TIMES)
        for share, rows, context, tokens in product(SHARES, BATCHES, CONTEXTS, (0, *PROMPTS))
    ]
    prefill = [
        real.measured(prefill_shape(tokens), share, rng, (decode_shape(rows, 4096),) if rows else (), TIMES)
        for share, tokens, rows in product(PREFILL_SHARES, PROMPTS, (0, 32))
    ]
    bandwidth = Grid(
        (Axis("share", tuple(map(float, SHARES))), Axis("beside", tuple(map(float, PROMPTS)), is_log=True)),
        tuple(real.bandwidth(share, (prefill_shape(tokens),)) for share, tokens in product(SHARES, PROMPTS)),
    )
    spec = replace(find_hardware("a100-80g"), worst_slowdown=None)
    roofline = RooflineModel(llama_8b(), BF16_NEAR_CACHE, spec, bandwidth=bandwidth)
    about = Calibration("Llama-3.1-8B", "a synthetic device", "simulated", 1, constant_alpha(), 0.0, 0.0)
    found = fit_calibration(decode + prefill, roofline, about, GuardTable((), (), (), (), (), {}))
    return Fitted(decode, prefill, CalibratedModel(roofline, found), found.solo or SoloModel({}, {}))


def unseen_decode(rng: random.Random, longest: int, largest: int) -> list[Sample]:
    """Random states beside random prompts, lengths and batches log-uniform, on shares that were measured."""
    real = device()
    return [
        real.measured(
            decode_shape(_draw(rng, 1, largest), _draw(rng, 1024, longest)),
            rng.choice(SHARES),
            rng,
            (prefill_shape(_draw(rng, 1024, longest)),),
            TIMES,
        )
        for _ in range(HELD_OUT_STATES)
    ]


def unseen_prefill(rng: random.Random) -> list[Sample]:
    real = device()
    return [
        real.measured(
            prefill_shape(_draw(rng, 1024, 16384)),
            rng.choice(PREFILL_SHARES),
            rng,
            (decode_shape(_draw(rng, 1, 128), _draw(rng, 1024, 16384)),),
            TIMES,
        )
        for _ in range(HELD_OUT_STATES)
    ]


def _draw(rng: random.Random, low: int, high: int) -> int:
    return min(high, int(low * (high / low) ** rng.random()))


def _estimator_answers() -> dict[str, Answer]:
    found: dict[str, list[float]] = {}
    for seed in SEEDS:
        rng = random.Random(seed)
        fit = fitted(rng)
        results = {
            WITHIN: held_out(fit.decode, unseen_decode(rng, 16384, 128), fit.model, fit.solo),
            BEYOND: held_out(fit.decode, unseen_decode(rng, 32768, 256), fit.model, fit.solo),
            PREFILL: held_out(fit.prefill, unseen_prefill(rng), fit.model, fit.solo),
        }
        for states, result in results.items():
            for name, value in _ratios(states, result).items():
                found.setdefault(name, []).append(value)
    del found[f"{PREFILL}, {BLIND}"]
    return {name: Sampled(tuple(values)) for name, values in found.items()}


def _ratios(states: str, errors: HeldOut) -> dict[str, float]:
    return {
        f"{states}, {BLIND}": errors.alpha_mean / errors.solo_mean,
        f"{states}, {LINEAR}": errors.alpha_mean / errors.linear_mean,
    }


@cache
def _law_answers() -> dict[str, Answer]:
    real, rng = device(), random.Random(0)
    shape = decode_shape(32, 4096)
    true_s = real.seconds(shape, 48)
    parts = sorted(abs(real.measured(shape, 48, rng).seconds / true_s - 1) for _ in range(2000))
    pairs = grid_points([split.decode for split in splits(108)], (1, 16, 64, 128))
    slowest = 1.0
    for pair in pairs:
        decode = decode_shape(int(pair.batch), int(pair.context))
        prefill = prefill_shape(int(pair.new_tokens), int(pair.reused_tokens))
        slowest = max(slowest, real.seconds(decode, pair.share, (prefill,)) / real.seconds(decode, pair.share))
    return {"noise of 95 % of measurements": 100 * parts[int(0.95 * len(parts))], "largest slowdown of decode": slowest}


def _machine_answers(spec: HardwareSpec | None) -> dict[str, Answer]:
    calibration = None if spec is None else spec.calibration
    errors = None if calibration is None or calibration.evidence != "real-cpu" else calibration.held_out
    names = (f"{HERE}, {BLIND}", f"{HERE}, {LINEAR}")
    if calibration is None or errors is None or not errors.solo_mean or not errors.linear_mean:
        return dict.fromkeys(names, NotRun(NOT_MEASURED))
    return {name: Measured(value, calibration.calibrated_on) for name, value in _ratios(HERE, errors).items()}


def _figures() -> tuple[Figure, ...]:
    regression = Reference(MUXWISE, "3.3", "equations 1 and 2")
    bullet = [
        _ratio(name, reference)
        for name, reference in (
            (f"{WITHIN}, {BLIND}", BETTER),
            (f"{WITHIN}, {LINEAR}", BETTER),
            (f"{BEYOND}, {BLIND}", CONTINUES),
            (f"{BEYOND}, {LINEAR}", CONTINUES),
            (f"{PREFILL}, {LINEAR}", BETTER),
        )
    ]
    machine = [
        Figure(f"{HERE}, {by}", BETTER, "worse", Between(high=0.5), "x", Evidence.REAL_CPU, note=RATIO)
        for by in (BLIND, LINEAR)
    ]
    return (
        Figure("theta of prefill, no noise", regression, "", unit=" %", worked_out="0.000"),
        Figure("phi of decode, no noise", regression, "", unit=" %", worked_out="0.000"),
        _noisy("prefill", "8.16"),
        _noisy("decode", "8.84"),
        Figure(
            "noise of 95 % of measurements",
            NOISE_95,
            f"{100 * Law().noise_95:g}",
            Printed(),
            " %",
            Evidence.SIMULATED,
            calibrated_on=(NOISE_95,),
        ),
        Figure(
            "largest slowdown of decode", SLOWDOWN, "1.2", Printed(), "x", Evidence.SIMULATED, calibrated_on=(SLOWDOWN,)
        ),
        *bullet,
        *machine,
    )


def _noisy(phase: str, printed: str) -> Figure:
    return Figure(
        f"{phase}, 3 % noise",
        Reference(MUXWISE, "3.3", f"largest deviation of {phase}"),
        printed,
        Between(high=9.0),
        " %",
        Evidence.SIMULATED,
        note="planted coefficients and noise of 3 %, where the paper fits measurements of a GPU",
    )


def _ratio(name: str, reference: Reference) -> Figure:
    return Figure(
        name,
        reference,
        "worse",
        Between(high=0.5),
        "x",
        Evidence.SIMULATED,
        calibrated_on=(NOISE_95, SLOWDOWN),
        note=RATIO,
    )


def estimator_case(spec: HardwareSpec | None) -> Case:
    """`spec`: a device whose file has held-out errors; None: what needs one is not run."""

    def work_out() -> Answers:
        return {**_regression_answers(), **_law_answers(), **_estimator_answers(), **_machine_answers(spec)}

    return Case("estimator", "what few measurements teach", BULLET, _figures(), work_out)
