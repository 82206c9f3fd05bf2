"""Estimators of Bullet and MuxWise: what they learn from few measurements, on a device whose law is known.

Owns the sample budgets, the states that nothing was fitted to, and the comparison with simpler predictors. The device
is synthetic (`plait.cost.synthetic`); what a real processor says comes from the file that `plait calibrate` writes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import TypeAlias

from plait.cost import synthetic
from plait.cost.calibrated import CalibratedModel
from plait.cost.calibration import Calibration
from plait.cost.estimators import device_s, errors, fit_linear
from plait.cost.fit import fit_alpha
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
from plait.cost.synthetic import SyntheticDevice
from plait.reproduce.band import Between, Near, Printed
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import BULLET, MUXWISE, Answer, Evidence, Figure, Measured, NotRun, Reference, Sampled
from plait.reproduce.models import BF16, llama_8b
from plait.reproduce.smooth_device import SmoothDevice

SEEDS = range(5)
HELD_OUT_STATES = 80

SPLITS = tuple(split.decode for split in splits(108))
PROMPTS, PREFILLS = (1024, 16384), [2**p for p in range(6, 15)]


@dataclass(frozen=True, slots=True)
class Budget:
    """States of decode that are measured, each beside two prompts: as many as Bullet's smaller budget allows."""

    shares: Sequence[int]
    batches: Sequence[int]
    contexts: Sequence[int]


ALL_SPLITS = Budget(SPLITS, (2, 8, 16, 32, 64, 128), (64, 1024, 4096, 16384))  # 6 * 6 * 4 * 2 = 288 of 308
TWO_SHARES = Budget((28, 76), [2**p for p in range(1, 8)], [2**p for p in range(4, 15)])  # 2 * 7 * 11 * 2 = 308
BANDWIDTH_PROMPTS = (1024, 4096, 16384)

THETA, PHI = (2e-10, 3e-10, 9e-6, 4e-3), (1.2e-8, 4e-5, 8e-3)
"""Planted, in seconds: of the size that an A100 would have for Llama-3.1-8B."""
NOISE = 0.03

MEAN_ALPHA = Reference(BULLET, "2.3", "mean calibration factor")
NOISE_95 = Reference(BULLET, "2.3", "95 % of measurements lie within 6.8 % of their mean")
SLOWDOWN = Reference(MUXWISE, "3.3", "decode slows down by at most 1.2x on A100")
BETTER = Reference(BULLET, "2.3, Fig. 11", "a contention-blind predictor is much worse for decode, a linear one is bad")
TWO_POINTS = Reference(BULLET, "2.3, Fig. 9", "two SM points are enough for the whole curve of decode")
CONTINUES = Reference(BULLET, "2.3, Fig. 11", "accurate outside of the sampled range")
NOT_MEASURED = (
    "no hardware file with held-out errors of decode beside prompts was given; plait calibrate writes one, --hardware "
    "FILE names it"
)
HERE_NOTE = (
    "of decode steps beside a prompt on the other cores; contention-blind is the same estimator without neighbours, so "
    "where steps take little more than their time alone there is nothing for it to miss, and the ratio is near 1"
)
RATIO = (
    "mean error over that of the simpler predictor; the paper's bars have no numbers, so less than half is asked for"
)

LAW = (
    f"{RATIO}; the device's law is none that the estimator has: bounds without corners, bandwidth without a knee, "
    "whole tiles of rows (plait.reproduce.smooth_device)"
)
OTHER, TWO = "another law", "two shares"
WITHIN, BEYOND = "decode to 16k", "decode to 32k, batch 256"
PREFILL, HERE = "prefill to 16k", "this machine's decode"
BLIND, LINEAR = "over contention-blind", "over linear"


def device_spec() -> HardwareSpec:
    return find_hardware("a100-80g")


# MuxWise's regression


def planted(rng: random.Random, noise: float) -> list[Sample]:
    """Steps whose times follow the two equations, each off by a random part."""
    found = []
    for new, reused in product((512, 2048, 8192, 32768), (0, 2048, 8192, 32768)):
        shape = prefill_shape(new, reused)
        found.append(Sample(shape, 108, _times(THETA, prefill_features(shape)) * (1 + noise * rng.gauss(0, 1))))
    for rows, context in product((1, 8, 32, 64, 96, 128), (1024, 4096, 16384, 65536)):
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


def regression_answers() -> dict[str, Answer]:
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
    alone: list[Sample]
    """As many solo runs as a predictor without neighbours is given."""
    model: CalibratedModel
    blind: CalibratedModel


Device: TypeAlias = SyntheticDevice | SmoothDevice


def fitted(device: Device, budget: Budget = ALL_SPLITS) -> Fitted:
    """Bullet's offline procedure: bandwidth beside prompts, then few states end to end."""
    roofline = RooflineModel(llama_8b(), BF16, device_spec(), bandwidth=device.bandwidth(SPLITS, BANDWIDTH_PROMPTS))
    decode = [
        device.sample(decode_shape(rows, context), share, prefill_shape(tokens))
        for share, rows, context, tokens in product(budget.shares, budget.batches, budget.contexts, PROMPTS)
    ]
    alone = [
        device.sample(decode_shape(rows, context), share)
        for share, rows, context in product(budget.shares, budget.batches, budget.contexts)
    ]
    prefill = [device.sample(prefill_shape(tokens), share) for share, tokens in product((54, 108), PREFILLS)]
    bare = RooflineModel(llama_8b(), BF16, device_spec())
    return Fitted(decode, prefill, alone, _calibrated(roofline, decode + prefill), _calibrated(bare, alone + prefill))


def _calibrated(roofline: RooflineModel, samples: Sequence[Sample]) -> CalibratedModel:
    alpha = fit_alpha(samples, roofline)
    about = Calibration("Llama-3.1-8B", "a synthetic device", "simulated", len(samples), alpha, 0.0, 0.0)
    return CalibratedModel(roofline, about)


def unseen_decode(device: Device, rng: random.Random, longest: int, largest: int) -> list[Sample]:
    """Random states beside random prompts on every split; lengths and batches are log-uniform."""
    return [
        device.sample(
            decode_shape(_draw(rng, 1, largest), _draw(rng, 64, longest)),
            rng.choice(SPLITS),
            prefill_shape(_draw(rng, 1024, longest)),
        )
        for _ in range(HELD_OUT_STATES)
    ]


def unseen_prefill(device: Device, rng: random.Random) -> list[Sample]:
    return [
        device.sample(prefill_shape(_draw(rng, 64, 16384)), rng.choice((54, 80, 108))) for _ in range(HELD_OUT_STATES)
    ]


def _draw(rng: random.Random, low: int, high: int) -> int:
    return min(high, int(low * (high / low) ** rng.random()))


def _estimator_answers() -> dict[str, Answer]:
    found: dict[str, list[float]] = {}
    for seed in SEEDS:
        device = SyntheticDevice(llama_8b(), BF16, device_spec(), seed)
        other = SmoothDevice(llama_8b(), BF16, device_spec(), seed)
        fit, rng = fitted(device), random.Random(seed)
        answers = _decode_answers(device, fit, rng) | _prefill_answers(device, fit, rng)
        answers["mean alpha of the profile"] = fmean(fit.model.calibration.alpha.decode.values)
        answers |= {f"{OTHER}, {name}": value for name, value in _decode_answers(other, fitted(other), rng).items()}
        for prefix, one in (("", device), (f"{OTHER}, ", other)):
            few = _decode_answers(one, fitted(one, TWO_SHARES), rng)
            answers[f"{prefix}{TWO}, {BLIND}"] = few[f"{WITHIN}, {BLIND}"]
        for name, value in answers.items():
            found.setdefault(name, []).append(value)
    return {name: Sampled(tuple(values)) for name, values in found.items()}


def _decode_answers(device: Device, fit: Fitted, rng: random.Random) -> dict[str, float]:
    linear, found = fit_linear(fit.decode), {}
    for states, longest, largest in ((WITHIN, 16384, 128), (BEYOND, 32768, 256)):
        kept = unseen_decode(device, rng, longest, largest)
        ours = _error([device_s(fit.model, one) for one in kept], kept)
        blind = _error([fit.blind.price(one.shape, one.share).expected_s for one in kept], kept)
        found[f"{states}, {BLIND}"] = ours / blind
        found[f"{states}, {LINEAR}"] = ours / _error([linear.seconds(one) for one in kept], kept)
    return found


def _prefill_answers(device: Device, fit: Fitted, rng: random.Random) -> dict[str, float]:
    kept, linear = unseen_prefill(device, rng), fit_linear(fit.prefill)
    ours = _error([device_s(fit.model, one) for one in kept], kept)
    return {f"{PREFILL}, {LINEAR}": ours / _error([linear.seconds(one) for one in kept], kept)}


def _error(predicted: Sequence[float], samples: Sequence[Sample]) -> float:
    return fmean(errors(predicted, samples))


def _law_answers() -> dict[str, Answer]:
    shape = decode_shape(8, 1000)
    true_s = SyntheticDevice(llama_8b(), BF16, device_spec(), 0).mean_s(shape, 60)
    singles = (SyntheticDevice(llama_8b(), BF16, device_spec(), seed) for seed in range(400))
    parts = sorted(abs(device.sample(shape, 60, repeats=1).seconds / true_s - 1) for device in singles)
    device, slowest = SyntheticDevice(llama_8b(), BF16, device_spec(), 0), 1.0
    for share, rows, context, tokens in product(SPLITS, (4, 32, 128), (1024, 16000), PROMPTS):
        decode = decode_shape(rows, context)
        slowest = max(slowest, device.mean_s(decode, share, prefill_shape(tokens)) / device.mean_s(decode, share))
    return {"noise of 95 % of measurements": 100 * parts[int(0.95 * len(parts))], "largest slowdown of decode": slowest}


def machine_answers(spec: HardwareSpec | None) -> dict[str, Answer]:
    calibration = None if spec is None else spec.calibration
    errors = None if calibration is None or calibration.evidence != "real-cpu" else calibration.held_out
    names = (f"{HERE}, {BLIND}", f"{HERE}, {LINEAR}")
    if calibration is None or errors is None or not errors.beside_blind or not errors.beside_linear:
        return dict.fromkeys(names, NotRun(NOT_MEASURED))
    simpler = (errors.beside_blind, errors.beside_linear)
    where = (
        f"{calibration.calibrated_on}; {errors.num_beside} steps, which took {errors.slowdown:.2f} of their time alone"
    )
    return {name: Measured(errors.beside_alpha / error, where) for name, error in zip(names, simpler, strict=True)}


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
            (f"{OTHER}, {WITHIN}, {BLIND}", BETTER),
            (f"{OTHER}, {WITHIN}, {LINEAR}", BETTER),
            (f"{OTHER}, {BEYOND}, {BLIND}", CONTINUES),
            (f"{OTHER}, {BEYOND}, {LINEAR}", CONTINUES),
            (f"{TWO}, {BLIND}", TWO_POINTS),
            (f"{OTHER}, {TWO}, {BLIND}", TWO_POINTS),
        )
    ]
    machine = [
        Figure(
            f"{HERE}, {by}", BETTER, "worse", Between(high=0.5), "x", Evidence.REAL_CPU, note=f"{RATIO}; {HERE_NOTE}"
        )
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
            f"{100 * synthetic.NOISE_95:g}",
            Printed(),
            " %",
            Evidence.SIMULATED,
            calibrated_on=(NOISE_95,),
        ),
        Figure(
            "largest slowdown of decode", SLOWDOWN, "1.2", Printed(), "x", Evidence.SIMULATED, calibrated_on=(SLOWDOWN,)
        ),
        Figure(
            "mean alpha of the profile",
            MEAN_ALPHA,
            "1.61",
            Near(0.1),
            "",
            Evidence.SIMULATED,
            calibrated_on=(MEAN_ALPHA,),
            note="the device's factor is chosen for it; see muxwise-anchors for an alpha that is not",
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
    """Of errors on a synthetic device."""
    return Figure(
        name,
        reference,
        "worse",
        Between(high=0.5),
        "x",
        Evidence.SIMULATED,
        calibrated_on=(NOISE_95, SLOWDOWN, MEAN_ALPHA),
        note=LAW if name.startswith(OTHER) else RATIO,
    )


def estimator_case(spec: HardwareSpec | None) -> Case:
    """`spec`: a device whose file has held-out errors; None: what needs one is not run."""

    def work_out() -> Answers:
        return {**regression_answers(), **_law_answers(), **_estimator_answers(), **machine_answers(spec)}

    return Case("estimator", "what few measurements teach", BULLET, _figures(), work_out)
