"""An engine behind an OpenAI-compatible HTTP server, by its address. Standard library only.

Owns the requests and the reading of answers, streamed (server-sent events, chunked or not) or in one piece.
Invariant: how many tokens were answered is the server's own `usage` where it gives one, else the number of events.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .figures import Answer
from .workloads import Ask

LINE_LIMIT_BYTES = 1 << 22

PATIENCE_S = 900.0
"""For one answer: an engine that takes longer for the longest workload, on the slowest machine so far, hangs."""


@dataclass(slots=True)
class _Received:
    """What has been read of an answer."""

    token_s: list[float] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


class OpenAiServer:
    """`extra` is merged into every body; `as_text` sends words instead of token ids to servers that take no ids."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        extra: Mapping[str, object] | None = None,
        as_text: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"{url!r} is no address of a server; write http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port or 80
        self._path = parts.path.rstrip("/") + "/v1/completions"
        self._model = model
        self._extra = dict(extra or {})
        self._as_text = as_text
        self._patience_s = patience_s

    async def is_there(self) -> bool:
        """Whether it answers a request; some servers open their port before they can."""
        received = await self._exchange(self._body(" hello", 1, stream=False), stream=False)
        return not received.error

    async def answer(self, ask: Ask, due_s: float, *, stream: bool) -> Answer:
        if self._as_text:
            prompt: str | list[int] = "".join(" " + word.text for word in ask.prompt)
        else:
            prompt = [word.token for word in ask.prompt]
        received = await self._exchange(self._body(prompt, ask.output_tokens, stream=stream), stream=stream)
        return Answer(
            due_s=due_s,
            token_s=tuple(received.token_s),
            end_s=time.perf_counter(),
            num_prompt=int(received.usage.get("prompt_tokens", len(ask.prompt))),
            num_output=int(received.usage.get("completion_tokens", len(received.token_s))),
            wanted_output=ask.output_tokens,
            error=received.error,
        )

    async def _exchange(self, body: bytes, *, stream: bool) -> _Received:
        received = _Received()
        try:
            async with asyncio.timeout(self._patience_s):
                reader, writer = await asyncio.open_connection(self._host, self._port, limit=LINE_LIMIT_BYTES)
                try:
                    writer.write(self._request(body))
                    await _receive(reader, received, stream=stream)
                finally:
                    writer.close()
        except TimeoutError:
            received.error = f"no answer, or no end of it, in {self._patience_s:g} s"
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as error:
            received.error = f"{type(error).__name__}: {error}"
        return received

    def _body(self, prompt: str | list[int], output_tokens: int, *, stream: bool) -> bytes:
        body: dict[str, object] = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": stream,
            "ignore_eos": True,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        return json.dumps(body | self._extra).encode()

    def _request(self, body: bytes) -> bytes:
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
            f"Accept: */*\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


async def _receive(reader: asyncio.StreamReader, received: _Received, *, stream: bool) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip().lower() for name, _, value in (line.partition(":") for line in head)}
    if head[0].split()[1] != "200":
        body = b"".join([piece async for piece in _pieces(reader, headers)])
        received.error = f"{head[0]} {body.decode('utf-8', 'replace')[:300]}"
    elif stream:
        async for event in events(_pieces(reader, headers)):
            _take_event(json.loads(event), received)
    else:
        answer = json.loads(b"".join([piece async for piece in _pieces(reader, headers)]))
        received.usage = answer.get("usage") or {}


async def _pieces(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body as it comes, without the framing of chunks."""
    if "chunked" in headers.get("transfer-encoding", ""):
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while piece := await reader.read(1 << 16):
            yield piece


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The contents of server-sent events, wherever pieces are cut, without the closing [DONE]."""
    rest = b""
    async for piece in pieces:
        rest = (rest + piece).replace(b"\r\n", b"\n")
        *whole, rest = rest.split(b"\n\n")
        for event in whole:
            content = event.strip().removeprefix(b"data:").strip()
            if event.strip().startswith(b"data:") and content != b"[DONE]":
                yield content


def _take_event(event: Mapping[str, Any], received: _Received) -> None:
    if event.get("error"):
        received.error = str(event["error"])[:300]
    if event.get("usage"):
        received.usage = event["usage"]
    # A token without text of its own, half of a character, is a token too; the closing event is none.
    if any(choice.get("text") or not choice.get("finish_reason") for choice in event.get("choices") or []):
        received.token_s.append(time.perf_counter())
