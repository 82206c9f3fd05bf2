"""Signals while a batch runs: the first stops it in good order, and what was ignored stays ignored."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from plait.batch.interrupts import stopping_on_signals


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def stopped_by(send: Callable[[], None]) -> list[signal.Signals]:
    """What `stop` was called with when signals came in the middle of a run."""
    seen: list[signal.Signals] = []

    async def run() -> None:
        with stopping_on_signals(seen.append):
            send()
            await asyncio.sleep(0.05)

    asyncio.run(run())
    return seen


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_the_run(number: signal.Signals) -> None:
    assert stopped_by(lambda: os.kill(os.getpid(), number)) == [number]


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_was_ignored_from_the_start_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert stopped_by(lambda: os.kill(os.getpid(), signal.SIGINT)) == []
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert stopped_by(lambda: os.kill(os.getpid(), signal.SIGTERM)) == [signal.SIGTERM]


@pytest.mark.usefixtures("handlers")
def test_afterwards_the_handlers_are_those_of_before() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    before = signal.getsignal(signal.SIGINT)
    assert stopped_by(lambda: None) == []
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
