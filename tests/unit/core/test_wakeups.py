"""A thread that waits most of the time may ask for the shortest slice; others keep theirs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from plait.core import wakeups


def in_a_thread(run: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


def test_the_slice_is_that_of_one_thread_and_its_priority_stays() -> None:
    def ask() -> tuple[bool, int | None, object, int]:
        before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        had = wakeups.wake_promptly()
        after = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return had, wakeups.slice_ns(), in_a_thread(wakeups.slice_ns), after - before

    before_ns = wakeups.slice_ns()
    had, asked_ns, child_ns, moved = in_a_thread(ask)  # type: ignore[misc]
    assert moved == 0
    assert wakeups.slice_ns() == before_ns
    if had:
        assert (asked_ns, child_ns) == (wakeups.SLICE_NS, before_ns)
    else:
        assert asked_ns != wakeups.SLICE_NS


def test_a_machine_that_is_not_known_gives_none_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "abacus")
    assert not wakeups.wake_promptly()
    assert wakeups.slice_ns() is None
