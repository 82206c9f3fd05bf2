"""Server: an engine behind an OpenAI-style HTTP server, by its address.

Owns one request at a time: HTTP/1.1 over asyncio's streams, server-sent events however they are cut. No client library,
because a client's work for each token takes processor time from a server on the same machine.
Invariant: whatever a server sends or fails to send becomes an `Answer`, within `patience_s` and bounded memory.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

import orjson

from plait.cli.load.asks import Answer, Ask, deaf
from plait.core.errors import PlaitError, UsageError

Json: TypeAlias = "Mapping[str, Json] | list[Json] | str | int | float | bool | None"

MAX_LINE_BYTES = 1 << 22
MAX_BODY_BYTES = 1 << 24
PATIENCE_S = 600.0
"""For one answer. A server that takes longer hangs."""
_SHOWN_ERROR = 200
_MOST_FRAMING = 1 << 10
"""Bytes around the content of a chunk."""
_TROUBLE = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError, RecursionError)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is. `base` ends in /v1."""

    host: str
    port: int
    base: str
    is_tls: bool

    @property
    def shown(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.host}:{self.port}{self.base}"


def parse_url(url: str) -> Address:
    """`http://HOST:PORT`, with or without /v1 or the path of an endpoint behind it."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--url {url!r} is no address ({error}); write http://HOST:PORT") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {url!r} is no address of a server; write http://HOST:PORT")
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/completions")
    base = path if path.endswith(("/v1", "/v3")) else f"{path}/v1"
    is_tls = parts.scheme == "https"
    return Address(parts.hostname, port or (443 if is_tls else 80), base, is_tls)


@dataclass(slots=True)
class _Received:
    """What has been read of an answer."""

    heard: Callable[[], None]
    piece_s: list[float] = field(default_factory=list)
    usage: Mapping[str, Json] = field(default_factory=dict)
    error: str = ""
    is_done: bool = False


class Server:
    """`model`: what requests call it. `endpoint`: raw text to /completions, or messages to /chat/completions."""

    def __init__(
        self,
        address: Address,
        model: str,
        *,
        endpoint: str = "completions",
        api_key: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.address = address
        self.model = model
        self._endpoint = endpoint
        self._api_key = api_key
        self._patience_s = patience_s

    async def answer(self, ask: Ask, due_s: float, heard: Callable[[], None] = deaf) -> Answer:
        received = _Received(heard)
        try:
            async with asyncio.timeout(self._patience_s):
                await self._exchange(self._body(ask), received)
        except TimeoutError:
            received.error = f"no end of the answer within {self._patience_s:g} s"
        except _TROUBLE as error:
            received.error = received.error or _told(error)
        if not received.error and not received.is_done and not received.usage:
            received.error = "the stream ended before the answer did"
        usage = received.usage
        num_output = _count(usage, "completion_tokens")
        details = usage.get("prompt_tokens_details")
        return Answer(
            due_s=due_s,
            end_s=time.perf_counter(),
            piece_s=tuple(received.piece_s),
            wanted_output=ask.output_tokens,
            num_output=len(received.piece_s) if num_output is None else num_output,
            num_prompt=_count(usage, "prompt_tokens"),
            num_cached=_count(details, "cached_tokens") if isinstance(details, Mapping) else None,
            is_counted=num_output is not None,
            error=received.error,
        )

    async def find_model(self) -> str:
        """The first model that the server lists; `PlaitError` if it does not answer."""
        try:
            async with asyncio.timeout(min(self._patience_s, 30.0)):
                status, pieces, close = await self._open("GET", "/models", b"")
                try:
                    body = b"".join([piece async for piece in _limited(pieces)])
                finally:
                    close()
            listed = json.loads(body) if status == 200 else None
            models = listed.get("data") if isinstance(listed, dict) else None
            if isinstance(models, list) and models and isinstance(models[0], dict) and models[0].get("id"):
                return str(models[0]["id"])
        except TimeoutError:
            raise PlaitError(f"{self.address.shown}/models does not answer within 30 s; is the server up?") from None
        except _TROUBLE as error:
            raise PlaitError(f"{self.address.shown} does not answer ({_told(error)}); is the server up?") from None
        raise PlaitError(f"{self.address.shown}/models lists no model (status {status}); is that its address?")

    def _body(self, ask: Ask) -> bytes:
        body: dict[str, object] = {"model": self.model, "temperature": 0, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if self._endpoint == "chat":
            body["messages"] = list(ask.messages) or [{"role": "user", "content": ask.prompt}]
        else:
            body["prompt"] = ask.prompt
        # Names of vLLM and most others, and llama.cpp's ignore_eos.
        body |= {"max_tokens": ask.output_tokens, "min_tokens": ask.output_tokens, "ignore_eos": True}
        return json.dumps(body).encode()

    async def _exchange(self, body: bytes, received: _Received) -> None:
        path = "/chat/completions" if self._endpoint == "chat" else "/completions"
        status, pieces, close = await self._open("POST", path, body)
        try:
            if status != 200:
                told = b"".join([piece async for piece in _limited(pieces)]).decode("utf-8", "replace")
                received.error = f"HTTP {status}: {' '.join(told.split())[:_SHOWN_ERROR]}"
                return
            async for event in events(pieces):
                if event == b"[DONE]":
                    received.is_done = True
                    return
                _take_event(orjson.loads(event), received)
        finally:
            close()

    async def _open(self, verb: str, path: str, body: bytes) -> tuple[int, AsyncIterator[bytes], Callable[[], None]]:
        """Status, the body as it comes, and what closes the connection: by that a server learns that nobody listens."""
        tls = ssl.create_default_context() if self.address.is_tls else None
        reader, writer = await asyncio.open_connection(
            self.address.host, self.address.port, limit=MAX_LINE_BYTES, ssl=tls
        )
        try:
            key = f"Authorization: Bearer {self._api_key}\r\n" if self._api_key else ""
            head = (
                f"{verb} {self.address.base}{path} HTTP/1.1\r\nHost: {self.address.host}:{self.address.port}\r\n"
                f"Content-Type: application/json\r\nAccept: */*\r\nConnection: close\r\n{key}"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                name.strip().lower(): value.strip().lower()
                for name, _, value in (line.partition(":") for line in lines)
            }
            return int(lines[0].split()[1]), _pieces(reader, headers), writer.close
        except BaseException:  # nobody else knows the connection yet
            writer.close()
            raise


def _told(error: BaseException) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "the connection ended in the middle"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"not HTTP or not JSON: {' '.join(str(error).split())[:_SHOWN_ERROR]}"


def _count(usage: Mapping[str, Json], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and value >= 0 else None


async def _pieces(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body without the framing of chunks, in pieces as large as they come."""
    chunks = _Chunks() if "chunked" in headers.get("transfer-encoding", "") else None
    left = int(headers["content-length"]) if chunks is None and "content-length" in headers else None
    while left is None or left > 0:
        raw = await reader.read(1 << 16 if left is None else min(left, 1 << 16))
        if not raw:
            if left or chunks is not None:
                raise asyncio.IncompleteReadError(raw, left)
            return
        left = None if left is None else left - len(raw)
        piece = raw if chunks is None else chunks.take(raw)
        if piece:
            yield piece
        if chunks is not None and chunks.is_whole:
            return


class _Chunks:
    """The chunks of a body, however they are cut; what stands behind the last is not looked at."""

    def __init__(self) -> None:
        self.is_whole = False
        self._rest = b""

    def take(self, raw: bytes) -> bytes:
        """What is in the chunks that are whole now."""
        raw, place, whole = self._rest + raw, 0, list[bytes]()
        while not self.is_whole and (end := raw.find(b"\r\n", place)) >= 0:
            size = int(raw[place:end].split(b";")[0], 16)
            if not 0 <= size <= MAX_BODY_BYTES:
                raise ValueError(f"a chunk of {size} bytes")
            if len(raw) < end + size + 4 and size:
                break
            self.is_whole = size == 0
            whole.append(raw[end + 2 : end + 2 + size])
            place = end + size + 4
        self._rest = raw[place:]
        if len(self._rest) > MAX_BODY_BYTES + _MOST_FRAMING:
            raise ValueError(f"a chunk of more than {MAX_BODY_BYTES} bytes")
        return b"".join(whole)


async def _limited(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    total = 0
    async for piece in pieces:
        total += len(piece)
        if total > MAX_BODY_BYTES:
            raise ValueError(f"more than {MAX_BODY_BYTES} bytes")
        yield piece


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of server-sent events, wherever pieces are cut. Comments, names and ids are passed over."""
    rest = b""
    data: list[bytes] = []
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")
        for line in lines:
            stripped = line.rstrip(b"\r")
            if stripped.startswith(b"data:"):
                data.append(stripped[5:].strip())
            elif not stripped and data:
                yield b"\n".join(data)
                data = []
    if rest.startswith(b"data:"):
        data.append(rest[5:].strip())
    if data:
        yield b"\n".join(data)


def _take_event(event: Json, received: _Received) -> None:
    if not isinstance(event, Mapping):
        raise ValueError(f"an event that is no object: {event!r:.60}")
    if event.get("error"):
        received.error = f"the stream says: {event['error']!s:.{_SHOWN_ERROR}}"
    usage = event.get("usage")
    if isinstance(usage, Mapping) and usage:
        received.usage = usage
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if not isinstance(choice, Mapping):
            continue
        finish = choice.get("finish_reason")
        received.is_done = received.is_done or bool(finish)
        if _is_piece(choice, has_ended=bool(finish)):
            received.piece_s.append(time.perf_counter())
            received.heard()


def _is_piece(choice: Mapping[str, Json], *, has_ended: bool) -> bool:
    """A token without text of its own, half of a character, is one too; the opening of a chat and the end are not."""
    delta = choice.get("delta")
    if isinstance(delta, Mapping):
        return any(delta.get(name) for name in ("content", "reasoning_content", "reasoning"))
    return bool(choice.get("text")) or not has_ended
