"""Stream groups: how SGLang's `--enable-pdmux` cuts a device, and which cut a decode batch gets.

Owns the rules of that engine, which publishes no estimator: a list of splits made at the start, chosen by the decode
batch alone. A baseline for policies that price. Knows no time.
Invariant: in every split prefill has at least half of the device, and decode 16 units.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.errors import UsageError
from plait.cost.partitions import Split

LEAST_DECODE = 16
DEFAULT_GROUPS = 8
"""Of which the first and the last are the whole device for one phase."""
BATCH_DIVISOR = 36

# Compute capability, major -> (fewest SMs of a green context, multiple of SMs).
GREEN_CONTEXTS = {6: (1, 1), 7: (2, 2), 8: (4, 2), 9: (8, 8)}


def automatic_splits(units: int, capability: int, groups: int = DEFAULT_GROUPS) -> tuple[Split, ...]:
    """Largest prefill part first. Every so many of the possible ones, so that at most `groups` - 2 remain."""
    if capability not in GREEN_CONTEXTS:
        known = ", ".join(map(str, GREEN_CONTEXTS))
        raise UsageError(f"compute capability {capability}.x has no rule for green contexts; known: {known}")
    if groups < 3:
        raise UsageError(f"there are {groups} stream groups; two are whole devices, so at least 3 are needed")
    least, multiple = GREEN_CONTEXTS[capability]
    possible = [p for p in range(least, units - LEAST_DECODE + 1, multiple) if 2 * p >= units]
    wanted = groups - 2
    taken = possible[:: max(1, len(possible) // wanted)][:wanted]
    return tuple(Split(units - prefill, prefill) for prefill in reversed(taken))


def group_of(decode_batch: int, groups: int = DEFAULT_GROUPS, thresholds: Sequence[int] = ()) -> int:
    """The stream group while both phases run: 1 to `groups` - 2.

    `thresholds` is a table made by hand: the last one that is not above the batch wins. `UsageError` below all of them,
    where that engine fails.
    """
    if not thresholds:
        return min(max(decode_batch * (groups - 2) // BATCH_DIVISOR, 1), groups - 2)
    reached = [place for place, least in enumerate(thresholds, 1) if least <= decode_batch]
    if not reached:
        raise UsageError(f"a decode batch of {decode_batch} is below every threshold of the table; begin it at 1")
    return reached[-1]


def layers_per_launch(new_tokens: int, num_layers: int, token_layers: int = 65536) -> int:
    """Layers of a prefill that it launches at a time; all of them if nothing is left to compute."""
    return num_layers if new_tokens < 1 else min(num_layers, max(1, token_layers // new_tokens))
