"""Band: how close to a published number ours has to come.

Owns the few kinds of closeness and their words. A band is part of an experiment's plan: it is written before anything
runs and knows nothing about our number.
Invariant: what is not a number (NaN, or text under a numeric band) lies in no band.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

Value: TypeAlias = int | float | str
"""A number, or words that must be equal (a list of splits)."""

_ROUNDING = 1e-9
"""Relative: what arithmetic in double precision may lose."""


class Band(Protocol):
    @property
    def words(self) -> str:
        """As a column of a table says it."""

    def holds(self, ours: Value, published: str) -> bool:
        """`published`: as printed, without its unit."""


def number_of(text: str) -> float:
    """The number that was printed: `7,200` is 7200."""
    return float(text.replace(",", ""))


def is_number(text: str) -> bool:
    """Whether a paper printed a number, and not words or a list."""
    return text.replace(",", "").replace(".", "", 1).isdigit()


def decimals_of(text: str) -> int:
    """Digits behind the point of a printed number."""
    return len(text.partition(".")[2])


@dataclass(frozen=True, slots=True)
class Equal:
    """The same words, or the same number."""

    @property
    def words(self) -> str:
        return "equal"

    def holds(self, ours: Value, published: str) -> bool:
        return ours == published if isinstance(ours, str) else ours == number_of(published)


@dataclass(frozen=True, slots=True)
class Printed:
    """Rounded, ours gives the digits that were printed."""

    @property
    def words(self) -> str:
        return "its digits"

    def holds(self, ours: Value, published: str) -> bool:
        if isinstance(ours, str):
            return False
        half = 0.5 * 10.0 ** -decimals_of(published)
        return abs(ours - number_of(published)) <= half + _ROUNDING * abs(number_of(published))


@dataclass(frozen=True, slots=True)
class Within:
    """So far away at most, in the figure's own unit."""

    distance: float

    @property
    def words(self) -> str:
        return f"+-{self.distance:g}"

    def holds(self, ours: Value, published: str) -> bool:
        return not isinstance(ours, str) and abs(ours - number_of(published)) <= self.distance * (1 + _ROUNDING)


@dataclass(frozen=True, slots=True)
class Near:
    """Away by at most a part of the published number."""

    fraction: float

    @property
    def words(self) -> str:
        return f"+-{100 * self.fraction:g} %"

    def holds(self, ours: Value, published: str) -> bool:
        return Within(self.fraction * abs(number_of(published))).holds(ours, published)


@dataclass(frozen=True, slots=True)
class Between:
    """From `low` to `high`, whatever was printed; None: without an end on that side."""

    low: float | None = None
    high: float | None = None

    @property
    def words(self) -> str:
        if self.low is None:
            return f"<= {self.high:g}"
        return f">= {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"

    def holds(self, ours: Value, published: str) -> bool:
        if isinstance(ours, str) or ours != ours:
            return False
        return (self.low is None or ours >= self.low) and (self.high is None or ours <= self.high)
