"""Calibrate report: what a calibration found, for people and as JSON.

Owns the words and the schema. Invariant: an error that is named is of steps that nothing was fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import mul
from pathlib import Path
from statistics import fmean

from plait.cost.calibrated import CalibratedModel
from plait.cost.calibration import Calibration, HeldOut
from plait.cost.estimators import device_s, errors
from plait.cost.hardware import HardwareSpec
from plait.cost.scatter import Scatter, quantile
from plait.cost.solo import Sample, phases

SCHEMA = "plait.calibrate/1"
KINDS = ("decode alone", "prompt alone", "both in one step", "decode beside a prompt", "prompt beside decode")


@dataclass(frozen=True, slots=True)
class KindError:
    """Of steps of one kind that were held out."""

    num_steps: int
    mean: float
    p90: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """`spec` has the calibration."""

    spec: HardwareSpec
    by_kind: Mapping[str, KindError]

    @property
    def calibration(self) -> Calibration:
        assert self.spec.calibration is not None
        return self.spec.calibration


def errors_by_kind(held_out: Sequence[Sample], model: CalibratedModel) -> dict[str, KindError]:
    found = {}
    for kind in KINDS:
        of_kind = [sample for sample in held_out if kind_of(sample) == kind]
        if of_kind:
            off = sorted(errors([device_s(model, sample) for sample in of_kind], of_kind))
            found[kind] = KindError(len(off), fmean(off), off[int(0.9 * (len(off) - 1))])
    return found


def kind_of(sample: Sample) -> str:
    prefill, decode = phases(sample.shape)
    if prefill.chunks and decode.chunks:
        return KINDS[2]
    alone = 0 if decode.chunks else 1
    return KINDS[alone + 3 if sample.beside else alone]


def json_report(outcome: Outcome, path: Path, took_s: float, others: float) -> dict[str, object]:
    found = outcome.calibration
    return {
        "schema": SCHEMA,
        "file": str(path),
        "model": found.model,
        "calibrated_on": found.calibrated_on,
        "evidence": found.evidence,
        "num_steps": found.num_steps,
        "held_out": None if found.held_out is None else asdict(found.held_out),
        "by_kind": {kind: asdict(one) for kind, one in outcome.by_kind.items()},
        "step_overhead_s": found.step_overhead_s,
        "seq_overhead_s": found.seq_overhead_s,
        "prompt_overhead_s": found.prompt_overhead_s,
        "spread": found.spread,
        "others": others,
        "took_s": took_s,
    }


def lines(outcome: Outcome) -> list[str]:
    spec, found = outcome.spec, outcome.calibration
    rates = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in spec.rates.items())
    told = [
        f"{found.model} on {found.calibrated_on}: {found.num_steps:,} steps",
        f"roofs: {rates} GFLOP/s; memory {spec.bytes_per_s / 1e9:.1f} GB/s, "
        f"{spec.bytes_per_s / spec.memory_knee_units / 1e9:.1f} of one {spec.unit}",
        f"alpha: prompts {_range(found.alpha.prefill.values)}, decode {_range(found.alpha.decode.values)}",
        f"engine: {found.step_overhead_s * 1e6:,.0f} us a step, {found.seq_overhead_s * 1e6:,.1f} us a sequence and "
        f"{found.prompt_overhead_s * 1e6:,.0f} us more a prompt",
    ]
    if found.scatter is not None:
        told.append(_scatter_line(found.scatter))
    if found.held_out is not None:
        told += _held_out_lines(found.held_out)
    told += [
        f"  {kind:<24}{one.num_steps:>6} steps{one.mean:>8.1%} mean{one.p90:>8.1%} of nine tenths at most"
        for kind, one in outcome.by_kind.items()
    ]
    return told


def _scatter_line(found: Scatter) -> str:
    mean = sum(map(mul, found.spell_s, found.spell_ratios)) / sum(found.spell_s)
    usual_s, rarely_s = (quantile(found.late_s, part) * 1e6 for part in (0.5, 0.99))
    return (
        f"scatter: steps take {mean:.3f} of their price on average; an end is seen {usual_s:,.0f} us later, one in a "
        f"hundred {rarely_s:,.0f}; a rest costs {found.rested_s * 1e6:,.0f} us"
    )


def _held_out_lines(found: HeldOut) -> list[str]:
    told = [
        f"error on {found.num_steps:,} steps that nothing was fitted to: roofline with alpha {found.alpha_mean:.1%} "
        f"({found.alpha_p90:.1%} of nine tenths at most), solo runs only {found.solo_mean:.1%}, "
        f"linear {found.linear_mean:.1%}"
    ]
    if found.num_beside:
        told.append(
            f"decode beside a prompt takes {found.slowdown:.2f} of what it takes alone: error with neighbours "
            f"{found.beside_alpha:.1%}, without them {found.beside_blind:.1%}, linear {found.beside_linear:.1%}"
        )
    if found.num_bounded:
        told.append(
            f"bound of decode beside a prompt: {found.violations:.1%} of {found.num_bounded} steps took longer; "
            f"it is {found.tightness:.2f} of what is usual"
        )
    return told


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"
