"""Units: numbers as people read them, in few characters."""

from __future__ import annotations

_STEPS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(num_bytes: float) -> str:
    """Three figures and a unit of 1,024."""
    value, unit = float(num_bytes), _STEPS[0]
    for unit in _STEPS:
        if value < 1000 or unit == _STEPS[-1]:
            break
        value /= 1024
    if unit == _STEPS[0]:
        return f"{value:.0f} bytes"
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"


def count_text(count: int | None) -> str:
    """A whole number; None is one without end."""
    if count is None:
        return "any"
    return f"{count:,}" if count < 10_000_000 else f"{count / 1e6:,.0f} M"


def short_count(tokens: int | None) -> str:
    return "any length" if tokens is None else f"{count_text(tokens)} tokens"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def big_number(number: float) -> str:
    """Three figures and K, M, B or T for thousands to millions of millions."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            value = number / size
            return f"{value:.{max(0, 3 - len(str(int(value))))}f} {letter}"
    return f"{number:.0f}"
