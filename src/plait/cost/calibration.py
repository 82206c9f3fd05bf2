"""Calibration: what was measured of steps of one model on one device, as it stands in a hardware file.

Owns the record and its form. Knows neither how it was measured nor how prices are made of it.
Invariant: what is written is read back equal; a calibration says on what, when and with which error it was made.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from plait.cost.alpha import AlphaTable, read_alpha
from plait.cost.fields import Fields
from plait.cost.grid import Grid, read_grid
from plait.cost.guard import GuardTable, read_guard
from plait.cost.solo import SoloModel, read_solo

EVIDENCE = ("real-cpu", "real-gpu", "published", "simulated")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors on steps that nothing was fitted to, as parts: 0.05 is 5 %."""

    num_steps: int
    alpha_mean: float
    """Mean absolute error of the roofline with alpha; `_p90` is what nine tenths of the steps stay below."""
    alpha_p90: float
    solo_mean: float
    """Of the regression of solo runs, which knows no neighbours."""
    linear_mean: float
    """Of one linear regression over everything that describes a step."""
    num_bounded: int
    """Decode steps beside a prefill, for which there is a bound."""
    violations: float
    """Part of them that took longer than it."""
    tightness: float
    """Median of bound over measured time."""


@dataclass(frozen=True, slots=True)
class Calibration:
    model: str
    """Of which model, with its number formats."""
    calibrated_on: str
    """Machine and day."""
    evidence: str
    num_steps: int
    """Measured steps that it rests on."""
    alpha: AlphaTable
    step_overhead_s: float
    """Of the whole engine: what lies between the steps of a device that always has one."""
    seq_overhead_s: float
    """Further for each sequence of a step."""
    request_overhead_s: float = 0.0
    """From a request's arrival to its first plan on an idle engine, and from its last result to its end."""
    spread: float = 1.0
    """How much longer than its price a step may take: what all but one in a hundred of the measured ones kept to."""
    mixed: Grid | None = None
    """Factor on steps of both phases, by share, prompt tokens and decode rows."""
    bandwidth: Grid | None = None
    """D_p,sl: bytes/s of a share (axis share) beside a prefill of so many tokens (axis beside)."""
    solo: SoloModel | None = None
    guard: GuardTable | None = None
    held_out: HeldOut | None = None

    def json_object(self) -> dict[str, object]:
        found: dict[str, object] = {
            "model": self.model,
            "calibrated_on": self.calibrated_on,
            "evidence": self.evidence,
            "num_steps": self.num_steps,
            "step_overhead_s": self.step_overhead_s,
            "seq_overhead_s": self.seq_overhead_s,
            "request_overhead_s": self.request_overhead_s,
            "spread": self.spread,
            "alpha": self.alpha.json_object(),
        }
        parts = {"mixed": self.mixed, "bandwidth": self.bandwidth, "solo": self.solo, "guard": self.guard}
        found |= {name: part.json_object() for name, part in parts.items() if part is not None}
        return found if self.held_out is None else {**found, "held_out": asdict(self.held_out)}


def read_calibration(fields: Fields) -> Calibration:
    fields.only(*Calibration.__slots__)
    return Calibration(
        model=fields.text("model"),
        calibrated_on=fields.text("calibrated_on"),
        evidence=fields.text("evidence", EVIDENCE),
        num_steps=fields.whole("num_steps", least=1),
        alpha=read_alpha(fields.part("alpha")),
        step_overhead_s=fields.number("step_overhead_s"),
        seq_overhead_s=fields.number("seq_overhead_s"),
        request_overhead_s=fields.number("request_overhead_s"),
        spread=fields.number("spread", least=1.0, most=100.0) if fields.has("spread") else 1.0,
        mixed=read_grid(fields.part("mixed"), ("share", "tokens", "rows")) if fields.has("mixed") else None,
        bandwidth=read_grid(fields.part("bandwidth"), ("share", "beside")) if fields.has("bandwidth") else None,
        solo=read_solo(fields.part("solo")) if fields.has("solo") else None,
        guard=read_guard(fields.part("guard")) if fields.has("guard") else None,
        held_out=_read_held_out(fields.part("held_out")) if fields.has("held_out") else None,
    )


def _read_held_out(fields: Fields) -> HeldOut:
    fields.only(*HeldOut.__slots__)
    counts = {name: fields.whole(name, least=0) for name in ("num_steps", "num_bounded")}
    values = {name: fields.number(name) for name in HeldOut.__slots__ if name not in counts}
    return HeldOut(
        num_steps=counts["num_steps"],
        alpha_mean=values["alpha_mean"],
        alpha_p90=values["alpha_p90"],
        solo_mean=values["solo_mean"],
        linear_mean=values["linear_mean"],
        num_bounded=counts["num_bounded"],
        violations=values["violations"],
        tightness=values["tightness"],
    )
