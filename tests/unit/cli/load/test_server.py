"""The client of OpenAI-style servers against a small one: what is sent, what is read, and every way to fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tests.unit.cli.load.stub_server import Manner, StubServer

from plait.cli.load.asks import Answer, Ask
from plait.cli.load.server import Server, _pieces, events, parse_url
from plait.core.errors import PlaitError, UsageError

ASK = Ask("one two three", 4)


def answer(manner: Manner, ask: Ask = ASK, **options: object) -> tuple[Answer, StubServer]:
    with StubServer(manner) as stub:
        server = Server(parse_url(stub.url), "m", **options)  # type: ignore[arg-type]
        return asyncio.run(server.answer(ask, time.perf_counter())), stub


@pytest.mark.parametrize("is_chunked", [True, False])
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_an_answer_is_counted_and_timed(endpoint: str, is_chunked: bool) -> None:
    got, stub = answer(Manner(0.05, 0.02, is_chunked=is_chunked, cached=1), endpoint=endpoint)
    assert (got.error, got.num_output, len(got.piece_s), got.is_counted, got.num_cached) == ("", 4, 4, True, 1)
    assert got.ttft_s is not None
    assert got.ttft_s >= 0.05
    # Where the first piece is read late, those behind it are nearer to it than they were sent; the whole is not.
    assert got.tpot_s == pytest.approx((got.piece_s[-1] - got.piece_s[0]) / 3)
    assert got.end_s - got.due_s >= 0.05 + 3 * 0.02
    assert len(got.gaps_s) == 3
    (body,) = stub.bodies
    assert (body["model"], body["max_tokens"], body["temperature"], body["stream"]) == ("m", 4, 0, True)
    assert body["ignore_eos"] is True
    assert body["min_tokens"] == 4
    assert body["stream_options"] == {"include_usage": True}
    if endpoint == "chat":
        assert body["messages"] == [{"role": "user", "content": "one two three"}]
    else:
        assert body["prompt"] == "one two three"
        assert got.num_prompt == 3


def test_a_conversation_is_sent_as_it_is() -> None:
    messages = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    _, stub = answer(Manner(), Ask("", 1, messages=messages), endpoint="chat")
    assert stub.bodies[0]["messages"] == list(messages)


def test_a_key_is_sent_where_one_is_given() -> None:
    got, _ = answer(Manner(key="secret"), api_key="secret")
    assert got.error == ""
    got, _ = answer(Manner(key="secret"))
    assert got.error.startswith("HTTP 401: ")


def test_without_usage_pieces_are_counted_and_that_is_known() -> None:
    got, _ = answer(Manner(has_usage=False))
    assert (got.num_output, got.is_counted, got.num_prompt, got.error) == (4, False, None, "")


def test_an_answer_that_ends_early_is_short() -> None:
    got, _ = answer(Manner(most_tokens=2))
    assert (got.error, got.is_short) == ("", True)


OK = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("manner", "told"),
    [
        (Manner(status=503), 'HTTP 503: {"error": {"message": "too much"}}'),
        (Manner(breaks_after=2, is_chunked=False), "the stream ended before the answer did"),
        (Manner(breaks_after=2), "the connection ended in the middle"),
        (Manner(raw=b"SSH-2.0\r\n\r\n"), "not HTTP or not JSON"),
        (Manner(raw=b""), "the connection ended in the middle"),
        (Manner(raw=OK + b"data: {broken\n\n"), "not HTTP or not JSON"),
        (Manner(raw=OK + b"data: [1]\n\n"), "not HTTP or not JSON: an event that is no object"),
        (Manner(raw=OK + b'data: {"error": {"message": "out of memory"}}\n\n'), "the stream says: "),
        (Manner(raw=OK + b"data: " + b"[" * 100_000 + b"\n\n"), "not HTTP or not JSON"),
        (Manner(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n"), "not HTTP or not JSON"),
    ],
)
def test_whatever_goes_wrong_is_an_error_of_that_answer(manner: Manner, told: str) -> None:
    got, _ = answer(manner)
    assert got.error.startswith(told)
    assert "\n" not in got.error


def test_a_server_that_is_silent_is_given_up_and_told_so() -> None:
    got, stub = answer(Manner(first_s=5.0), patience_s=0.1)
    assert got.error == "no end of the answer within 0.1 s"
    assert stub.bodies


def test_nobody_at_the_address_is_an_error() -> None:
    with StubServer() as stub:
        url = stub.url
    got = asyncio.run(Server(parse_url(url), "m").answer(ASK, 0.0))
    assert "refused" in got.error.lower() or "connect" in got.error.lower()
    with pytest.raises(PlaitError, match=r"does not answer \(.*\); is the server up\?"):
        asyncio.run(Server(parse_url(url), "m").find_model())


def test_a_cancelled_answer_closes_its_connection() -> None:
    async def cancel_early(server: Server) -> None:
        pieces = 0

        def heard() -> None:
            nonlocal pieces
            pieces += 1
            if pieces == 2:
                task.cancel()

        task = asyncio.create_task(server.answer(Ask("x", 100_000), 0.0, heard))
        with pytest.raises(asyncio.CancelledError):
            await task

    with StubServer(Manner(says="much " * 1000)) as stub:
        asyncio.run(cancel_early(Server(parse_url(stub.url), "m")))
        until_s = time.monotonic() + 10
        while not stub.num_gone and time.monotonic() < until_s:
            time.sleep(0.01)
        assert stub.num_gone == 1


def test_the_first_model_of_the_list_is_taken() -> None:
    with StubServer(Manner(models=("a", "b"))) as stub:
        assert asyncio.run(Server(parse_url(stub.url), "").find_model()) == "a"
    with StubServer(Manner(models=())) as stub, pytest.raises(PlaitError, match="lists no model"):
        asyncio.run(Server(parse_url(stub.url), "").find_model())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("h:1", "http://h:1/v1"),
        ("http://h:1/v1/", "http://h:1/v1"),
        ("http://h/v3", "http://h:80/v3"),
        ("https://h/v1/chat/completions", "https://h:443/v1"),
        ("http://h/api/v1/completions", "http://h:80/api/v1"),
    ],
)
def test_an_address_is_understood(url: str, shown: str) -> None:
    assert parse_url(url).shown == shown


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:port", "http://h:99999999", "http://[::1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"--url '.*' is no address"):
        parse_url(url)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_found_wherever_pieces_are_cut(size: int) -> None:
    raw = b': comment\n\nevent: x\ndata: {"a":1}\r\n\r\ndata: one\ndata: two\n\nid: 4\ndata:last'

    async def found() -> list[bytes]:
        async def pieces() -> object:
            for start in range(0, len(raw), size):
                yield raw[start : start + size]

        return [event async for event in events(pieces())]  # type: ignore[arg-type]

    assert asyncio.run(found()) == [b'{"a":1}', b"one\ntwo", b"last"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_chunks_are_joined_wherever_they_are_cut(size: int) -> None:
    raw = b"3\r\nabc\r\n1;name=value\r\n\n\r\nA\r\n\r\n\r\n567890\r\n0\r\n\r\n"

    async def found() -> list[bytes]:
        reader = asyncio.StreamReader()
        taken = asyncio.ensure_future(_all(_pieces(reader, {"transfer-encoding": "chunked"})))
        for start in range(0, len(raw), size):
            reader.feed_data(raw[start : start + size])
            await asyncio.sleep(0)
        return await taken

    assert b"".join(asyncio.run(found())) == b"abc\n\r\n\r\n567890"


async def _all(pieces: AsyncIterator[bytes]) -> list[bytes]:
    return [piece async for piece in pieces]
