"""The client of OpenAI-compatible servers, against a small server on this machine that speaks as engines do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from bench.serving.figures import Answer
from bench.serving.openai_server import OpenAiServer, events
from bench.serving.prompts import Word
from bench.serving.workloads import Ask

ASK = Ask((Word(7, "seven"), Word(8, "eight")), 3)
OK = b"HTTP/1.1 200 OK\r\n"
DONE = b"data: [DONE]\n\n"


def said(text: str, finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": finish}]}).encode() + b"\n\n"


USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}\n\n'
STREAM = said("a") + said("") + said("b") + said("", "length") + USAGE + DONE


def chunked(body: bytes, size: int) -> bytes:
    """The framing of chunks, cut without regard for events."""
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def exchange(reply: bytes, *, stream: bool, hangs: bool = False, **options: Any) -> tuple[Answer, bytes]:
    """An answer to ASK by a server that replies so, and the body that it was sent. `hangs`: then it does nothing."""
    received: list[bytes] = []
    is_answered = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line.split(":")[1] for line in head.splitlines() if line.startswith("Content-Length"))
        received.append(await reader.readexactly(int(length)))
        writer.write(reply)
        await writer.drain()
        if hangs:
            await is_answered.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        answer = await OpenAiServer(f"http://127.0.0.1:{port}", "m", **options).answer(ASK, 0.0, stream=stream)
        is_answered.set()
    return answer, received[0]


def ask(reply: bytes, *, stream: bool = True, **options: Any) -> tuple[Answer, dict[str, Any]]:
    answer, body = asyncio.run(exchange(reply, stream=stream, **options))
    return answer, json.loads(body)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_streamed_tokens_are_timed_one_by_one_however_chunks_are_cut(size: int) -> None:
    answer, _ = ask(OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(STREAM, size))
    assert (answer.error, len(answer.token_s), answer.num_prompt, answer.num_output) == ("", 3, 2, 3)
    assert list(answer.token_s) == sorted(answer.token_s)


def test_a_stream_that_ends_with_its_connection_is_read_to_its_end() -> None:
    answer, _ = ask(OK + b"Content-Type: text/event-stream\r\n\r\n" + STREAM.replace(b"\n", b"\r\n"))
    assert (answer.error, len(answer.token_s), answer.num_output) == ("", 3, 3)


def test_without_usage_events_are_counted() -> None:
    answer, _ = ask(OK + b"\r\n" + said("a") + said("b") + DONE)
    assert (answer.num_prompt, answer.num_output, answer.wanted_output) == (2, 2, 3)


def test_an_answer_in_one_piece_counts_by_its_usage() -> None:
    body = b'{"choices": [{"text": "abc"}], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}'
    answer, _ = ask(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body, stream=False)
    assert (answer.error, answer.token_s, answer.num_output) == ("", (), 3)


def test_greedy_exact_answers_are_asked_for_with_ids_or_text() -> None:
    _, body = ask(OK + b"\r\n" + STREAM)
    assert body["prompt"] == [7, 8]
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"], body["stream"]) == (3, 0, True, True)
    _, body = ask(OK + b"\r\n" + STREAM, as_text=True, extra={"ignore_eos": False, "top_k": 1})
    assert (body["prompt"], body["ignore_eos"], body["top_k"]) == (" seven eight", False, 1)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 7\r\n\r\nloading", "HTTP/1.1 503 Busy loading"),
        (OK + b"\r\n" + b'data: {"error": {"message": "no memory"}}\n\n', "{'message': 'no memory'}"),
        (OK + b"\r\n" + b"data: {not json\n\n", "JSONDecodeError: "),
        (b"", "IncompleteReadError: "),
        (OK + b"Content-Length: 100\r\n\r\nshort", "IncompleteReadError: "),
    ],
)
def test_trouble_is_an_error_of_this_answer(reply: bytes, error: str) -> None:
    answer, _ = ask(reply)
    assert answer.error.startswith(error)


def test_a_server_that_hangs_is_not_waited_for_for_ever() -> None:
    answer, _ = ask(OK + b"Content-Length: 100\r\n\r\nshort", hangs=True, patience_s=0.05)
    assert answer.error == "no answer, or no end of it, in 0.05 s"


def test_a_server_that_is_not_there_is_not_there() -> None:
    assert not asyncio.run(OpenAiServer("http://127.0.0.1:9", "m").is_there())
    with pytest.raises(ValueError, match="is no address of a server; write http://HOST:PORT"):
        OpenAiServer("127.0.0.1:8000", "m")


def test_events_other_than_data_are_skipped() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b": comment\n\nevent: x\n\nda"
        yield b"ta: {}\n\ndata: [DONE]\n\n"

    async def collect() -> list[bytes]:
        return [event async for event in events(pieces())]

    assert asyncio.run(collect()) == [b"{}"]
