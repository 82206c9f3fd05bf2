"""A small OpenAI-style server in a thread: answers as engines do, with known delays, or as badly as a test wants.

Owns the thread and the port, which are both gone when the context ends. What it was sent is in `bodies`.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Pieces = Callable[[int], bytes]


@dataclass
class Manner:
    """How it answers. Seconds are those it sleeps; a real wait is never shorter."""

    first_s: float = 0.0
    gap_s: float = 0.0
    status: int = 200
    most_tokens: int = 1 << 30
    """It ends there, whatever it was asked."""
    has_usage: bool = True
    prompt_factor: float = 1.0
    cached: int = 0
    is_chunked: bool = True
    breaks_after: int | None = None
    """So many pieces, and then the connection is closed."""
    says: str = "word "
    models: tuple[str, ...] = ("stub-model",)
    raw: bytes | None = None
    """Sent as it is in place of everything."""
    key: str | None = None


@dataclass
class StubServer:
    manner: Manner = field(default_factory=Manner)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    num_gone: int = 0
    """Connections that the client closed in the middle of an answer."""
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> StubServer:
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._is_up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._is_up.set()
        await self._end.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            length = int(next(line.split(":")[1] for line in head.splitlines() if line.startswith("Content-Length")))
            body = json.loads(await reader.readexactly(length)) if length else {}
            await self._answer(head.split()[1], body, head, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.num_gone += 1
        finally:
            writer.close()

    async def _answer(self, path: str, body: dict[str, Any], head: str, writer: asyncio.StreamWriter) -> None:
        manner = self.manner
        if manner.raw is not None:
            writer.write(manner.raw)
            await writer.drain()
        elif manner.key is not None and f"Bearer {manner.key}" not in head:
            await self._whole(writer, 401, {"error": {"message": "no key"}})
        elif path.endswith("/models"):
            await self._whole(writer, 200, {"data": [{"id": name} for name in manner.models]})
        elif manner.status != 200:
            await self._whole(writer, manner.status, {"error": {"message": "too much"}})
        else:
            self.bodies.append(body)
            await self._stream(body, path.endswith("/chat/completions"), writer)

    async def _whole(self, writer: asyncio.StreamWriter, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
        await writer.drain()

    async def _stream(self, body: dict[str, Any], is_chat: bool, writer: asyncio.StreamWriter) -> None:
        manner = self.manner
        framing = "Transfer-Encoding: chunked\r\n" if manner.is_chunked else ""
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{framing}\r\n".encode())
        count = min(body["max_tokens"], manner.most_tokens)
        if is_chat:
            await self._event(writer, {"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]})
        for place in range(count):
            await asyncio.sleep(manner.gap_s if place else manner.first_s)
            if place == manner.breaks_after:
                return
            text = {"delta": {"content": manner.says}} if is_chat else {"text": manner.says}
            finish = "length" if place == count - 1 and not is_chat else None
            await self._event(writer, {"choices": [text | {"index": 0, "finish_reason": finish}]})
        if is_chat:
            await self._event(writer, {"choices": [{"delta": {}, "finish_reason": "length"}]})
        if manner.has_usage:
            prompt = str(body.get("prompt") or body.get("messages"))
            usage = {
                "prompt_tokens": round(len(prompt.split()) * manner.prompt_factor),
                "completion_tokens": count,
                "prompt_tokens_details": {"cached_tokens": manner.cached},
            }
            await self._event(writer, {"choices": [], "usage": usage})
        await self._write(writer, b"data: [DONE]\n\n")
        if manner.is_chunked:
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    async def _event(self, writer: asyncio.StreamWriter, event: object) -> None:
        await self._write(writer, b"data: " + json.dumps(event).encode() + b"\n\n")

    async def _write(self, writer: asyncio.StreamWriter, piece: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self.manner.is_chunked else piece)
        await writer.drain()
