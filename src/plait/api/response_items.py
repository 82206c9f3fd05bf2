"""Response items: what the output of a response consists of, as it grows.

Owns the two kinds of items that a model makes, messages and calls of functions, and the events of each from its
beginning to its end. Numbers no event and knows no order among items.
Invariant: the deltas of an item, joined, are what its last event says of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.api.bodies import JsonObject, JsonValue


@dataclass(slots=True, eq=False)
class MessageItem:
    """Text for people, in one part."""

    id: str
    place: int
    pieces: list[str] = field(default_factory=list)
    logprobs: list[JsonValue] = field(default_factory=list)
    status: str = "in_progress"

    def begun(self) -> list[JsonObject]:
        return [
            _event("response.output_item.added", output_index=self.place, item=self._body([])),
            _event("response.content_part.added", **self._where(), part=_part("", [])),
        ]

    def more(self, text: str, logprobs: Sequence[JsonValue]) -> JsonObject:
        self.pieces.append(text)
        self.logprobs += logprobs
        return _event("response.output_text.delta", **self._where(), delta=text, logprobs=list(logprobs))

    def ended(self, status: str) -> list[JsonObject]:
        self.status = status
        text = "".join(self.pieces)
        part = _part(text, self.logprobs)
        return [
            _event("response.output_text.done", **self._where(), text=text, logprobs=list(self.logprobs)),
            _event("response.content_part.done", **self._where(), part=part),
            _event("response.output_item.done", output_index=self.place, item=self.body()),
        ]

    def body(self) -> JsonObject:
        return self._body([_part("".join(self.pieces), self.logprobs)])

    def _body(self, content: list[JsonValue]) -> JsonObject:
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}

    def _where(self) -> JsonObject:
        return {"item_id": self.id, "output_index": self.place, "content_index": 0}


@dataclass(slots=True, eq=False)
class CallItem:
    """A call of a function. `call_id` is what its result is sent back under."""

    id: str
    place: int
    call_id: str
    name: str
    pieces: list[str] = field(default_factory=list)
    status: str = "in_progress"

    def begun(self) -> list[JsonObject]:
        return [_event("response.output_item.added", output_index=self.place, item=self.body())]

    def more(self, arguments: str) -> JsonObject:
        self.pieces.append(arguments)
        return _event("response.function_call_arguments.delta", **self._where(), delta=arguments)

    def ended(self, status: str) -> list[JsonObject]:
        self.status = status
        arguments = "".join(self.pieces)
        return [
            _event("response.function_call_arguments.done", **self._where(), name=self.name, arguments=arguments),
            _event("response.output_item.done", output_index=self.place, item=self.body()),
        ]

    def body(self) -> JsonObject:
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": "".join(self.pieces),
        }

    def _where(self) -> JsonObject:
        return {"item_id": self.id, "output_index": self.place}


def _part(text: str, logprobs: Sequence[JsonValue]) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _event(kind: str, **fields: JsonValue) -> JsonObject:
    return {"type": kind, **fields}
