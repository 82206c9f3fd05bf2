"""Times by class of service, as an option spells them."""

from __future__ import annotations

import pytest

from plait.config.class_times import ClassTimes, parse_class_times
from plait.core.request import ServiceClass


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("500ms", ClassTimes(online=0.5)),
        ("batch=2m", ClassTimes(batch=120.0)),
        ("online=0.5s, batch=1m", ClassTimes(0.5, 60.0)),
    ],
)
def test_a_bare_time_is_for_those_who_wait_and_names_say_the_rest(text: str, times: ClassTimes) -> None:
    assert parse_class_times(text) == times
    assert [times.of(one) for one in ServiceClass] == [times.online, times.batch]


def test_milliseconds_without_their_unit_are_not_taken_for_seconds() -> None:
    for text in ("300", "batch=300", "online=1s,batch=300"):
        with pytest.raises(ValueError, match="a number alone is seconds; write 300s if that is meant, or 300ms"):
            parse_class_times(text)


@pytest.mark.parametrize("text", ["", "x", "0", "online=", "online=0", "offline=1s", "batch=1s,batch=2s", "1s,2s", "="])
def test_anything_else_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"a time( above 0)? such as"):
        parse_class_times(text)
