"""Capacity: what fits into so many bytes under a layout.

Owns the two searches, for the longest sequence and for the most sequences. Both ask a `Layout` alone.
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


def most_sequences(layout: Layout, load: Load, memory_bytes: int) -> int | None:
    """How many sequences fit at once, where their sizes are mixed as in a load; None: any number, they take nothing."""
    blocks = [cut.usage(load).blocks for cut in layout.cuts]

    def fits(sequences: int) -> bool:
        return layout.holds([-(-count * sequences // load.count) for count in blocks], memory_bytes)

    return _most(fits)


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
