"""Limit: what kept an engine from being faster between two moments.

Owns the sentence behind closing reports, and the counts that it follows from. Counts nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass

BUSY_ENOUGH = 0.8
"""Share of the time in steps above which the engine itself, and not its input, was the limit."""

BLOCKED_ENOUGH = 0.2
"""Share of the steps that left sequences waiting for one thing above which that thing was the limit."""


@dataclass(frozen=True, slots=True)
class WorkDone:
    """Counts since the engine's start, at `at_s`. Of the steps, some left sequences waiting for memory or for rows."""

    at_s: float = 0.0
    steps: int = 0
    busy_s: float = 0.0
    short_of_memory: int = 0
    short_of_rows: int = 0


def limit_between(before: WorkDone, after: WorkDone) -> str:
    """One sentence."""
    steps = after.steps - before.steps
    if steps == 0 or after.busy_s - before.busy_s < BUSY_ENOUGH * (after.at_s - before.at_s):
        return "input: the engine waited for requests"
    if after.short_of_memory - before.short_of_memory > BLOCKED_ENOUGH * steps:
        return "cache memory: requests waited for blocks; a larger --kv-cache-memory would help"
    if after.short_of_rows - before.short_of_rows > BLOCKED_ENOUGH * steps:
        return "compute, with more requests waiting than --max-num-seqs lets run at once"
    return "compute"
