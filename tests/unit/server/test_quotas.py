"""Quotas: what one key may have in flight and use in a minute, on a clock that is set by hand."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest

from plait.core.clock import SimClock
from plait.core.errors import RequestError
from plait.server.quotas import Account, Quota, Quotas, Taken


class Desk:
    """One key's account, its clock and what it refused."""

    def __init__(self, quota: Quota) -> None:
        self.clock = SimClock(100.0)
        self.refused: Counter[str] = Counter()
        self.account = Account(quota, self.clock.now, lambda reason: self.refused.update([reason]))
        self.open = ExitStack()

    def enter(self) -> Taken:
        return self.open.enter_context(self.account.request())

    def ask(self, num_prompt: int, num_answer: int = 0) -> Taken:
        taken = self.enter()
        self.account.take(taken, num_prompt, num_prompt + num_answer)
        return taken

    def done(self) -> None:
        """Everything that is open ends."""
        self.open.close()

    def later(self, seconds: float) -> None:
        self.clock.wait(until=self.clock.now() + seconds)

    def refuses(self, limit: str, num_prompt: int = 1, num_answer: int = 0) -> float:
        """The seconds after which one may ask again."""
        with pytest.raises(RequestError) as caught, self.account.request() as taken:
            self.account.take(taken, num_prompt, num_prompt + num_answer)
        error = caught.value
        assert (error.status, error.code, error.kind) == (429, "rate_limit_exceeded", "rate_limit_error")
        assert limit in error.message
        assert error.retry_after_s is not None
        return error.retry_after_s


def test_so_many_requests_are_let_in_at_once_and_another_when_one_has_ended() -> None:
    desk = Desk(Quota(requests=2))
    desk.enter()
    with desk.account.request():
        assert desk.refuses("requests=2") > 0
    desk.enter()
    assert desk.refused == {"key_quota": 1}


def test_tokens_at_once_count_answers_at_their_longest() -> None:
    desk = Desk(Quota(tokens=100))
    desk.ask(30, 30)
    assert desk.refuses("tokens=100", 21, 20) > 0
    desk.ask(20, 20)
    desk.done()
    desk.ask(60, 40)


def test_who_asks_for_more_than_all_is_let_in_alone() -> None:
    desk = Desk(Quota(tokens=10, tokens_per_minute=10))
    desk.ask(50)
    desk.refuses("tokens=10")
    desk.done()
    # 50 of 10 a minute: four minutes below nothing, and one more token's time until one is there.
    assert desk.refuses("tokens/minute=10") == pytest.approx(246)
    desk.later(246)
    desk.ask(1)


def test_requests_of_a_minute_come_back_evenly() -> None:
    desk = Desk(Quota(requests_per_minute=6))
    for _ in range(6):
        desk.ask(1)
    assert desk.refuses("requests/minute=6") == pytest.approx(10)
    desk.later(9.5)
    assert desk.refuses("requests/minute=6") == pytest.approx(0.5)
    desk.later(0.5)
    desk.ask(1)
    desk.later(3600)
    for _ in range(6):
        desk.ask(1)
    desk.refuses("requests/minute=6")


def test_tokens_of_a_minute_are_taken_as_they_come() -> None:
    desk = Desk(Quota(tokens_per_minute=60))
    taken = desk.ask(10, 1000)
    taken.came(20)
    desk.ask(30)
    taken.came(15)
    assert desk.refuses("tokens/minute=60", 5) == pytest.approx(20)
    desk.later(20)
    desk.ask(5)


def test_a_request_that_was_refused_takes_nothing_but_its_place_in_the_minute() -> None:
    desk = Desk(Quota(requests=1, tokens=10, requests_per_minute=100, tokens_per_minute=1000))
    holding = desk.ask(9)
    assert holding.num_tokens == 9
    desk.refuses("requests=1")
    desk.done()
    desk.ask(10)


def test_batches_are_counted_by_their_own_limit() -> None:
    account = Desk(Quota(batches=2)).account
    account.check_batches(1)
    with pytest.raises(RequestError, match="batches=2"):
        account.check_batches(2)
    Quotas().check_batches("anyone", 10_000)


def test_lines_of_batches_are_counted_together() -> None:
    account = Desk(Quota(batch_lines=100)).account
    account.check_batches(3, 40, 60)
    with pytest.raises(RequestError, match=r"have 41 lines and this one has 60.*batch-lines=100") as refused:
        account.check_batches(3, 41, 60)
    assert refused.value.status == 429
    # Of what is too large by itself nobody should wait for the end of others.
    with pytest.raises(RequestError, match="split it") as too_large:
        account.check_batches(0, 0, 101)
    assert too_large.value.status == 400


def test_one_key_never_refuses_another_and_no_quota_is_no_limit() -> None:
    one, two = Desk(Quota(requests=1)), Desk(Quota(requests=1))
    quotas = Quotas({"one": one.account, "two": two.account})
    with quotas.request("one"), quotas.request("two"), quotas.request("free") as free, quotas.request("free"):
        assert free is None
        with pytest.raises(RequestError), quotas.request("one"):
            pass
    with quotas.request("one"):
        pass
