"""Solo: how long a phase takes alone on a share, from a few sums over its requests.

Owns the features of MuxWise's equations 1 and 2 (ASPLOS 2026, section 3.3) and their fit, one for each share, because
the equations have no term for it; least squares are non-negative, because sums of contexts and batch sizes tend to
rise together.
Invariant: every coefficient is 0 or more, so more work never takes less time.

    T_prefill = t1 sum n^2 + t2 sum n r + t3 sum n + t4          n new tokens of a request, r tokens before them
    T_decode  = p1 sum r + p2 rows + p3                          rows: the batch size, and guesses that are verified
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from plait.core.errors import UsageError
from plait.core.step import ChunkShape, StepShape
from plait.cost.fields import Fields
from plait.cost.least_squares import non_negative_least_squares


@dataclass(frozen=True, slots=True)
class Sample:
    """A step that was measured. `beside`: what ran on the other units all the while."""

    shape: StepShape
    share: int
    seconds: float
    beside: tuple[StepShape, ...] = ()


def prefill_features(shape: StepShape) -> tuple[float, float, float, float]:
    chunks = shape.chunks
    return (
        float(sum(chunk.num_tokens**2 for chunk in chunks)),
        float(sum(chunk.num_tokens * chunk.start for chunk in chunks)),
        float(sum(chunk.num_tokens for chunk in chunks)),
        1.0,
    )


def decode_features(shape: StepShape) -> tuple[float, float, float]:
    return float(sum(chunk.start for chunk in shape.chunks)), float(shape.num_tokens), 1.0


def phases(shape: StepShape) -> tuple[StepShape, StepShape]:
    """(prefill, decode): chunks of several known tokens, and those of one, with guesses behind it or without."""
    several = tuple([chunk for chunk in shape.chunks if chunk.num_tokens - chunk.num_drafts > 1])
    if len(several) == len(shape.chunks):
        return shape, _NOTHING
    if not several:
        return _NOTHING, shape
    return StepShape(several), StepShape(tuple([chunk for chunk in shape.chunks if chunk.is_decode]))


_NOTHING = StepShape(())


@dataclass(frozen=True, slots=True)
class SoloModel:
    """Seconds by share. What a step of both phases takes is their sum less one constant: the launch is shared."""

    prefill: Mapping[int, tuple[float, ...]]
    decode: Mapping[int, tuple[float, ...]]

    def seconds(self, shape: StepShape, share: int) -> float:
        prefill, decode = phases(shape)
        theta, phi = self.prefill.get(share, ()), self.decode.get(share, ())
        total = 0.0
        if prefill.chunks:
            total += _dot(theta, prefill_features(prefill), share)
        if decode.chunks:
            total += _dot(phi, decode_features(decode), share)
        if prefill.chunks and decode.chunks:
            total -= min(theta[-1], phi[-1])
        return total

    def covers(self, share: int) -> bool:
        return share in self.prefill and share in self.decode

    def json_object(self) -> dict[str, object]:
        return {
            name: [{"share": share, "coefficients": list(found)} for share, found in sorted(by_share.items())]
            for name, by_share in (("prefill", self.prefill), ("decode", self.decode))
        }


def fit_solo(samples: Iterable[Sample], *, relative: bool = True) -> SoloModel:
    """From steps of one phase that ran alone. `relative`: a part of a short step counts as much as one of a long step.

    Shares that were not measured in a phase have no fit there.
    """
    alone = [sample for sample in samples if not sample.beside]
    prefill: dict[int, tuple[float, ...]] = {}
    decode: dict[int, tuple[float, ...]] = {}
    for share in sorted({sample.share for sample in alone}):
        here = [(phases(sample.shape), sample.seconds) for sample in alone if sample.share == share]
        of_prefill = [(prefill_features(p), seconds) for (p, d), seconds in here if p.chunks and not d.chunks]
        of_decode = [(decode_features(d), seconds) for (p, d), seconds in here if d.chunks and not p.chunks]
        if of_prefill:
            prefill[share] = _fit(of_prefill, relative=relative)
        if of_decode:
            decode[share] = _fit(of_decode, relative=relative)
    return SoloModel(prefill, decode)


def read_solo(fields: Fields) -> SoloModel:
    fields.only("prefill", "decode")
    return SoloModel(_read_phase(fields, "prefill", 4), _read_phase(fields, "decode", 3))


def _read_phase(fields: Fields, name: str, count: int) -> dict[int, tuple[float, ...]]:
    found = {}
    for one in fields.parts(name):
        one.only("share", "coefficients")
        found[one.whole("share", least=1, most=1 << 20)] = one.numbers("coefficients", count=count)
    return found


def _fit(samples: Sequence[tuple[Sequence[float], float]], *, relative: bool) -> tuple[float, ...]:
    weights = [1.0 / seconds if relative else 1.0 for _, seconds in samples]
    rows = [[value * weight for value in features] for (features, _), weight in zip(samples, weights, strict=True)]
    values = [seconds * weight for (_, seconds), weight in zip(samples, weights, strict=True)]
    return non_negative_least_squares(rows, values)


def _dot(coefficients: Sequence[float], features: Sequence[float], share: int) -> float:
    if not coefficients:
        raise UsageError(f"nothing was measured on a share of {share}, so there is no fit; calibrate with that share")
    return sum(one * value for one, value in zip(coefficients, features, strict=True))


def decode_shape(rows: int, context: int) -> StepShape:
    """A step of `rows` sequences with `context` tokens each before the one that is computed."""
    return StepShape((ChunkShape(context, 1, 1),) * rows)


def prefill_shape(tokens: int, start: int = 0) -> StepShape:
    """A step of one prompt's `tokens` behind `start` others."""
    return StepShape((ChunkShape(start, tokens, 1),))
