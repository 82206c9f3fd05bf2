"""SVG: axes, lines and areas as text.

Owns scales, round tick values and the elements of a chart. Colours are classes; the page's style sheet says which they
are by day and by night. Knows nothing of simulations.
Invariant: every text is escaped, every number is finite and written in few figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 42
_FLOOR = 1e-12


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places along an axis of the drawing."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (self.end - self.start) * ((at - low) / (high - low) if high > low else 0.5)

    def ticks(self) -> list[float]:
        if not self.is_log:
            return round_values(self.low, self.high)
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [10.0**decade for decade in decades if self.low * 0.999 <= 10.0**decade <= self.high * 1.001]
        return found if len(found) > 1 else round_values(self.low, self.high)


def horizontal(low: float, high: float, *, is_log: bool = False) -> Scale:
    if is_log:
        low = max(low, _FLOOR)
        high = max(high, low * 1.0001)
    return Scale(low, high if high > low else low + 1, LEFT, WIDTH - RIGHT, is_log)


def vertical(low: float, high: float) -> Scale:
    return Scale(low, high if high > low else low + 1, HEIGHT - BOTTOM, TOP)


def round_values(low: float, high: float, count: int = 6) -> list[float]:
    """About `count` values of 1, 2 or 5 times a power of ten, inside the range."""
    step = (high - low) / count
    power = 10.0 ** math.floor(math.log10(step))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [step * place for place in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number of an axis: three figures at most."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def seconds(value: float) -> str:
    """A time on an axis."""
    if 0 < value < 1e-3:
        return f"{value * 1e6:.3g} us"
    if value >= 100:
        return f"{value:,.0f} s"
    return f"{value * 1e3:.3g} ms" if 0 < value < 0.9995 else f"{value:.3g} s"


def place(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def line(points: Sequence[tuple[float, float]], style: str) -> str:
    drawn = " ".join(f"{place(x)},{place(y)}" for x, y in points)
    return f'<polyline class="line {style}" points="{drawn}"/>'


def area(points: Sequence[tuple[float, float]], floor: Sequence[tuple[float, float]], style: str) -> str:
    """Between two lines."""
    drawn = " ".join(f"{place(x)},{place(y)}" for x, y in (*points, *reversed(floor)))
    return f'<polygon class="area {style}" points="{drawn}"/>'


def bar(x: float, y: float, width: float, height: float, style: str) -> str:
    if height <= 0 or width <= 0:
        return ""
    return f'<rect class="area {style}" x="{place(x)}" y="{place(y)}" width="{width:.2f}" height="{height:.2f}"/>'


def dot(x: float, y: float, style: str, words: str) -> str:
    return f'<circle class="dot {style}" cx="{place(x)}" cy="{place(y)}" r="4"><title>{escape(words)}</title></circle>'


def text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{place(x)}" y="{place(y)}" class="{style}">{escape(words)}</text>'


def axes(across: Scale, up: Scale, names: tuple[str, str], across_words: Sequence[str], up_words: Sequence[str]) -> str:
    """Grid, ticks and names. Words stand at `ticks()` of each scale."""
    found = []
    for value, words in zip(up.ticks(), up_words, strict=True):
        y = place(up(value))
        found.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        found.append(text(LEFT - 6, up(value) + 4, words, "end"))
    for value, words in zip(across.ticks(), across_words, strict=True):
        x = place(across(value))
        found.append(f'<path class="grid" d="M{x} {TOP}V{HEIGHT - BOTTOM}"/>')
        found.append(text(across(value), HEIGHT - BOTTOM + 16, words, "middle"))
    found.append(f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    found.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, names[0], "middle name"))
    found.append(
        f'<text transform="translate(12 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" class="middle name">'
        f"{escape(names[1])}</text>"
    )
    return "".join(found)


def drawing(key: str, title: str, description: str, body: str, height: int = HEIGHT) -> str:
    """A whole picture, with what it shows in words for those who do not see it."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{key}-t {key}-d">'
        f'<title id="{key}-t">{escape(title)}</title><desc id="{key}-d">{escape(description)}</desc>{body}</svg>'
    )
