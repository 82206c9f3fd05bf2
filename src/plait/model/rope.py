"""Rotary position tables: what they are made of, fixed once at load.

Owns the frequencies, in double precision, for every scaling that depends on the model alone. A scaling that depends on
the current length (dynamic NTK) cannot be expressed: cached keys would be wrong and answers depend on chunking.
Invariant: equal specs give equal frequencies, whatever the sequence.
"""

from __future__ import annotations

import math
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


RopeScaling = LinearScaling | Llama3Scaling | FactorScaling


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """One rotary table. Angle of pair i at position p: p * frequencies(spec)[i], in double precision, 0 <= p <
    max_positions.
    """

    theta: float
    rotary_dim: int
    max_positions: int
    scaling: RopeScaling | None = None


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
        case Llama3Scaling() as scaling:
            return tuple(_llama3_frequency(f, scaling) for f in plain)


def _llama3_frequency(frequency: float, scaling: Llama3Scaling) -> float:
    wavelength = 2.0 * math.pi / frequency
    if wavelength < scaling.original_positions / scaling.high_factor:
        return frequency
    if wavelength > scaling.original_positions / scaling.low_factor:
        return frequency / scaling.factor
    turns = scaling.original_positions / wavelength
    smooth = (turns - scaling.low_factor) / (scaling.high_factor - scaling.low_factor)
    return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency
