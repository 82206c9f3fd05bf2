"""Moments: until when something is to be done, as people write it.

Owns the forms: a duration from now, a time of day, or a date and time. Reads no clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_DURATION = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,5})h)?(?:(\d{1,7})m)?(?:(\d{1,8})s)?")
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
FORMS = "a duration such as 90m, 2h or 1h30m, a time such as 17:30, or a date and time such as 2026-12-01T06:00"
ZONED = "a duration such as 90m, 2h or 1h30m, or a date and time with its zone such as 2026-12-01T06:00Z"


def parse_duration(text: str) -> float | None:
    """Seconds, more than none; None: it is no duration."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    total = 86_400 * days + 3600 * hours + 60 * minutes + seconds
    return float(total) if total else None


def parse_moment(text: str, now: datetime, *, is_local: bool = True) -> datetime:
    """The moment that is meant, in the zone of `now`, which has one. A time of day is the next one; with `is_local`
    False, whoever wrote it may live in another zone, so that he has to say in which. `ValueError` for anything else,
    and for what has passed.
    """
    text = text.strip()
    duration_s = parse_duration(text)
    if duration_s is not None:
        return now + timedelta(seconds=duration_s)
    moment = _time_of_day(text, now) if is_local else None
    if moment is None:
        moment = _date_and_time(text, now, is_local=is_local)
    if moment is None:
        raise ValueError(f"{FORMS if is_local else ZONED} is expected")
    if moment <= now:
        raise ValueError(f"{moment.isoformat(timespec='minutes')} has passed; name a later moment")
    return moment


def check_moment(text: str) -> str:
    """The text itself, if it has one of the forms."""
    first = datetime(1, 1, 2, tzinfo=UTC)
    parse_moment(text, first)
    return text


def _time_of_day(text: str, now: datetime) -> datetime | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    moment = now.replace(hour=int(found[1]), minute=int(found[2]), second=0, microsecond=0)
    return moment if moment > now else moment + timedelta(days=1)


def _date_and_time(text: str, now: datetime, *, is_local: bool) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if len(text) <= len("2026-12-01"):
        # A day has many moments.
        return None
    if moment.tzinfo is not None:
        return moment.astimezone(now.tzinfo)
    return moment.replace(tzinfo=now.tzinfo) if is_local else None
