"""Copies of states that a chunk makes: drafts end before the next place at which one is wanted."""

from __future__ import annotations

import pytest
from tests.unit.kv.test_groups import make

from plait.core.ids import RequestId, SeqId
from plait.core.request import Request, Sequence
from plait.kv.checkpoints import EveryTokens
from plait.sched.snapshots import Snapshots


@pytest.mark.parametrize(
    ("start", "most"),
    [
        (8, 6),  # row 15 is the sixteenth token's: behind a known token and six drafts, the step after computes it
        (13, 1),
        (14, 0),
        (15, 0),  # the known token itself is copied behind: nothing is drafted in that step
        (16, 6),
    ],
)
def test_no_copy_for_others_is_made_behind_a_guess(start: int, most: int) -> None:
    kv = make(12, ("state", 0)).kv
    snapshots = Snapshots(EveryTokens(8), kv, ())
    seq = Sequence(SeqId(1), Request(RequestId("a"), (1, 2, 3)), 0, 0, 100, 0.0, [1, 2, 3])
    snapshots.joined(seq, kv.no_hit())
    assert snapshots.most_drafts(seq.id, start, 20) == most
    assert snapshots.most_drafts(seq.id, start, min(most, 2)) == min(most, 2)


def test_who_is_not_known_has_no_such_places() -> None:
    assert Snapshots(EveryTokens(8), make(12, ("state", 0)).kv, ()).most_drafts(SeqId(9), 3, 20) == 20
