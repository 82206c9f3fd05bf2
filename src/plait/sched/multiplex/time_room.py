"""Time room: whether one more sequence fits into the decode step of everybody who runs.

Owns the bound of a crowd: a decode step of all of them on all units has to be over within the tightest gap that any of
them was promised. Whether there is memory is asked elsewhere (`plait.sched.lives`).
Invariant: whoever would be alone fits, whatever was promised; who says no token after his first takes no room.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from collections.abc import Sequence as AnySequence

from plait.core.ids import SeqId
from plait.core.request import Sequence
from plait.sched.multiplex.pricing import Prices
from plait.sched.multiplex.situation import NEVER
from plait.sched.multiplex.viewing import decode_shape


def decodes(seq: Sequence) -> bool:
    """Whether a decode step will ever bring it a token: the first one comes with its prompt."""
    return seq.max_output_tokens > 1


def tightest_gap_s(seqs: Iterable[Sequence]) -> float:
    """Between tokens, promised to any of them; who is promised a mean cannot have it where every gap is longer."""
    slos = [seq.request.slo for seq in seqs]
    return min([gap for slo in slos for gap in (slo.itl_s, slo.tpot_s) if gap is not None], default=NEVER)


class TimeRoom:
    """Of one device. `is_guarded`: a step counts as long as it may last at worst; else as is to be expected."""

    def __init__(self, prices: Prices, *, is_guarded: bool) -> None:
        self._prices = prices
        self._is_guarded = is_guarded
        self._refused: tuple[int, SeqId] | None = None
        """How many ran when who did not fit. Their steps only grow longer, so it holds until one of them leaves."""

    def has_room(self, running: Iterable[Sequence], seq: Sequence) -> bool:
        """For `seq`, beside everybody who runs and has still to say something, prompts under way included."""
        rows = [one for one in running if decodes(one)]
        if not rows or not decodes(seq):
            return True
        if self._refused == (len(rows), seq.id):
            return False
        everybody = [*rows, seq]
        has_room = self._step_s(everybody) <= tightest_gap_s(everybody)
        self._refused = None if has_room else (len(rows), seq.id)
        return has_room

    def num_fitting(self, seqs: AnySequence[Sequence]) -> int:
        """The most of them, from the first on, that could run together if all were promised the tightest gap."""
        gap_s = tightest_gap_s(seqs)
        if gap_s == NEVER or self._step_s(seqs) <= gap_s:
            return len(seqs)
        counts = range(1, len(seqs))
        return bisect_right(counts, False, key=lambda count: self._step_s(seqs[:count]) > gap_s)

    def _step_s(self, seqs: AnySequence[Sequence]) -> float:
        price = self._prices.decode(decode_shape(seqs), self._prices.units)
        return price.worst_s if self._is_guarded else price.expected_s
