"""Estimators: how well prices foretell steps that nothing was fitted to, beside two simpler ways.

Owns the comparison that Bullet makes (ASPLOS 2026, section 2.3, figure 11): the roofline with alpha, a predictor that
knows solo runs only, and one linear regression over all that describes a state, with a quadratic term for prompts.
Invariant: errors are of measured time; a price is compared without the engine's overhead, as it was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from plait.core.step import StepShape
from plait.cost.alpha import is_decode
from plait.cost.calibrated import CalibratedModel
from plait.cost.calibration import HeldOut
from plait.cost.guard import prefill_beside
from plait.cost.least_squares import least_squares
from plait.cost.solo import Sample, SoloModel, phases


@dataclass(frozen=True, slots=True)
class LinearModel:
    """Seconds as one linear function of the state, for steps of any phase on any share beside anything."""

    coefficients: tuple[float, ...]

    def seconds(self, sample: Sample) -> float:
        return sum(one * value for one, value in zip(self.coefficients, state_features(sample), strict=True))


def fit_linear(samples: Sequence[Sample]) -> LinearModel:
    return LinearModel(
        least_squares([state_features(sample) for sample in samples], [sample.seconds for sample in samples])
    )


def state_features(sample: Sample) -> tuple[float, ...]:
    prefill, decode = phases(sample.shape)
    other_prefill, other_decode = _merged(sample.beside)
    return (
        1.0,
        float(sample.share),
        float(prefill.num_tokens),
        float(sum(chunk.num_tokens**2 for chunk in prefill.chunks)),
        float(sum(chunk.start for chunk in prefill.chunks)),
        float(len(decode.chunks)),
        float(sum(chunk.start for chunk in decode.chunks)),
        float(other_prefill),
        float(other_decode),
    )


def errors(predicted: Sequence[float], samples: Sequence[Sample]) -> list[float]:
    """Absolute, by measured time."""
    return [abs(p - sample.seconds) / sample.seconds for p, sample in zip(predicted, samples, strict=True)]


def device_s(model: CalibratedModel, sample: Sample) -> float:
    """The price without the engine's overhead."""
    return model.price(sample.shape, sample.share, sample.beside).expected_s - model.overhead_s(sample.shape)


def held_out(fitted: Sequence[Sample], kept: Sequence[Sample], model: CalibratedModel, solo: SoloModel) -> HeldOut:
    """`fitted`: what all three were made of; `kept`: what none of them saw."""
    linear = fit_linear(fitted)
    of_alpha = sorted(errors([device_s(model, sample) for sample in kept], kept))
    covered = [sample for sample in kept if solo.covers(sample.share)]
    of_solo = errors([solo.seconds(sample.shape, sample.share) for sample in covered], covered)
    of_linear = errors([linear.seconds(sample) for sample in kept], kept)
    bounds = [
        (model.price(s.shape, s.share, s.beside).worst_s - model.overhead_s(s.shape)) / s.seconds
        for s in kept
        if prefill_beside(s.beside) is not None and is_decode(s.shape)
    ]
    beside = [s for s in kept if s.beside and is_decode(s.shape) and not phases(s.shape)[0].chunks]
    alone_s = [device_s(model, replace(s, beside=())) for s in beside]
    return HeldOut(
        num_steps=len(kept),
        alpha_mean=_mean(of_alpha),
        alpha_p90=of_alpha[int(0.9 * (len(of_alpha) - 1))] if of_alpha else 0.0,
        solo_mean=_mean(of_solo),
        linear_mean=_mean(of_linear),
        num_bounded=len(bounds),
        violations=sum(ratio < 1.0 for ratio in bounds) / len(bounds) if bounds else 0.0,
        tightness=median(bounds) if bounds else 0.0,
        num_beside=len(beside),
        beside_alpha=_mean(errors([device_s(model, s) for s in beside], beside)),
        beside_blind=_mean(errors(alone_s, beside)),
        beside_linear=_mean(errors([linear.seconds(s) for s in beside], beside)),
        slowdown=median(s.seconds / alone for s, alone in zip(beside, alone_s, strict=True)) if beside else 0.0,
    )


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _merged(beside: Sequence[StepShape]) -> tuple[int, int]:
    parts = [phases(shape) for shape in beside]
    return sum(prefill.num_tokens for prefill, _ in parts), sum(len(decode.chunks) for _, decode in parts)
