"""The client and the engine's thread: real threads, a real event loop, and an answer for everyone however it ends."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from tests.unit.api.byte_text import MODEL
from tests.unit.engine.kit import ask
from tests.unit.engine.live import PATIENCE_S, Live, live, within_patience

from plait.core.client import Delta, EngineClient
from plait.core.errors import EngineStopped, InvariantError, RequestError
from plait.core.events import Arrived, Event, Finished
from plait.core.executor import Executor
from plait.core.ids import RequestId
from plait.core.request import FinishReason, Request
from plait.core.step import TokenLogprob
from plait.engine.client import AsyncClient
from plait.engine.inbox import Abort, Inbox
from plait.engine.outbox import Outbox


async def text_of(running: Live, request: Request) -> str:
    return "".join([delta.text async for delta in running.client.submit(request)])


async def until(holds: Callable[[], bool]) -> None:
    """Whoever waits for this waits within somebody's patience."""
    while not holds():
        await asyncio.sleep(0.001)


async def first_of(deltas: AsyncIterator[Delta]) -> Delta:
    return await anext(deltas)


def test_they_are_what_the_interfaces_say() -> None:
    with live() as running:
        client: EngineClient = running.client
        outbox: Outbox = running.client
        executor: Executor = running.device
        assert client.model is MODEL
        assert (outbox, executor.info.name) == (running.client, "simulated")


def test_a_request_is_answered_over_two_threads() -> None:
    with live() as running:
        assert within_patience(text_of(running, ask("r", "abc", max_tokens=5))) == "defgh"


def test_many_requests_at_once_get_their_own_answers() -> None:
    async def all_of_them(running: Live) -> list[str]:
        asked = [ask(f"r{number}", "abcdef"[: 1 + number % 6], max_tokens=1 + number % 9) for number in range(60)]
        return await asyncio.gather(*(text_of(running, request) for request in asked))

    with live() as running:
        answers = within_patience(all_of_them(running))
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    assert answers == [alphabet[1 + number % 6 :][: 1 + number % 9] for number in range(60)]


def test_every_choice_arrives_and_the_iterator_ends_with_the_last() -> None:
    async def collect(running: Live) -> list[Delta]:
        return [delta async for delta in running.client.submit(ask("r", "abc", max_tokens=2, n=3))]

    with live() as running:
        deltas = within_patience(collect(running))
    for choice in range(3):
        own = [delta for delta in deltas if delta.choice == choice]
        assert "".join(delta.text for delta in own) == "de"
        assert [delta.finish_reason for delta in own][-1] is FinishReason.LENGTH
        assert not any(delta.finish_reason for delta in own[:-1])


@pytest.mark.parametrize("n", [0, -1, 1000])
def test_a_refusal_is_raised_at_the_first_step(n: int) -> None:
    async def attempt(running: Live) -> None:
        with pytest.raises(RequestError, match="it must lie in"):
            await anext(running.client.submit(ask("r", n=n)))
        assert await text_of(running, ask("r")) == "defg", "the id is free again"

    with live() as running:
        within_patience(attempt(running))


def test_an_id_in_use_is_refused_and_the_first_request_goes_on() -> None:
    async def attempt(running: Live) -> str:
        running.device.hold()
        running.device.let(1)
        first = running.client.submit(ask("r", "abc", max_tokens=3))
        delta = await anext(first)
        with pytest.raises(RequestError, match="request id 'r' is in use"):
            await anext(running.client.submit(ask("r", "xyz")))
        running.device.let()
        return delta.text + "".join([delta.text async for delta in first])

    with live() as running:
        assert within_patience(attempt(running)) == "def"


def test_closing_the_iterator_aborts() -> None:
    async def leave(running: Live) -> None:
        running.device.hold()
        running.device.let(1)
        deltas = running.client.submit(ask("r", "abc", max_tokens=40))
        await anext(deltas)
        await deltas.aclose()
        await asyncio.to_thread(running.wait_for_end)
        running.device.let()

    with live() as running:
        within_patience(leave(running))
    (finished,) = [event for event in running.events if isinstance(event, Finished)]
    assert finished.reason is FinishReason.ABORT


def test_cancelling_the_task_that_listens_aborts() -> None:
    async def cancel(running: Live) -> None:
        running.device.hold()
        task = asyncio.create_task(text_of(running, ask("r", max_tokens=40)))
        await asyncio.to_thread(running.wait_for_step)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(running.wait_for_end)

    with live() as running:
        within_patience(cancel(running))
    assert running.scheduler.num_running == 0


def test_an_answer_never_reaches_a_later_request_with_the_same_id() -> None:
    async def reuse(running: Live) -> str:
        running.device.hold()
        running.device.let(1)
        deltas = running.client.submit(ask("r", "abc", max_tokens=40))
        await anext(deltas)
        await deltas.aclose()
        with pytest.raises(RequestError, match="request id 'r' is in use"):
            await anext(running.client.submit(ask("r", "abcdef")))
        running.device.let()
        await asyncio.to_thread(running.wait_for_end)
        while True:  # the last answer of the first is on its way through the loop
            try:
                return await text_of(running, ask("r", "abcdef", max_tokens=3))
            except RequestError:
                await asyncio.sleep(0)

    with live() as running:
        assert within_patience(reuse(running)) == "ghi"


def test_abort_by_id_ends_the_answer_with_a_reason() -> None:
    async def abort(running: Live) -> list[Delta]:
        running.device.hold()
        task = asyncio.create_task(collect(running))
        await asyncio.to_thread(running.wait_for_step)
        await running.client.abort(RequestId("r"))
        await running.client.abort(RequestId("nobody"))
        deltas = await task
        running.device.let()
        return deltas

    async def collect(running: Live) -> list[Delta]:
        return [delta async for delta in running.client.submit(ask("r", n=2))]

    with live() as running:
        deltas = within_patience(abort(running))
    assert [(delta.choice, delta.finish_reason) for delta in deltas] == [
        (0, FinishReason.ABORT),
        (1, FinishReason.ABORT),
    ]


def test_a_fault_of_the_engine_fails_every_open_request_and_every_later_one() -> None:
    async def break_down(running: Live) -> list[BaseException | str]:
        running.device.hold()
        tasks = [asyncio.create_task(text_of(running, ask(f"r{number}"))) for number in range(6)]
        await asyncio.to_thread(running.wait_for_step)
        running.device.break_down("block 3 freed twice")
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(EngineStopped, match="block 3 freed twice"):
            await text_of(running, ask("late"))
        return ends

    reports: list[str] = []
    with live(report=reports.append) as running:
        ends = within_patience(break_down(running))
        health = running.client.health()
    reason = "the engine stopped on a fault of its own: InvariantError: block 3 freed twice"
    assert [str(end) for end in ends] == [reason] * 6
    assert all(isinstance(end, EngineStopped) for end in ends)
    assert len({id(end) for end in ends}) == 6, "everyone gets an error of his own"
    assert (health.ok, health.reason) == (False, reason)
    assert len(reports) == 1
    assert "Traceback" in reports[0]
    assert running.device.is_closed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_report_that_cannot_be_written_leaves_nobody_waiting() -> None:
    def report(text: str) -> None:
        raise OSError("standard error is closed")

    async def break_down(running: Live) -> None:
        running.device.hold()
        task = asyncio.create_task(text_of(running, ask("r")))
        await asyncio.to_thread(running.wait_for_step)
        running.device.break_down("broken")
        with pytest.raises(EngineStopped):
            await task

    with live(report=report) as running:
        within_patience(break_down(running))


def test_closing_while_requests_run_ends_each_of_them() -> None:
    async def close(running: Live) -> list[Delta]:
        running.device.hold()
        tasks = [asyncio.create_task(first_of(running.client.submit(ask(f"r{number}")))) for number in range(6)]
        await asyncio.to_thread(running.wait_for_step)
        closing = asyncio.create_task(asyncio.to_thread(running.close))
        deltas = await asyncio.gather(*tasks)
        running.device.let()
        await closing
        with pytest.raises(EngineStopped, match="the engine was closed"):
            await text_of(running, ask("late"))
        return deltas

    with live() as running:
        deltas = within_patience(close(running))
        assert running.client.health().reason == "the engine was closed"
    assert {delta.finish_reason for delta in deltas} == {FinishReason.ABORT}


def test_a_request_that_the_engine_never_saw_is_told_of_the_end() -> None:
    async def submit(client: AsyncClient) -> None:
        task = asyncio.create_task(first_of(client.submit(ask("r"))))
        await asyncio.sleep(0)
        await asyncio.to_thread(client.stopped, "the engine was closed")
        with pytest.raises(EngineStopped, match="the engine was closed"):
            await task

    inbox = Inbox()
    within_patience(submit(AsyncClient(MODEL, inbox)))
    assert not any(isinstance(message, Abort) for message in inbox.drain()), "nobody is there to be told"


def test_a_loop_that_is_gone_is_no_fault_of_the_engine() -> None:
    may_finish = threading.Event()

    def hold_the_engine(event: Event) -> None:
        if isinstance(event, Finished):
            may_finish.wait(PATIENCE_S)

    async def leave(running: Live) -> None:
        running.device.hold()
        running.device.let(1)
        await anext(running.client.submit(ask("r", max_tokens=40)))

    with live(on_event=hold_the_engine) as running:
        within_patience(leave(running))  # the loop is closed while the engine has the abort's answer in its hands
        may_finish.set()
        running.wait_for_end()
        running.close()
        assert running.client.health().reason == "the engine was closed"


@pytest.mark.parametrize("seed", range(3))
def test_clients_that_come_and_go_as_they_please_leave_nothing_behind(seed: int) -> None:
    rng = random.Random(seed)

    async def visit(running: Live, number: int, patience: int) -> str:
        """Listen to at most so many deltas, then leave; sometimes somebody else aborts meanwhile."""
        deltas = running.client.submit(ask(f"r{number}", "abcdefghi"[: 1 + number % 9], max_tokens=20))
        said = ""
        async for delta in deltas:
            said += delta.text
            patience -= 1
            if patience == 0:
                break
            if number % 7 == 0:
                await running.client.abort(RequestId(f"r{number}"))
        await deltas.aclose()
        return said

    async def everybody(running: Live) -> list[str]:
        return await asyncio.gather(*(visit(running, number, rng.randint(1, 30)) for number in range(150)))

    with live() as running:
        said = within_patience(everybody(running))
        running.wait_for_end(150)
    alphabet = "abcdefghijklmnopqrstuvwxyz" * 2
    assert all(alphabet[1 + number % 9 :].startswith(text) for number, text in enumerate(said))
    assert [event.seq for event in running.events if isinstance(event, Arrived)] == list(range(150))
    running.scheduler.check()
    assert (running.scheduler.num_running, running.scheduler.num_waiting) == (0, 0)


def test_health_says_what_is_going_on() -> None:
    async def look(running: Live) -> None:
        running.device.hold()
        tasks = [asyncio.create_task(text_of(running, ask(f"r{number}", "xyz"[number % 3]))) for number in range(6)]
        await until(lambda: running.scheduler.num_running + running.scheduler.num_waiting == 6)
        running.device.let(1)
        await until(lambda: running.client.health().num_running == 4)
        health = running.client.health()
        assert (health.ok, health.num_running, health.num_waiting, health.reason) == (True, 4, 2, None)
        running.device.let()
        await asyncio.gather(*tasks)

    assert AsyncClient(MODEL, Inbox()).health().reason == "not started"
    with live() as running:
        within_patience(look(running))


def test_closing_twice_is_closing_once() -> None:
    with live() as running:
        running.close()
        running.close()


def test_a_client_serves_one_loop() -> None:
    with live() as running:
        assert within_patience(text_of(running, ask("r"))) == "defg"
        with pytest.raises(InvariantError, match="one event loop"):
            within_patience(text_of(running, ask("s")))


def test_a_tick_wakes_the_loop_once_however_many_deltas_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def count(client: AsyncClient) -> list[int]:
        wakes: list[Callable[[], object]] = []
        tasks = [asyncio.create_task(first_of(client.submit(ask(name)))) for name in ("r", "s")]
        await asyncio.sleep(0)
        monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", wakes.append)
        counts = []
        for names in ((), ("r", "s", "nobody"), ()):
            for name in names:
                client.put(RequestId(name), Delta(0, "x", (1,), finish_reason=FinishReason.STOP))
            client.flush()
            counts.append(len(wakes))
        monkeypatch.undo()
        for wake in wakes:
            wake()
        assert [delta.text for delta in await asyncio.gather(*tasks)] == ["x", "x"]
        return counts

    assert within_patience(count(AsyncClient(MODEL, Inbox()))) == [0, 1, 1]


def test_a_reader_who_falls_behind_finds_one_delta_a_choice() -> None:
    async def fall_behind() -> list[Delta]:
        client = AsyncClient(MODEL, Inbox(), max_unread=100)
        answers = client.submit(ask("r", max_tokens=40, n=2))
        first = asyncio.create_task(anext(answers))
        await asyncio.sleep(0)
        for number in range(6):
            entry = TokenLogprob(number, -1.0, ())
            client.put(RequestId("r"), Delta(number % 2, str(number), (number,), (entry,), num_cached=number))
        for choice in range(2):
            client.put(RequestId("r"), Delta(choice, "", (9,), finish_reason=FinishReason.STOP, stop_reason=9))
        client.flush()
        return [await first, *[delta async for delta in answers]]

    zero, one = within_patience(fall_behind())
    assert (zero.choice, zero.text, zero.tokens, len(zero.logprobs)) == (0, "024", (0, 2, 4, 9), 3)
    assert (one.choice, one.text, one.tokens, [entry.token for entry in one.logprobs]) == (
        1,
        "135",
        (1, 3, 5, 9),
        [1, 3, 5],
    )
    assert (zero.finish_reason, zero.stop_reason, one.finish_reason) == (FinishReason.STOP, 9, FinishReason.STOP)


def test_without_a_limit_every_delta_is_read_as_it_was_made() -> None:
    async def fall_behind() -> list[str]:
        client = AsyncClient(MODEL, Inbox())
        answers = client.submit(ask("r", max_tokens=40))
        first = asyncio.create_task(anext(answers))
        await asyncio.sleep(0)
        for number in range(3):
            client.put(RequestId("r"), Delta(0, str(number), (number,)))
        client.put(RequestId("r"), Delta(0, "", (9,), finish_reason=FinishReason.STOP, stop_reason=9))
        client.flush()
        return [(await first).text, *[delta.text async for delta in answers]]

    assert within_patience(fall_behind()) == ["0", "1", "2", ""]


def test_a_request_whose_answer_nobody_reads_is_aborted_and_what_waits_is_bounded() -> None:
    async def listen_late() -> None:
        inbox = Inbox()
        client = AsyncClient(MODEL, inbox, max_unread=3)
        answers = client.submit(ask("r", max_tokens=40))
        first = asyncio.create_task(anext(answers))
        await asyncio.sleep(0)
        for number in range(10):
            client.put(RequestId("r"), Delta(0, str(number), (number,)))
            client.flush()
            await asyncio.sleep(0)
        assert (await first).text == "0"
        assert (await anext(answers)).text == "123", "what was not read is joined"
        with pytest.raises(RequestError, match="was not read: 3 parts") as caught:
            _ = [delta async for delta in answers]
        assert caught.value.code == "reader_too_slow"
        assert any(isinstance(message, Abort) for message in inbox.drain())
        with pytest.raises(RequestError, match="request id 'r' is in use"):
            await anext(client.submit(ask("r")))
        aborting = asyncio.create_task(client.abort(RequestId("r")))
        await asyncio.sleep(0)
        client.put(RequestId("r"), Delta(0, "", (), finish_reason=FinishReason.ABORT))
        assert not aborting.done()
        client.flush()
        await aborting
        assert not client._open, "the id is free again"

    within_patience(listen_late())
