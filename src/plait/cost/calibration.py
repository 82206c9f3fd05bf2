"""Calibration: what was measured of steps of one model on one device, as it stands in a hardware file.

Owns the record and its form. Knows neither how it was measured nor how prices are made of it.
Invariant: what is written is read back equal; a calibration says on what, when and with which error it was made.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from plait.cost.alpha import AlphaTable, read_alpha
from plait.cost.fields import Fields
from plait.cost.grid import Grid, read_grid
from plait.cost.guard import BOUNDED_PART, GuardTable, read_guard
from plait.cost.scatter import Scatter, read_scatter
from plait.cost.solo import SoloModel, read_solo
from plait.model.cost import Formats

_SAME_BYTES = 0.1
"""How far two means of bytes may lie apart for the same format: what else is kept beside the products differs."""
MIXED_AXES = ("share", "tokens", "rows", "context")
EVIDENCE = ("real-cpu", "benchmark", "published", "simulated")
"""Measured here; moments of a benchmark that a user ran; figures of a paper; a device that is not there."""


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
    num_beside: int = 0
    """Decode steps beside anything, on which what follows rests."""
    beside_alpha: float = 0.0
    """Mean error of the roofline with alpha on them; `_blind` of the same without neighbours, `_linear` as above."""
    beside_blind: float = 0.0
    beside_linear: float = 0.0
    slowdown: float = 0.0
    """Median of what they took by their price alone: 1 is a machine on which neighbours cost nothing."""


_LATER = ("num_beside", "beside_alpha", "beside_blind", "beside_linear", "slowdown")
"""Files of the same version may lack them."""


@dataclass(frozen=True, slots=True)
class CountedAs:
    """How the model's numbers were counted, without which alpha means nothing: bytes of a weight, of a number in the
    cache and of one between operations, tiles that read keys together, and the formats of products and attention.
    """

    num_parameters: int
    weight_bytes: float
    cache_bytes: float
    activation_bytes: float
    attention_reuse: float
    compute: str
    attention: str

    @classmethod
    def of(cls, num_parameters: int, formats: Formats, numbers: str) -> CountedAs:
        """`numbers`: in what the device computes what `formats` says nothing about."""
        return cls(
            num_parameters,
            formats.default_weight_bytes,
            formats.default_cache_bytes,
            formats.activation_bytes,
            formats.attention_reuse,
            formats.default_compute or numbers,
            formats.attention or numbers,
        )

    def formats(self, asked: Formats, num_parameters: int) -> Formats:
        """For the model that was measured, just as then; for another one, its own bytes on the same kernels."""
        kernels = replace(
            asked,
            activation_bytes=self.activation_bytes,
            attention_reuse=self.attention_reuse,
            attention=self.attention,
            default_compute=asked.default_compute or self.compute,
        )
        if num_parameters != self.num_parameters:
            return kernels
        return replace(
            kernels,
            weight_bytes={},
            default_weight_bytes=self.weight_bytes,
            cache_bytes={},
            default_cache_bytes=self.cache_bytes,
            compute={},
            default_compute=self.compute,
        )

    def differs(self, asked: Formats, num_parameters: int, model: str) -> str | None:
        """What is not as it was when `model` was measured, and what prices are then; None: nothing is."""
        if num_parameters != self.num_parameters:
            return (
                f"calibrated with {model} ({self.num_parameters:,} numbers), and this model has {num_parameters:,}: "
                "its steps are priced as steps of equal size of the other; calibrate with this model"
            )
        for what, now, then in (
            ("weights", asked.default_weight_bytes, self.weight_bytes),
            ("keys and values", asked.default_cache_bytes, self.cache_bytes),
        ):
            if abs(now - then) > _SAME_BYTES * then:
                return (
                    f"calibrated with {model}, {what} in {8 * then:.3g} bits, and here they have {8 * now:.3g}: prices "
                    f"are those of {8 * then:.3g} bits; calibrate with the format that is meant"
                )
        return None


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
    prompt_overhead_s: float = 0.0
    """Further for each of them that is a prompt or a part of one."""
    counted: CountedAs | None = None
    """None: as whoever asks for a price counts."""
    spread: float = 1.0
    """How much longer than its price a step may take: what all but one in a hundred of the measured ones kept to."""
    mixed: Grid | None = None
    """Factor on steps of both phases, by share, prompt tokens, decode rows and tokens before those of the prompts."""
    bandwidth: Grid | None = None
    """D_p,sl: bytes/s of a share (axis share) beside a prefill of so many tokens (axis beside)."""
    solo: SoloModel | None = None
    guard: GuardTable | None = None
    scatter: Scatter | None = None
    """How steps depart from their prices, for simulations; None: they do not."""
    held_out: HeldOut | None = None

    def json_object(self) -> dict[str, object]:
        found: dict[str, object] = {
            "model": self.model,
            "calibrated_on": self.calibrated_on,
            "evidence": self.evidence,
            "num_steps": self.num_steps,
            "step_overhead_s": self.step_overhead_s,
            "seq_overhead_s": self.seq_overhead_s,
            "prompt_overhead_s": self.prompt_overhead_s,
            "spread": self.spread,
            "alpha": self.alpha.json_object(),
        }
        names = ("mixed", "bandwidth", "solo", "guard", "scatter")
        parts = (self.mixed, self.bandwidth, self.solo, self.guard, self.scatter)
        if self.counted is not None:
            found["counted"] = asdict(self.counted)
        found |= {name: part.json_object() for name, part in zip(names, parts, strict=True) if part is not None}
        return found if self.held_out is None else {**found, "held_out": asdict(self.held_out)}


def margin_of(found: Calibration | None) -> float | None:
    """What all but one in a hundred ends come late by; None: nobody measured it."""
    return None if found is None or found.scatter is None else found.scatter.margin_s(BOUNDED_PART)


def without_overhead(found: Calibration) -> Calibration:
    """Of the device alone."""
    return replace(found, step_overhead_s=0.0, seq_overhead_s=0.0, prompt_overhead_s=0.0)


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
        prompt_overhead_s=fields.number("prompt_overhead_s") if fields.has("prompt_overhead_s") else 0.0,
        counted=_read_counted(fields.part("counted")) if fields.has("counted") else None,
        spread=fields.number("spread", least=1.0, most=100.0) if fields.has("spread") else 1.0,
        mixed=_read_mixed(fields.part("mixed")) if fields.has("mixed") else None,
        bandwidth=read_grid(fields.part("bandwidth"), ("share", "beside")) if fields.has("bandwidth") else None,
        solo=read_solo(fields.part("solo")) if fields.has("solo") else None,
        guard=read_guard(fields.part("guard")) if fields.has("guard") else None,
        scatter=read_scatter(fields.part("scatter")) if fields.has("scatter") else None,
        held_out=_read_held_out(fields.part("held_out")) if fields.has("held_out") else None,
    )


def _read_mixed(fields: Fields) -> Grid:
    """Files of the same version may lack the context."""
    has_context = len(list(fields.parts("axes"))) == len(MIXED_AXES)
    return read_grid(fields, MIXED_AXES if has_context else MIXED_AXES[:-1])


def _read_counted(fields: Fields) -> CountedAs:
    fields.only(*CountedAs.__slots__)
    return CountedAs(
        fields.whole("num_parameters", least=1, most=1 << 50),
        fields.number("weight_bytes", above=True, most=64.0),
        fields.number("cache_bytes", above=True, most=64.0),
        fields.number("activation_bytes", most=64.0),
        fields.number("attention_reuse", above=True, most=1e6),
        fields.text("compute"),
        fields.text("attention"),
    )


def _read_held_out(fields: Fields) -> HeldOut:
    fields.only(*HeldOut.__slots__)
    known = [name for name in HeldOut.__slots__ if fields.has(name) or name not in _LATER]
    counts = {name: fields.whole(name, least=0) for name in known if name.startswith("num_")}
    values = {name: fields.number(name) for name in known if name not in counts}
    return HeldOut(
        num_steps=counts["num_steps"],
        alpha_mean=values["alpha_mean"],
        alpha_p90=values["alpha_p90"],
        solo_mean=values["solo_mean"],
        linear_mean=values["linear_mean"],
        num_bounded=counts["num_bounded"],
        violations=values["violations"],
        tightness=values["tightness"],
        num_beside=counts.get("num_beside", 0),
        **{name: value for name, value in values.items() if name in _LATER},
    )
