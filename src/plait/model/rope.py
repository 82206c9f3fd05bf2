"""Rotary position tables: what they are made of, fixed once at load.

Owns the frequencies, in double precision, for every scaling that depends on the model alone. A scaling that depends on
the current length (dynamic NTK) cannot be expressed: cached keys would be wrong and answers depend on chunking.
Invariant: equal specs give equal frequencies, whatever the sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor`: frequency_i / factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Slow frequencies are divided by `factor`, fast ones kept, those between interpolated.

    With wavelength w = 2 pi / f and L = original_positions: w < L / high_factor keeps f; w > L / low_factor gives f /
    factor; between, s = (L / w - low_factor) / (high_factor - low_factor) and f' = (1 - s) f / factor + s f.
    """

    factor: float
    low_factor: float
    high_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """Every frequency has its own divisor, as a model file lists them: frequency_i / factors[i]."""

    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Fast frequencies are kept, slow ones divided by `factor`, those between mixed, by how often a pair turns within
    `original_positions`: more than `beta_fast` times is fast, less than `beta_slow` times slow.

    Pair i has weight r = clamp((i - low) / (high - low), 0, 1) of the divided frequency, with low and high the pairs
    that turn beta_fast and beta_slow times; `whole` rounds low down and high up. Cosines and sines are multiplied by
    `attention_factor`.
    """

    factor: float
    original_positions: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class LongScaling:
    """Divisors like those of `FactorScaling`, two sets of them: `long` where a table has more than `original_positions`
    positions, `short` otherwise. So the set follows from the longest sequence that a model is loaded for, and never
    from the sequence at hand. Cosines and sines are multiplied by `attention_factor`.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_positions: int
    attention_factor: float


RopeScaling = LinearScaling | Llama3Scaling | FactorScaling | YarnScaling | LongScaling


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """One rotary table. Angle of pair i at position p: p * frequencies(spec)[i], in double precision, 0 <= p <
    max_positions.
    """

    theta: float
    rotary_dim: int
    max_positions: int
    scaling: RopeScaling | None = None

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        match self.scaling:
            case YarnScaling() | LongScaling() as scaling:
                return scaling.attention_factor
            case _:
                return 1.0

    @property
    def is_long(self) -> bool:
        """Whether a table of two sets of divisors has the long ones."""
        return isinstance(self.scaling, LongScaling) and self.max_positions > self.scaling.original_positions

    def fault(self) -> str | None:
        """What contradicts itself."""
        match self.scaling:
            case FactorScaling(factors):
                sets: tuple[tuple[float, ...], ...] = (factors,)
            case LongScaling(short, long):
                sets = (short, long)
            case _:
                return None
        wrong = [len(factors) for factors in sets if len(factors) != self.rotary_dim // 2]
        return f"{wrong[0]} rope factors for {self.rotary_dim // 2} frequencies" if wrong else None


def frequencies(spec: RopeSpec) -> tuple[float, ...]:
    """Radians per position of each of the rotary_dim / 2 pairs, in double precision: theta^(-2 i / rotary_dim), then
    the scaling.
    """
    plain = [spec.theta ** (-2.0 * i / spec.rotary_dim) for i in range(spec.rotary_dim // 2)]
    match spec.scaling:
        case None:
            return tuple(plain)
        case LinearScaling(factor):
            return tuple(f / factor for f in plain)
        case FactorScaling(factors):
            return tuple(f / factor for f, factor in zip(plain, factors, strict=True))
        case LongScaling(short, long):
            return tuple(f / factor for f, factor in zip(plain, long if spec.is_long else short, strict=True))
        case Llama3Scaling() as scaling:
            return tuple(_llama3_frequency(f, scaling) for f in plain)
        case YarnScaling() as yarn:
            return tuple(_yarn_frequencies(plain, spec, yarn))


def _yarn_frequencies(plain: list[float], spec: RopeSpec, yarn: YarnScaling) -> Iterator[float]:
    def pair_turning(times: float) -> float:
        """The pair that turns so many times within the original positions; a fraction, as a rule."""
        turns = math.log(yarn.original_positions / (times * 2.0 * math.pi))
        return spec.rotary_dim * turns / (2.0 * math.log(spec.theta))

    low, high = pair_turning(yarn.beta_fast), pair_turning(yarn.beta_slow)
    if yarn.whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, spec.rotary_dim - 1.0)
    if low == high:
        high += 0.001  # as the original does, so that the step between fast and slow has a place
    for pair, frequency in enumerate(plain):
        slow = min(1.0, max(0.0, (pair - low) / (high - low)))
        yield frequency / yarn.factor * slow + frequency * (1.0 - slow)


def _llama3_frequency(frequency: float, scaling: Llama3Scaling) -> float:
    wavelength = 2.0 * math.pi / frequency
    if wavelength < scaling.original_positions / scaling.high_factor:
        return frequency
    if wavelength > scaling.original_positions / scaling.low_factor:
        return frequency / scaling.factor
    turns = scaling.original_positions / wavelength
    smooth = (turns - scaling.low_factor) / (scaling.high_factor - scaling.low_factor)
    return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency
