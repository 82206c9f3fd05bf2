"""Until when something is to be done, as people write it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from plait.core.moments import check_moment, parse_duration, parse_moment

NOW = datetime(2026, 11, 30, 20, 15, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("2h", 7200), ("1h30m", 5400), ("1d", 86_400), ("45s", 45), (" 2H ", 7200)],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds
    assert parse_moment(text, NOW) == NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "0h", "h", "2", "2h ago", "-2h", "1m1h", "2.5h", "99999d"])
def test_what_is_no_duration(text: str) -> None:
    assert parse_duration(text) is None


def test_a_time_of_day_is_the_next_one() -> None:
    assert parse_moment("21:00", NOW) == NOW.replace(hour=21, minute=0)
    assert parse_moment("20:15", NOW) == NOW + timedelta(days=1)
    assert parse_moment("7:30", NOW) == NOW.replace(day=1, month=12, hour=7, minute=30)


def test_dates_are_in_the_zone_of_now_unless_they_say_another() -> None:
    assert parse_moment("2026-12-01T06:00", NOW) == datetime(2026, 12, 1, 5, 0, tzinfo=UTC)
    assert parse_moment("2026-12-01 06:00", NOW) == datetime(2026, 12, 1, 5, 0, tzinfo=UTC)
    assert parse_moment("2026-12-01T06:00Z", NOW) == datetime(2026, 12, 1, 6, 0, tzinfo=UTC)
    assert parse_moment("2026-12-01T06:00+02:00", NOW, is_local=False) == datetime(2026, 12, 1, 4, 0, tzinfo=UTC)


@pytest.mark.parametrize("text", ["21:00", "2026-12-01T06:00"])
def test_who_may_live_elsewhere_has_to_say_in_which_zone(text: str) -> None:
    with pytest.raises(ValueError, match="with its zone"):
        parse_moment(text, NOW, is_local=False)


@pytest.mark.parametrize("text", ["soon", "25:00", "12:60", "2026-12-01", "", "2026-13-01T00:00"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError, match="is expected"):
        check_moment(text)


def test_what_has_passed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2026-11-30T20:00.* has passed"):
        parse_moment("2026-11-30T20:00", NOW)
