"""Targets: until when a decode step has to end.

Owns the next-token deadline, the one notion under which a bound on every gap (MuxWise's TBT) and on their mean
(Bullet's TPOT) are settings of one number. Knows no prices.
Invariant: a sequence with a bound on every gap counts in full, whatever part of the others may be late.

    bound on every gap    last token + ITL
    bound on the mean     first token + (tokens since + 1) TPOT, but last token + `most_gap` TPOT at most
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from plait.sched.multiplex.situation import NEVER, Decoding

_EXACT = 1e-9
"""Parts such as 0.9 x 10 are whole numbers that floating point may miss."""


@dataclass(frozen=True, slots=True)
class Credit:
    """How the mean is bounded. `part`: of the sequences that must hold it (P90: 0.9)."""

    part: float = 1.0
    is_mean: bool = True
    """False: every gap is bounded by TPOT, as if it were one on gaps."""
    most_gap: float = NEVER
    """In TPOT: no credit makes a gap longer."""


def hard_due_s(decoding: Iterable[Decoding]) -> float:
    """The earliest end of a step that some bound on a gap allows."""
    return min([one.last_s + one.itl_s for one in decoding if one.itl_s is not None], default=NEVER)


def soft_due_s(decoding: Sequence[Decoding], credit: Credit) -> float:
    """The end of a step with which so large a part of the sequences hold their mean."""
    dues = sorted([_mean_due_s(one, one.tpot_s, credit) for one in decoding if one.tpot_s is not None])
    if not dues:
        return NEVER
    return dues[len(dues) - ceil(credit.part * len(dues) - _EXACT)]


def due_s(decoding: Sequence[Decoding], credit: Credit) -> float:
    """Until when a step of these has to end."""
    return min(hard_due_s(decoding), soft_due_s(decoding, credit))


def lateness(decoding: Sequence[Decoding], end_s: float, part: float) -> float:
    """Of a step that ends then: its largest gap over its bound, or the mean gap over its bound within which a part of
    the sequences stays, whichever is more; 1 is on time.
    """
    hard = max((((end_s - one.last_s) / one.itl_s) for one in decoding if one.itl_s is not None), default=0.0)
    means = sorted(
        (end_s - one.first_s) / (one.num_said + 1) / one.tpot_s for one in decoding if one.tpot_s is not None
    )
    soft = means[ceil(part * len(means) - _EXACT) - 1] if means else 0.0
    return max(hard, soft)


def _mean_due_s(one: Decoding, tpot_s: float, credit: Credit) -> float:
    if not credit.is_mean:
        return one.last_s + tpot_s
    return min(one.first_s + (one.num_said + 1) * tpot_s, one.last_s + credit.most_gap * tpot_s)
