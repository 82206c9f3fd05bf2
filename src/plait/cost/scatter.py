"""Scatter: how steps of a real machine depart from their prices, as it was when it was calibrated.

Owns the record in a hardware file and its replay: spells in which the machine was slower, in their order and for as
long as they lasted; the scatter of single steps in them; how late the engine sees an end; what a rest costs.
Invariant: everything follows from a seed, moments and numbers of steps, so equal simulations are equal; a device whose
file has no such record keeps to its prices.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

from plait.cost.fields import Fields

RESTED_S = 0.01
"""From when on a device that had nothing to do counts as rested."""
MOST_RATIO = 100.0
_LEAST_JITTER_S = -1.0
_MOST_S = 60.0
"""Of jitter, lateness and rests; a machine that does worse is measured on a better day."""
_MOST_SPELL_S = 1e6
_POINTS = 200
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Scatter:
    """`spell_s[i]` seconds long, steps took `spell_ratios[i]` of their prices; then the next spell began."""

    spell_s: tuple[float, ...]
    spell_ratios: tuple[float, ...]
    jitter_s: tuple[float, ...]
    """What single steps take more, or less, than their spell makes of them: ascending, each as probable as the others.
    Seconds and no ratio: who takes a core for a moment does not ask how long the step is.
    """
    late_s: tuple[float, ...]
    """From the end of a step to the moment when the engine sees it; likewise."""
    rested_s: float
    """What a step takes more that begins on a device that was at rest."""

    def margin_s(self, part: float) -> float:
        """What so large a part of steps in one spell stay within, behind what the spell makes of them, until the engine
        sees their ends.
        """
        both = sorted([jitter + late for jitter in self.jitter_s for late in self.late_s])
        return max(0.0, quantile(both, part))

    def json_object(self) -> dict[str, object]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def read_scatter(fields: Fields) -> Scatter:
    fields.only(*Scatter.__slots__)
    spell_s = fields.numbers("spell_s")
    found = Scatter(
        spell_s,
        fields.numbers("spell_ratios", count=len(spell_s)),
        fields.numbers("jitter_s", least=_LEAST_JITTER_S),
        fields.numbers("late_s"),
        fields.number("rested_s"),
    )
    for name, values in (("spell_s", spell_s), ("spell_ratios", found.spell_ratios)):
        if not values or min(values) <= 0 or (name != "spell_s" and max(values) > MOST_RATIO):
            raise fields.fault(name, f"there must be some, above 0, and ratios at most {MOST_RATIO:g}")
    if max(spell_s) > _MOST_SPELL_S:
        raise fields.fault("spell_s", f"at most {_MOST_SPELL_S:g} s each")
    for name, values in (("jitter_s", found.jitter_s), ("late_s", found.late_s), ("rested_s", (found.rested_s,))):
        if values and max(values) > _MOST_S:
            raise fields.fault(name, f"at most {_MOST_S:g} s")
    for name, values in (("jitter_s", found.jitter_s), ("late_s", found.late_s)):
        if not values or list(values) != sorted(values):
            raise fields.fault(name, "there must be some, and they must ascend")
    return found


def evenly(values: Sequence[float]) -> tuple[float, ...]:
    """A distribution of many values by at most 200, ascending: the middle of each two hundredth of them."""
    ordered = sorted(values)
    if len(ordered) <= _POINTS:
        return tuple(ordered)
    return tuple(ordered[int((place + 0.5) / _POINTS * len(ordered))] for place in range(_POINTS))


class Replay:
    """A scatter in simulated time. Begins where the seed says and goes round."""

    def __init__(self, scatter: Scatter, seed: int = 0) -> None:
        self._scatter = scatter
        self._seed = seed
        self._ends_s = list(accumulate(scatter.spell_s))
        parts = (seconds * ratio for seconds, ratio in zip(scatter.spell_s, scatter.spell_ratios, strict=True))
        self._sums = list(accumulate(parts))
        self._from_s = _part(seed, 0, 0) * self._ends_s[-1]

    def departs(self, number: int, at_s: float, price_s: float, rest_s: float) -> tuple[float, float]:
        """(Factor on its price, seconds on top, maybe below 0) of the step of a number that begins at a moment.
        Nothing ran for `rest_s` before.
        """
        begin_s = self._from_s + at_s
        over = self._sum_to(begin_s + price_s) - self._sum_to(begin_s)
        factor = over / price_s if price_s > 0 else 1.0
        jitter_s = quantile(self._scatter.jitter_s, _part(self._seed, 1, number))
        rested_s = self._scatter.rested_s if rest_s >= RESTED_S else 0.0
        return factor, jitter_s + rested_s

    def late_s(self, number: int) -> float:
        """How late the engine sees the end for which it waits for the so many'th time."""
        return quantile(self._scatter.late_s, _part(self._seed, 2, number))

    def _sum_to(self, at_s: float) -> float:
        """Priced seconds times ratios, from the beginning of the record."""
        rounds, within_s = divmod(at_s, self._ends_s[-1])
        place = min(bisect_right(self._ends_s, within_s), len(self._ends_s) - 1)
        left_s = self._ends_s[place] - within_s
        return rounds * self._sums[-1] + self._sums[place] - left_s * self._scatter.spell_ratios[place]


def quantile(ascending: Sequence[float], part: float) -> float:
    """The value that this part of them lies below; linear between two."""
    place = part * (len(ascending) - 1)
    low = int(place)
    value = ascending[low]
    return value if low == place else value + (place - low) * (ascending[low + 1] - value)


def _part(seed: int, stream: int, number: int) -> float:
    """Evenly from 0 to below 1, by three numbers alone (SplitMix64; Steele, Lea and Flood 2014)."""
    state = (seed * 0xD1B54A32D192ED03 + stream * 0x8CB92BA72F3D8DD7 + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)
