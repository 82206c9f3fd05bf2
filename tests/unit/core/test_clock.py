"""Clocks: waiting ends when it should and never later; simulated time jumps, and says so when it cannot.

Every wait on a real clock runs in a thread that the test gives up on, so a lost wake-up fails and does not hang.
"""

from __future__ import annotations

import math
import os
import resource
import stat
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.clock import Clock, RealClock, SimClock, WaitSource, Wake
from plait.core.errors import InvariantError

PATIENCE_S = 30.0
"""How long a test waits for something that should happen at once."""


@dataclass(slots=True)
class Bell:
    """A source that is rung by hand. `at_s`: when it rings by itself on a simulated clock."""

    rung: bool = False
    at_s: float | None = None
    wakes: list[Callable[[], None]] = field(default_factory=list)
    looks: int = 0

    def ready(self) -> bool:
        self.looks += 1
        return self.rung

    def subscribe(self, wake: Callable[[], None]) -> None:
        self.wakes.append(wake)

    def next_s(self) -> float | None:
        return self.at_s

    def ring(self) -> None:
        self.rung = True
        for wake in self.wakes:
            wake()


class LookedAt(Bell):
    """Says when it has been looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_at = threading.Event()

    def ready(self) -> bool:
        self.looked_at.set()
        return self.rung


class LateBell(Bell):
    """Rings, from another thread, after it was looked at and before the answer arrives: the moment at which a careless
    clock would sleep for ever.
    """

    def ready(self) -> bool:
        was_rung = self.rung
        if not was_rung:
            ringer = threading.Thread(target=self.ring)
            ringer.start()
            ringer.join(PATIENCE_S)
        return was_rung


class FalseAlarm(Bell):
    """Wakes twice for nothing, and rings a while after it was looked at for the third time."""

    def ready(self) -> bool:
        self.looks += 1
        if self.looks <= 2:
            threading.Thread(target=self.wakes[0]).start()
        elif self.looks == 3:
            threading.Timer(0.02, self.ring).start()
        return self.rung


def wait_in_thread(clock: Clock, *sources: WaitSource, until: float | None = None) -> Callable[[], bool]:
    """Begin to wait; the result says whether the wait has ended, giving it time to."""
    ended = threading.Event()

    def wait() -> None:
        clock.wait(*sources, until=until)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return lambda: ended.wait(PATIENCE_S)


def test_real_time_never_goes_back() -> None:
    clock = RealClock()
    times = [clock.now() for _ in range(1000)]
    assert times == sorted(times)


def test_a_source_that_is_ready_ends_the_wait_at_once() -> None:
    assert wait_in_thread(RealClock(), Bell(), Bell(rung=True))()


@pytest.mark.parametrize("until", [None, math.inf, 1e300])
def test_a_source_made_ready_by_another_thread_ends_the_wait(until: float | None) -> None:
    clock, bell, quiet = RealClock(), LookedAt(), Bell()
    has_ended = wait_in_thread(clock, quiet, bell, until=until)
    assert bell.looked_at.wait(PATIENCE_S)
    bell.ring()
    assert has_ended()


def test_a_source_that_rings_between_the_look_and_the_sleep_is_not_missed() -> None:
    assert wait_in_thread(RealClock(), LateBell())()


def test_waking_for_nothing_is_neither_the_end_of_a_wait_nor_the_beginning_of_a_spin() -> None:
    bell = FalseAlarm()
    assert wait_in_thread(RealClock(), bell)()
    assert bell.rung
    assert bell.looks <= 7, "two looks at the start and for each of two false wakes, and one for the last"


def test_a_source_is_subscribed_to_once() -> None:
    clock, bell = RealClock(), Bell(rung=True)
    for _ in range(3):
        clock.wait(bell)
    assert len(bell.wakes) == 1


def test_two_threads_that_wait_for_each_other_in_turns_never_lose_one() -> None:
    rounds = 500
    bells = (Bell(), Bell())
    clocks = (RealClock(), RealClock())

    def play(own: int) -> None:
        for _ in range(rounds):
            clocks[own].wait(bells[own])
            bells[own].rung = False
            bells[1 - own].ring()

    players = [threading.Thread(target=play, args=(own,), daemon=True) for own in (0, 1)]
    for player in players:
        player.start()
    bells[0].ring()
    for player in players:
        player.join(PATIENCE_S)
        assert not player.is_alive()


def test_a_moment_in_the_past_ends_the_wait_at_once() -> None:
    clock = RealClock()
    assert wait_in_thread(clock, Bell(), until=clock.now() - 1.0)()


def test_a_moment_in_the_future_is_waited_for() -> None:
    clock = RealClock()
    until = clock.now() + 0.02
    assert wait_in_thread(clock, Bell(), until=until)()
    assert clock.now() >= until


# What native threads wake with


class NativeBell(Bell):
    """Is rung by eight bytes, as a thread that must not call Python rings it."""

    def ring(self) -> None:
        self.rung = True
        for wake in self.wakes:
            assert isinstance(wake, Wake)
            os.write(wake.fd, (1).to_bytes(8, sys.byteorder))


class LookedAtNativeBell(NativeBell, LookedAt):
    pass


def test_eight_bytes_to_the_descriptor_end_a_wait() -> None:
    bell = LookedAtNativeBell()
    has_ended = wait_in_thread(RealClock(), bell)
    assert bell.looked_at.wait(PATIENCE_S)
    bell.ring()
    assert has_ended()


def test_a_wake_that_nobody_reads_never_blocks_and_is_forgotten_in_one_go() -> None:
    wake = Wake()
    for _ in range(20_000):  # more than a pipe holds
        wake()
    wake.clear()
    start = time.monotonic()
    wake.wait(0.02)
    assert time.monotonic() - start >= 0.01


def test_where_there_are_no_event_descriptors_a_pipe_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.core.clock.sys.platform", "darwin")
    wake = Wake()
    assert stat.S_ISFIFO(os.fstat(wake.fd).st_mode)
    for _ in range(20_000):
        wake()
    wake.wait(None)
    wake.clear()
    os.write(wake.fd, bytes(8))
    wake.wait(PATIENCE_S)
    assert wait_in_thread(RealClock(), LateBell())()


def test_a_descriptor_that_select_cannot_take_is_waited_for_all_the_same() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"this process may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        clock = RealClock()
        until = clock.now() + 0.0005
        assert wait_in_thread(clock, LookedAt(), until=until)()
        assert wait_in_thread(clock, LateBell())()
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_live_as_long_as_a_source_keeps_the_wake() -> None:
    clock, bell = RealClock(), Bell(rung=True)
    clock.wait(bell)
    del clock
    (wake,) = bell.wakes
    assert isinstance(wake, Wake)
    fd = wake.fd
    os.fstat(fd)
    bell.wakes.clear()
    del wake
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_simulated_time_stands_still_while_something_is_ready() -> None:
    clock = SimClock(5.0)
    clock.wait(Bell(at_s=9.0), Bell(rung=True), until=7.0)
    assert clock.now() == 5.0


def test_simulated_time_jumps_to_whatever_comes_first() -> None:
    clock = SimClock()
    clock.wait(Bell(at_s=9.0), Bell(), Bell(at_s=4.0), until=6.0)
    assert clock.now() == 4.0
    clock.wait(Bell(at_s=9.0), until=6.0)
    assert clock.now() == 6.0
    clock.wait(until=8.5)
    assert clock.now() == 8.5


def test_simulated_time_never_goes_back() -> None:
    clock = SimClock(5.0)
    clock.wait(Bell(at_s=3.0), until=4.0)
    assert clock.now() == 5.0


def test_simulated_time_that_nothing_can_move_is_our_bug() -> None:
    with pytest.raises(InvariantError, match="no source will ever become ready"):
        SimClock().wait(Bell(), Bell())


@given(st.lists(st.tuples(st.lists(st.none() | st.floats(0, 100), max_size=3), st.floats(0, 100)), max_size=20))
def test_simulated_time_is_always_the_earliest_moment_ahead(waits: list[tuple[list[float | None], float]]) -> None:
    clock = SimClock()
    for moments, until in waits:
        before = clock.now()
        clock.wait(*[Bell(at_s=moment) for moment in moments], until=until)
        ahead = [moment for moment in [*moments, until] if moment is not None]
        assert clock.now() == max(before, min(ahead))
