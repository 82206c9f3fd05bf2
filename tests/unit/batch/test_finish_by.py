"""Whether a job will have ended when somebody wants it."""

from __future__ import annotations

import pytest

from plait.batch.finish_by import FinishBy, Outlook, outlook


@pytest.mark.parametrize(
    ("to_go_s", "left_s", "found"),
    [
        (100.0, None, Outlook.UNKNOWN),
        (100.0, 80.0, Outlook.IN_TIME),
        (100.0, 95.0, Outlook.AT_RISK),
        (100.0, 110.0, Outlook.AT_RISK),
        (100.0, 112.0, Outlook.LATE),
        (-1.0, 5.0, Outlook.LATE),
        (-1.0, None, Outlook.LATE),
        (-1.0, 0.0, Outlook.LATE),
        (10.0, 0.0, Outlook.IN_TIME),
    ],
)
def test_an_estimate_a_tenth_off_turns_nothing_round(to_go_s: float, left_s: float | None, found: Outlook) -> None:
    assert outlook(to_go_s, left_s) is found


def test_every_change_is_told_once() -> None:
    now, told = 0.0, []
    due = FinishBy(100.0, lambda: now, lambda found, left_s, to_go_s: told.append((found, left_s, to_go_s)))
    due.judge(None)
    assert not due.is_urgent
    due.judge(50.0)
    due.judge(51.0)
    now = 60.0
    due.judge(40.0)
    assert due.is_urgent
    due.judge(None)
    assert due.is_urgent
    due.judge(60.0)
    due.judge(10.0)
    assert not due.is_urgent
    assert told == [
        (Outlook.IN_TIME, 50.0, 100.0),
        (Outlook.AT_RISK, 40.0, 40.0),
        (Outlook.LATE, 60.0, 40.0),
        (Outlook.IN_TIME, 10.0, 40.0),
    ]
