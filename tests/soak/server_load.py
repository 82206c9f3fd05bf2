"""Server load: many clients at once, some of whom leave and some of whom ask nonsense.

Owns the clients, at the level of sockets so that they can leave in every way, and what they found. Starts no server.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.soak.server_questions import WRONG, Question, streamed_answer, whole_answer

LEAVING, WRONGLY = 0.2, 0.05
PATIENCE_S = 300.0
Answer = list[dict[str, Any]]


@dataclass(slots=True, eq=False)
class Found:
    counts: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes


class Clients:
    """Ask `questions` of a server at `address`; `alone` has the answer to each."""

    def __init__(self, address: tuple[str, int], questions: Sequence[Question], seed: int) -> None:
        self._address = address
        self._questions = questions
        self._random = random.Random(seed)
        self._alone: list[Answer] = []
        self.found = Found()

    async def ask_alone(self) -> None:
        """One after the other, nobody beside: what every later answer must be."""
        for question in self._questions:
            reply = await self._whole(question.path, dict(question.body))
            if reply.status != 200:
                raise ValueError(f"{question} is answered {reply.status}: {reply.body!r}")
            self._alone.append(whole_answer(reply.body))

    async def ask_together(self, num_clients: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds

        async def client() -> None:
            await asyncio.sleep(self._random.random())
            while loop.time() < end:
                async with asyncio.timeout(PATIENCE_S):
                    await self._once()

        async with asyncio.TaskGroup() as group:
            for _ in range(num_clients):
                group.create_task(client())

    async def _once(self) -> None:
        chance = self._random.random()
        if chance < WRONGLY:
            await self._ask_wrongly()
        elif chance < WRONGLY + LEAVING:
            await self._leave()
        else:
            await self._ask()

    async def _ask(self) -> None:
        place = self._random.randrange(len(self._questions))
        question, stream = self._questions[place], self._random.random() < 0.6
        reply = await self._whole(question.path, {**question.body, "stream": stream})
        self.found.counts["streams" if stream else "whole answers"] += 1
        if reply.status != 200:
            self._differs(question, f"status {reply.status}: {reply.body[:300]!r}")
            return
        try:
            answer = streamed_answer(reply.body) if stream else whole_answer(reply.body)
        except (ValueError, KeyError) as fault:
            self._differs(question, f"{'stream' if stream else 'answer'} cannot be read: {fault!r}")
            return
        if answer != self._alone[place]:
            self._differs(question, f"together {answer} but alone {self._alone[place]}")

    async def _ask_wrongly(self) -> None:
        question = self._random.choice(WRONG)
        reply = await self._whole(question.path, dict(question.body))
        self.found.counts["refused"] += 1
        if reply.status != 400 or "error" not in json.loads(reply.body):
            self._differs(question, f"should be refused but is {reply.status}: {reply.body[:300]!r}")

    async def _leave(self) -> None:
        question, stream = self._random.choice(self._questions), self._random.random() < 0.6
        when, how = self._random.choice(("at once", "soon", "in the midst")), self._random.choice(("FIN", "RST"))
        reader, writer = await self._sent(question.path, {**question.body, "stream": stream, "ignore_eos": True})
        if when == "soon":
            await asyncio.sleep(self._random.random() * 0.3)
        elif when == "in the midst":
            await reader.read(self._random.choice((1, 300, 2000)))
        if how == "RST":
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort() if how == "RST" else writer.close()
        self.found.counts[f"left {when}"] += 1

    def _differs(self, question: Question, what: str) -> None:
        self.found.differences.append(f"{question.path} {json.dumps(question.body)[:200]}: {what}"[:2000])

    async def _whole(self, path: str, body: dict[str, Any]) -> Reply:
        reader, writer = await self._sent(path, body)
        try:
            raw = await reader.read()
        finally:
            writer.close()
        head, _, rest = raw.partition(b"\r\n\r\n")
        chunked = b"transfer-encoding: chunked" in head.lower()
        return Reply(int(head.split(b" ", 2)[1]), _unchunked(rest) if chunked else rest)

    async def _sent(self, path: str, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self._address)
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(raw)}\r\n\r\n"
        writer.write(head.encode() + raw)
        return reader, writer


def _unchunked(raw: bytes) -> bytes:
    pieces = []
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        pieces.append(raw[: int(size, 16)])
        raw = raw[int(size, 16) + 2 :]
    return b"".join(pieces)
