"""Capacity: what fits into so many bytes under a layout.

Owns the two searches, for the longest sequence and for the most sequences. Both ask `Layout.fits` alone.
Invariant: what is found fits, and one more does not.
"""

from __future__ import annotations

from collections.abc import Callable

from plait.kv.layouts.groups import Load, one
from plait.kv.layouts.layout import Layout

ENDLESS = 1 << 40
"""Nobody's context and nobody's number of sequences; what still fits here does not grow."""


def largest_context(layout: Layout, memory_bytes: int) -> int | None:
    """The longest single sequence that fits, at every moment on the way there; None: any length does."""
    return _most(lambda tokens: layout.fits(one(tokens, peak=True), memory_bytes))


def most_copies(layout: Layout, load: Load, memory_bytes: int) -> int | None:
    """How many times a load fits at once; None: any number of times, because it takes nothing."""
    return _most(lambda copies: layout.fits(load.times(copies), memory_bytes))


def _most(fits: Callable[[int], bool]) -> int | None:
    """The largest number that fits, where smaller ones fit too."""
    if not fits(1):
        return 0
    if fits(ENDLESS):
        return None
    low, high = 1, ENDLESS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
