"""Workers are nicer than whoever made them, so that a woken thread of Python preempts them however nice it is."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.unit.exec import test_reference_step as odd

from plait.model.cache_layout import plan_layout
from plait.model.cache_type import CacheType

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")
if sys.platform != "linux":
    pytest.skip("only Linux has a niceness for each thread", allow_module_level=True)

from plait.exec.native.executor import NativeConfig, NativeExecutor

PATIENCE_S = 30.0


def worker_niceness(own: int) -> set[int]:
    """Of the workers of an executor that was made by a thread of this niceness."""
    body, _ = odd.PROGRAMS[next(iter(odd.PROGRAMS))]
    program = odd.build(body)
    layout = plan_layout(program, memory_bytes=1 << 18, tokens_per_block=4, cache_type=CacheType.F32)
    found: set[int] = set()

    def make() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own)
        before = threads()
        executor = NativeExecutor(NativeConfig((-1, -1)))
        executor.load({"step": program}, odd.table_of(odd.random_weights(program)), layout)
        give_up = time.monotonic() + PATIENCE_S
        while not found or (own in found and time.monotonic() < give_up):
            # A worker has its maker's until it has begun.
            found.clear()
            found.update(os.getpriority(os.PRIO_PROCESS, thread) for thread in threads() - before)
        executor.close()

    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
    return found


def threads() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize("further", [0, 3, 8])
def test_workers_are_nicer_than_the_thread_that_made_them(further: int) -> None:
    own = min(os.getpriority(os.PRIO_PROCESS, 0) + further, 13)
    (niceness,) = worker_niceness(own)
    assert niceness == own + 5
