"""Finished lines on their way to the disk: grouped, in order, and none lost when somebody stops waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from plait.api.answers import Usage
from plait.batch.outcomes import LineOutcome
from plait.batch.recorder import Recorder
from plait.core.errors import PlaitError


def outcome(number: int) -> LineOutcome:
    return LineOutcome(number, str(number), "{}", False, Usage())


class SlowDisk:
    """Writes nothing until `go` is set; remembers the groups."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.groups: list[list[int]] = []
        self.told: list[int] = []

    def write(self, outcomes: Sequence[LineOutcome]) -> None:
        assert threading.current_thread() is not threading.main_thread()
        assert self.go.wait(10)
        self.groups.append([one.number for one in outcomes])

    def written(self, outcomes: Sequence[LineOutcome]) -> None:
        self.told += [one.number for one in outcomes]


def test_a_record_returns_when_its_line_is_written_and_what_waited_goes_together() -> None:
    async def scene() -> None:
        disk = SlowDisk()
        recorder = Recorder(disk.write, disk.written)
        running = asyncio.create_task(recorder.run())
        first = asyncio.create_task(recorder.record(outcome(1)))
        for _ in range(5):
            await asyncio.sleep(0)
        rest = [asyncio.create_task(recorder.record(outcome(number))) for number in (2, 3, 4)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not first.done()
        disk.go.set()
        await asyncio.gather(first, *rest)
        recorder.close()
        await running
        assert disk.groups == [[1], [2, 3, 4]]
        assert disk.told == [1, 2, 3, 4]

    asyncio.run(scene())


def test_a_line_is_written_even_if_its_caller_is_cancelled() -> None:
    async def scene() -> None:
        disk = SlowDisk()
        recorder = Recorder(disk.write, disk.written)
        caller = asyncio.create_task(recorder.record(outcome(1)))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        disk.go.set()
        recorder.close()
        await recorder.run()
        assert disk.groups == [[1]]

    asyncio.run(scene())


def test_closing_an_idle_recorder_ends_it() -> None:
    async def scene() -> None:
        recorder = Recorder(lambda outcomes: None, lambda outcomes: None)
        running = asyncio.create_task(recorder.run())
        await asyncio.sleep(0)
        recorder.close()
        await running

    asyncio.run(scene())


def test_a_failed_write_ends_the_recorder_with_its_error() -> None:
    def fail(outcomes: Sequence[LineOutcome]) -> None:
        raise PlaitError("the disk is full")

    async def scene() -> None:
        recorder = Recorder(fail, lambda outcomes: None)
        waiting = asyncio.create_task(recorder.record(outcome(1)))
        with pytest.raises(PlaitError, match="the disk is full"):
            await recorder.run()
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(scene())
