"""How long whoever finds no room is told to wait."""

from __future__ import annotations

from plait.core.clock import SimClock
from plait.core.errors import RequestError
from plait.server.replies import error_reply
from plait.server.turnover import FIRST_GUESS_S, Turnover


def answers(clock: SimClock, turnover: Turnover, *seconds: float) -> None:
    for one in seconds:
        with turnover.answer():
            clock.wait(until=clock.now() + one)


def test_as_long_as_the_answers_that_are_lacking_take_at_the_pace_of_those_before() -> None:
    clock = SimClock()
    turnover = Turnover(clock.now)
    answers(clock, turnover, 8.0)
    assert turnover.wait_s(1, 16) == 0.5
    assert turnover.wait_s(4, 16) == 2.0
    assert turnover.wait_s(40, 16) == 8.0, "all of them have ended by then"


def test_the_pace_follows_the_load() -> None:
    clock = SimClock()
    turnover = Turnover(clock.now)
    answers(clock, turnover, 1.0, *[10.0] * 60)
    assert 9.9 < turnover.wait_s(1, 1) <= 10.0


def test_before_any_answer_has_ended_it_is_a_guess() -> None:
    assert Turnover(SimClock().now).wait_s(3, 8) == FIRST_GUESS_S


def test_no_client_is_sent_away_for_longer_than_it_would_believe() -> None:
    def headers(after_s: float) -> tuple[str, str]:
        reply = error_reply(RequestError("full", status=429, retry_after_s=after_s))
        return reply.headers["retry-after"], reply.headers["retry-after-ms"]

    assert headers(0.3) == ("1", "300")
    assert headers(12.34) == ("13", "12340")
    assert headers(3600.0) == ("120", "120000")
