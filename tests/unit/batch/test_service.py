"""Batches through trouble: full disks, lost inputs, damaged ledgers, expiry, clocks that go back, dead engines."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import math
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.api.byte_text import MODEL, byte_text
from tests.unit.batch.jobs import chat_line, good_lines
from tests.unit.batch.scripted_client import ScriptedClient, words_of
from tests.unit.sched.blend.test_feeds import EvenLives

from plait.api.bodies import JsonObject
from plait.api.calls import Call, Endpoint
from plait.batch.ledger import Job, Ledger
from plait.batch.lines import BatchLine
from plait.batch.outcomes import LineOutcome
from plait.batch.preparing import Preparer
from plait.batch.records import BatchRecord, BatchState, StoredFile
from plait.batch.service import BatchService, ServiceConfig
from plait.batch.store import Store
from plait.core.client import ModelInfo
from plait.core.errors import PlaitError, RequestError
from plait.core.request import Request
from plait.metrics.limit import WorkDone
from plait.sched.blend.choosing import AnyOrdering, Choosing
from plait.sched.blend.feeds import JobOrder, Ordering
from plait.sched.blend.forecast import Machine

PATIENCE_S = 20.0
NOW = 1_700_000_000


class World:
    """A service on a folder, with a clock that tests turn."""

    def __init__(self, folder: Path, client: ScriptedClient | None = None, ordering: AnyOrdering | None = None) -> None:
        self.unix_now = NOW
        self.client = client or ScriptedClient()
        self.store = Store.open(folder)
        self.service = BatchService(
            ServiceConfig(("byte-model",), rest_s=0.05, ordering=ordering),
            self.store,
            self.client,
            byte_text(),
            lambda: self.unix_now,
            lambda: asyncio.get_running_loop().time(),
            lambda: WorkDone(asyncio.get_running_loop().time()),
        )

    def file(self, lines: Sequence[JsonObject], name: str = "file-in", tenant: str = "") -> StoredFile:
        made = StoredFile(name, tenant, "in.jsonl", "batch", 0, self.unix_now)
        return self.store.write_file(made, [json.dumps(line) for line in lines])

    async def batch(self, file: StoredFile, name: str = "batch_1", window_s: int = 3600) -> str:
        record = BatchRecord(name, file.tenant, file.id, Endpoint.CHAT, "24h", self.unix_now, self.unix_now + window_s)
        return (await self.service.create(record)).id

    async def ended(self, batch_id: str = "batch_1", tenant: str = "") -> BatchRecord:
        while not (record := await self.service.get(batch_id, tenant)).state.is_final:
            await asyncio.sleep(0.005)
        return record

    def lines(self, file_id: str | None, tenant: str = "") -> list[JsonObject]:
        assert file_id is not None
        path = self.store.path(self.store.file(file_id, tenant, self.unix_now))
        return [json.loads(line) for line in path.read_text().splitlines()]


def live(world: World, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` while the service runs."""

    async def both() -> None:
        running = asyncio.create_task(world.service.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await work()
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    try:
        asyncio.run(both())
    finally:
        world.store.close()


def test_a_batch_closes_with_a_report_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "plait.batch")
    world = World(tmp_path)

    async def work() -> None:
        await world.batch(world.file([*good_lines(3), chat_line("bad", "refuse")]))
        await world.ended()

    live(world, work)
    (told,) = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "batch served"]
    assert told.pop("duration_s") >= 0
    assert told.pop("output_tokens_per_s") >= 0
    assert told == {
        "batch": "batch_1",
        "total": 4,
        "folded": 0,
        "completed": 3,
        "failed": 1,
        "prompt_tokens": sum(len(request.prompt) for request in world.client.submitted[:3]),
        # Two tokens of eleven, says the client.
        "prefix_hit_fraction": 0.1818,
        # Four letters and the end.
        "output_tokens": 3 * 5,
        "limited_by": "input: the engine waited for requests",
    }


MEMORY = 8000.0
CHOOSING = Choosing(Ordering(JobOrder.BLEND, EvenLives(), MEMORY), Machine(MEMORY, 256, tells=False))


def test_a_cancel_does_not_wait_for_an_order_that_nobody_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, ordering=CHOOSING)
    prepare, num_prepared = Preparer.prepare, 0

    async def work() -> None:
        loop = asyncio.get_running_loop()

        def cancelled_at_the_fifth(preparer: Preparer, line: BatchLine) -> Call:
            nonlocal num_prepared
            num_prepared += 1
            if num_prepared == 5:
                cancelling = asyncio.run_coroutine_threadsafe(world.service.cancel("batch_1", ""), loop)
                assert cancelling.result(PATIENCE_S).state is BatchState.CANCELLING
            return prepare(preparer, line)

        monkeypatch.setattr(Preparer, "prepare", cancelled_at_the_fifth)
        await world.batch(world.file(good_lines(80)))
        assert (await world.ended()).state is BatchState.CANCELLED

    live(world, work)
    assert num_prepared == 5
    assert not world.client.submitted
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.parametrize("ordering", [None, CHOOSING])
def test_what_a_batch_asks_twice_is_computed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ordering: AnyOrdering | None
) -> None:
    caplog.set_level(logging.INFO, "plait.batch")
    world = World(tmp_path, ordering=ordering)
    lines = [chat_line(f"q{place}", f"say {place % 30} of 30") for place in range(90)]

    async def work() -> None:
        await world.batch(world.file(lines))
        record = await world.ended()
        assert record.num_completed == 90
        assert record.output_tokens == 90 * 5
        answers = world.lines(record.output_file_id)
        assert len({line["response"]["body"]["id"] for line in answers}) == 90  # type: ignore[index, call-overload]

    live(world, work)
    assert len(world.client.submitted) == 30
    (told,) = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "batch served"]
    assert (told["completed"], told["folded"], told["output_tokens"]) == (90, 60, 30 * 5)


def test_a_batch_runs_in_the_shortest_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "plait.batch")
    stems = [letter * 40 for letter in "abcdefghij"]
    lines = [chat_line(f"q{place}", f"{stems[place % 10]} {place}", max_tokens=1) for place in range(80)]
    asked, answers = [], []
    for name, ordering in (("given", None), ("chosen", CHOOSING)):
        world = World(tmp_path / name, ordering=ordering)

        async def work(world: World = world) -> None:
            await world.batch(world.file(lines))
            record = await world.ended()
            assert record.num_completed == 80
            answers.append([line["custom_id"] for line in world.lines(record.output_file_id)])

        live(world, work)
        asked.append([next(stem for stem in stems if stem in words_of(one)) for one in world.client.submitted])
    assert answers[0] == answers[1]
    changes = [sum(one != other for one, other in pairwise(stems)) for stems in asked]
    # Questions that begin alike follow each other.
    assert changes[0] == 79
    assert changes[1] == 9
    (told,) = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "batch order"]
    assert (told["batch"], told["order"], told["lines"]) == ("batch_1", "dfs", 80)
    assert 0 < told["seconds"]["dfs"] < told["seconds"]["input"]


def test_a_full_disk_is_waited_out_and_nothing_runs_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    is_full, refusals = True, 0
    write = Store.write_file

    def write_if_there_is_room(store: Store, file: StoredFile, lines: Sequence[str]) -> StoredFile:
        nonlocal refusals
        if is_full and file.purpose == "batch_output":
            refusals += 1
            raise PlaitError("no room") from OSError(errno.ENOSPC, "No space left on device")
        return write(store, file, lines)

    async def work() -> None:
        nonlocal is_full
        await world.batch(world.file(good_lines(5)))
        while refusals < 3:
            await asyncio.sleep(0.005)
        assert (await world.service.get("batch_1", "")).state is BatchState.FINALIZING
        is_full = False
        record = await world.ended()
        assert record.state is BatchState.COMPLETED
        assert len(world.lines(record.output_file_id)) == 5
        assert len(world.client.submitted) == 5

    monkeypatch.setattr(Store, "write_file", write_if_there_is_room)
    live(world, work)


def test_counts_of_a_batch_that_waits_for_room_never_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    writes = 0
    record = Ledger.record

    def record_if_there_is_room(ledger: Ledger, job: Job, outcomes: Sequence[LineOutcome]) -> None:
        """Room for the first group of lines, not for the next three. Of 400 lines at most 128 are one group."""
        nonlocal writes
        writes += 1
        if 2 <= writes <= 4:
            raise PlaitError("no room") from OSError(errno.ENOSPC, "No space left on device")
        record(ledger, job, outcomes)

    async def work() -> None:
        await world.batch(world.file(good_lines(400)))
        seen = [0]
        while not (now := await world.service.get("batch_1", "")).state.is_final:
            seen.append(now.num_completed)
            assert now.output_tokens >= 0
            await asyncio.sleep(0.001)
        assert seen == sorted(seen)
        assert writes > 4
        assert (now.num_completed, len(world.lines(now.output_file_id))) == (400, 400)

    monkeypatch.setattr(Ledger, "record", record_if_there_is_room)
    live(world, work)


def test_who_may_have_so_many_batches_gets_no_more_by_asking_all_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)

    def at_most_two(unfinished: Sequence[BatchRecord]) -> None:
        if len(unfinished) >= 2:
            raise RequestError("too many", status=429)

    async def work() -> None:
        file, others = world.file(good_lines(1)), world.file(good_lines(1), "file-theirs", "theirs")
        await world.batch(others, "batch_theirs")
        record = BatchRecord("", file.tenant, file.id, Endpoint.CHAT, "24h", NOW, NOW + 3600)
        asked = [world.service.create(replace(record, id=f"batch_{number}"), at_most_two) for number in range(8)]
        made = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(one, RequestError) for one in made] == [False] * 2 + [True] * 6
        assert len(await world.service.all_of("")) == 2

    try:
        asyncio.run(work())
    finally:
        world.store.close()


def test_an_input_that_somebody_took_away_fails_its_batch_and_no_other(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def work() -> None:
        lost, there = world.file(good_lines(2), "file-lost"), world.file(good_lines(2), "file-there")
        world.store.path(lost).unlink()
        await world.batch(lost, "batch_lost")
        await world.batch(there, "batch_there")
        failed = await world.ended("batch_lost")
        assert failed.state is BatchState.FAILED
        assert "no longer on the server's disk" in failed.faults[0].message
        assert str(tmp_path) not in failed.faults[0].message
        assert (await world.ended("batch_there")).state is BatchState.COMPLETED

    live(world, work)


def test_a_damaged_ledger_fails_its_batch_in_words_and_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def work() -> None:
        file = world.file(good_lines(2))
        folder = world.store.batch_folder("batch_1")
        folder.mkdir()
        (folder / "output.jsonl.ledger").write_bytes(b"no database at all" * 100)
        await world.batch(file)
        failed = await world.ended()
        assert failed.state is BatchState.FAILED
        assert "ledger" in failed.faults[0].message
        assert str(tmp_path) not in failed.faults[0].message
        assert (folder / "output.jsonl.ledger").exists()
        assert not world.client.submitted

    live(world, work)


def test_a_ledger_of_another_version_fails_its_batch_with_what_its_client_can_do(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def work() -> None:
        file = world.file(good_lines(2))
        path = world.store.batch_folder("batch_1") / "output.jsonl.ledger"
        path.parent.mkdir()
        Ledger.open(path).close()
        with closing(sqlite3.connect(path, isolation_level=None)) as older:
            older.execute("PRAGMA user_version = 2")
        await world.batch(file)
        failed = await world.ended()
        assert (failed.state, failed.faults[0].code) == (BatchState.FAILED, "version_changed")
        assert "format 2); create it anew" in failed.faults[0].message
        assert path.exists()

    live(world, work)


def test_a_fault_of_our_own_ends_one_batch_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    counts = Ledger.counts
    calls = 0

    def counts_or_not(ledger: Ledger, job: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError("a fault")
        return counts(ledger, job)  # type: ignore[arg-type]

    async def work() -> None:
        await world.batch(world.file(good_lines(2)), "batch_1")
        failed = await world.ended("batch_1")
        assert (failed.state, failed.faults[0].code) == (BatchState.FAILED, "internal_error")
        await world.batch(world.file(good_lines(2), "file-2"), "batch_2")
        assert (await world.ended("batch_2")).state is BatchState.COMPLETED

    monkeypatch.setattr(Ledger, "counts", counts_or_not)
    live(world, work)


def test_what_was_finished_when_its_time_was_over_is_kept(tmp_path: Path) -> None:
    never: list[asyncio.Future[None]] = []

    def stall(request: Request) -> asyncio.Future[None] | None:
        if "0003" not in words_of(request):
            return None
        never.append(asyncio.get_running_loop().create_future())
        return never[-1]

    world = World(tmp_path, ScriptedClient(pause=stall))

    async def work() -> None:
        await world.batch(world.file(good_lines(4)))
        partial = world.store.batch_folder("batch_1") / "output.jsonl.partial"
        while not partial.exists() or partial.read_bytes().count(b"\n") < 3:
            await asyncio.sleep(0.005)
        world.unix_now += 7200
        record = await world.ended()
        assert record.state is BatchState.EXPIRED
        assert [line["custom_id"] for line in world.lines(record.output_file_id)] == ["id-1", "id-2", "id-4"]
        (left,) = world.lines(record.error_file_id)
        assert (left["custom_id"], left["error"]["code"]) == ("id-3", "batch_expired")  # type: ignore[index, call-overload]

    live(world, work)


def test_a_batch_ends_with_its_time_also_when_nobody_looks_at_the_calendar(tmp_path: Path) -> None:
    world = World(tmp_path, ScriptedClient(pause=lambda request: asyncio.get_running_loop().create_future()))

    async def work() -> None:
        await world.batch(world.file(good_lines(1)), window_s=1)
        assert (await world.ended()).state is BatchState.EXPIRED

    live(world, work)


def test_a_cancel_in_the_last_moment_of_a_batch_that_expires_is_kept_to(tmp_path: Path) -> None:
    world = World(tmp_path, ScriptedClient(pause=lambda request: asyncio.get_running_loop().create_future()))

    async def work() -> None:
        await world.batch(world.file(good_lines(2)))
        while not world.client.submitted:
            await asyncio.sleep(0.005)
        running = world.service._running["batch_1"]
        running.stop(BatchState.EXPIRED)
        assert (await world.service.cancel("batch_1", "")).state is BatchState.CANCELLING
        assert (await world.ended()).state is BatchState.CANCELLED

    live(world, work)


def test_a_clock_that_goes_back_ends_nothing_early_and_loses_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.client.on_submit = lambda request: setattr(world, "unix_now", NOW - 86_400)

    async def work() -> None:
        await world.batch(world.file(good_lines(3)))
        record = await world.ended()
        assert record.state is BatchState.COMPLETED
        assert len(world.lines(record.output_file_id)) == 3
        assert [one.id for one in await world.service.all_of("")] == ["batch_1"]

    live(world, work)


def test_an_engine_that_stopped_is_asked_again_later_and_not_all_the_time(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await world.batch(world.file([chat_line("a", "stopped")]))
        while len(world.client.submitted) < 4:
            await asyncio.sleep(0.005)
        assert len(world.client.submitted) <= 1 + (loop.time() - began_s) / 0.05
        assert (await world.service.get("batch_1", "")).state is BatchState.IN_PROGRESS

    live(world, work)


def test_batches_of_different_keys_share_no_prefixes(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def work() -> None:
        for tenant in ("one", "two"):
            await world.batch(world.file(good_lines(1), f"file-{tenant}", tenant), f"batch_{tenant}")
            await world.ended(f"batch_{tenant}", tenant)
        assert [request.tenant for request in world.client.submitted] == ["one/", "two/"]

    live(world, work)


def test_what_a_finished_batch_worked_with_is_cleared_away_also_after_a_kill(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def work() -> None:
        await world.batch(world.file(good_lines(1)))
        await world.ended()
        while world.store.batch_folder("batch_1").exists():
            await asyncio.sleep(0.005)
        world.store.batch_folder("batch_1").mkdir()
        unfinished = replace(await world.service.get("batch_1", ""), id="batch_2", state=BatchState.IN_PROGRESS)
        world.store.add_batch(unfinished)

    live(world, work)
    Store.open(tmp_path).close()
    assert not (tmp_path / "batches" / "batch_1").exists()
    assert (tmp_path / "batches" / "batch_2").exists()


def test_a_store_with_a_damaged_row_says_so_and_other_calls_go_on(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def work() -> None:
        await world.batch(world.file(good_lines(1)))
        await world.ended()
        world.store._connection.execute("UPDATE batches SET record = x'7b7d'")
        with pytest.raises(PlaitError, match="cannot be read"):
            await world.service.get("batch_1", "")
        world.store._connection.execute("UPDATE batches SET is_final = 0")
        await asyncio.sleep(0.2)
        assert world.store.file("file-in", "", NOW).id == "file-in"

    live(world, work)


def test_a_store_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    raw = b"this was never a database" * 100
    (tmp_path / "store.sqlite").write_bytes(raw)
    with pytest.raises(PlaitError, match="choose another folder with --batch-dir"):
        Store.open(tmp_path)
    assert (tmp_path / "store.sqlite").read_bytes() == raw


def test_a_batch_whose_time_is_over_while_its_files_are_made_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    write = Store.write_file

    def write_late(store: Store, file: StoredFile, lines: Sequence[str]) -> StoredFile:
        if file.purpose == "batch_output":
            world.unix_now = NOW + 7200
            time.sleep(0.2)  # the service looks at the clock meanwhile, several times
        return write(store, file, lines)

    async def work() -> None:
        await world.batch(world.file(good_lines(2)))
        assert (await world.ended()).state is BatchState.COMPLETED

    monkeypatch.setattr(Store, "write_file", write_late)
    live(world, work)


def test_the_event_loop_never_uses_the_store_nor_a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    first, second = world.file(good_lines(3)), world.file(good_lines(3), "file-2")
    used_by: dict[str, set[int]] = {}

    def watched(kind: type, name: str) -> Callable[..., object]:
        work = getattr(kind, name)

        def watch(*given: object, **named: object) -> object:
            used_by.setdefault(f"{kind.__name__}.{name}", set()).add(threading.get_ident())
            return work(*given, **named)

        return watch

    for name in ("file", "batch", "batches", "add_batch", "update_batch", "unfinished_batches", "write_file"):
        monkeypatch.setattr(Store, name, watched(Store, name))
    for name in ("begin_job", "finished", "record", "counts", "close"):
        monkeypatch.setattr(Ledger, name, watched(Ledger, name))

    async def work() -> None:
        await world.batch(first)
        await world.ended()
        await world.batch(second, "batch_2")
        await world.service.cancel("batch_2", "")
        await world.ended("batch_2")
        await world.service.all_of("")
        with pytest.raises(RequestError, match="there is no file"):
            await world.batch(replace(first, id="file-none"), "batch_3")
        await world.service.delete_file(first)
        with pytest.raises(RequestError, match="there is no file"):
            await world.batch(first, "batch_3")

    live(world, work)
    assert len(used_by) == 12
    assert not [name for name, threads in used_by.items() if threading.get_ident() in threads]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (replace(MODEL, name="other"), "was begun with model 'byte-model', now it is 'other'"),
        (replace(MODEL, weights="f" * 64), "was begun with other weights that are called 'byte-model' too"),
    ],
)
def test_a_server_of_another_model_ends_the_batch_in_words_of_a_server(
    tmp_path: Path, model: ModelInfo, said: str
) -> None:
    world = World(tmp_path, ScriptedClient(pause=lambda request: asyncio.get_running_loop().create_future()))

    async def begin() -> None:
        await world.batch(world.file(good_lines(2)))
        while not world.client.submitted:
            await asyncio.sleep(0.005)

    live(world, begin)
    world = World(tmp_path, ScriptedClient(model_info=model))

    async def go_on() -> None:
        record = await world.ended()
        assert (record.state, record.faults[0].code) == (BatchState.FAILED, "model_changed")
        message = record.faults[0].message
        assert said in message
        assert "create it anew" in message
        assert "--" not in message
        assert str(tmp_path) not in message
        assert not world.client.submitted

    live(world, go_on)


def test_prompt_tokens_of_a_keys_batches_are_counted_together(tmp_path: Path) -> None:
    """Each batch has three lines of eleven tokens and some; the second is too much beside the first, not alone."""
    world = World(tmp_path)

    async def work() -> None:
        file = world.file(good_lines(3))
        record = BatchRecord("", "", file.id, Endpoint.CHAT, "24h", NOW, NOW + 3600)
        own = sum(len(request.prompt) for request in await _asked(world, replace(record, id="batch_1")))
        limit = 2 * own - 1
        waiting = replace(record, id="batch_2", queued_tokens=own, state=BatchState.IN_PROGRESS)
        world.service._resting[waiting.id] = math.inf
        world.store.add_batch(waiting)
        for name, most in (("batch_3", limit), ("batch_4", own - 1), ("batch_5", 2 * own)):
            await world.service.create(replace(record, id=name, max_queued_tokens=most))
        third, fourth, fifth = [await world.ended(f"batch_{number}") for number in (3, 4, 5)]
        assert [one.state for one in (third, fourth)] == [BatchState.FAILED] * 2
        assert third.faults[0].code == "token_limit_exceeded"
        assert f"batch-tokens={limit}: create it again" in third.faults[0].message
        assert fourth.faults[0].message.endswith("split it")
        assert (fifth.state, fifth.queued_tokens) == (BatchState.COMPLETED, own)

    live(world, work)


async def _asked(world: World, record: BatchRecord) -> list[Request]:
    await world.service.create(record)
    await world.ended(record.id)
    return list(world.client.submitted)


def test_a_batch_that_will_be_late_is_urgent_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "plait.batch")
    world = World(tmp_path)

    async def work() -> None:
        file = world.file(good_lines(200))
        record = BatchRecord("batch_1", "", file.id, Endpoint.CHAT, "24h", NOW, NOW + 3600, finish_by=NOW - 10)
        await world.service.create(record)
        assert (await world.ended()).outlook == "late"

    live(world, work)
    told = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "batch due"]
    assert [one["outlook"] for one in told] == ["late"]
    assert all(request.is_urgent for request in world.client.submitted)


def test_two_batches_of_one_file_have_no_id_in_common(tmp_path: Path) -> None:
    """They run side by side, and an engine refuses a request whose id is in use."""
    world = World(tmp_path)

    async def work() -> None:
        file = world.file(good_lines(3))
        await world.batch(file, "batch_1")
        await world.batch(file, "batch_2")
        first, second = await world.ended("batch_1"), await world.ended("batch_2")
        ids = [line["id"] for ended in (first, second) for line in world.lines(ended.output_file_id)]
        assert len(set(ids)) == len(ids) == 6

    live(world, work)
