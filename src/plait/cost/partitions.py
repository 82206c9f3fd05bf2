"""Partitions: which splits of a device between decode and prefill there are, and how much prefill goes beside a step.

Owns the closed forms of MuxWise (ASPLOS 2026, sections 3.2 and 3.4): prefill has a multiple of the granularity, decode
the rest; launched layers must outlast the decode step.
Invariant: the parts of a split add up to the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

GRANULARITY = 16
"""SMs: thread-block clusters need it, and finer steps bring little and cost memory of graphs."""


@dataclass(frozen=True, slots=True)
class Split:
    decode: int
    prefill: int


def splits(units: int, granularity: int = GRANULARITY, least_decode: int | None = None) -> tuple[Split, ...]:
    """All splits with both sides at work, fewest units of decode first.

    Decode keeps what is left of whole granules: 12, 28, .. 92 of 108 SMs; a remainder below `least_decode` (default:
    a quarter of a granule) is taken together with a granule: 20, 36, .. 116 of 132 SMs.
    """
    least = ceil(granularity / 4) if least_decode is None else least_decode
    rest = units % granularity
    first = rest if rest > least else rest + granularity
    return tuple(Split(decode, units - decode) for decode in range(first, units, granularity))


def layers_to_launch(decode_s: float, prefill_s: float, num_layers: int) -> int:
    """N_PL: layers of a prefill that takes `prefill_s` in all, so that they last as long as a decode step.

    Never 0, or prefill would stand still, and never more than there are.
    """
    return max(1, min(num_layers, ceil(decode_s * num_layers / prefill_s)))
