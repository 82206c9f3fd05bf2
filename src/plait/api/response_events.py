"""Response events: deltas as the event stream of /v1/responses, and as its response object.

Owns the order of events, their numbers and the states of a response. Items open when the first of them comes; where no
function could be called there is one message, open from the beginning.
Invariant: `sequence_number` counts every event from 0; the last event holds the whole output, and the joined deltas of
an item are its text or its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from plait.api.answers import Usage, tool_call_id
from plait.api.bodies import JsonObject, JsonValue
from plait.api.calls import Call
from plait.api.logprobs import floored, spelled
from plait.api.response_items import CallItem, MessageItem
from plait.core.client import Delta
from plait.core.errors import RequestError
from plait.core.request import FinishReason
from plait.core.step import TokenLogprob
from plait.text.tokenizer import Tokenizer
from plait.text.tool_calls import Arguments, CallBegun, Text


class ResponseEvents:
    """The response to one call. `unix_now` gives Unix time in whole seconds."""

    def __init__(self, call: Call, tokenizer: Tokenizer, unix_now: Callable[[], int]) -> None:
        self._call = call
        self._tokenizer = tokenizer
        self._unix_now = unix_now
        self._created = unix_now()
        self._completed: int | None = None
        self._reader = call.tool_reader()
        self._number = 0
        self._items: list[MessageItem | CallItem] = []
        self._waiting: list[TokenLogprob] = []
        self.usage = Usage(prompt_tokens=len(call.requests[0].prompt))
        self._end: FinishReason | None = None

    def start(self) -> list[JsonObject]:
        made: list[JsonObject] = [
            {"type": "response.created", "response": self.response()},
            {"type": "response.in_progress", "response": self.response()},
        ]
        return self._numbered([*made, *(self._message()[1] if self._reader is None else [])])

    def add(self, delta: Delta) -> list[JsonObject]:
        """What a delta adds, often nothing; everything that ends a response with the last one."""
        self.usage = replace(
            self.usage,
            cached_tokens=delta.num_cached,
            output_tokens=self.usage.output_tokens + len(delta.tokens),
        )
        self._waiting += delta.logprobs
        is_last = delta.finish_reason is not None
        made: list[JsonObject] = []
        if self._reader is None:
            if delta.text or (is_last and self._waiting):
                made += self._text(delta.text)
        else:
            for event in [*self._reader.push(delta.text), *(self._reader.finish() if is_last else [])]:
                match event:
                    case Text(text):
                        made += self._text(text)
                    case CallBegun(place, name, arguments):
                        made += self._begun(place, name, arguments)
                    case Arguments(_, arguments):
                        made += self._arguments(arguments)
        self._end = delta.finish_reason
        if self._status == "completed":
            self._completed = self._unix_now()
        return self._numbered([*made, *(self._finish() if is_last else [])])

    def failed(self, error: RequestError) -> list[JsonObject]:
        failure: JsonObject = {"code": "server_error", "message": error.message}
        response = self.response() | {"status": "failed", "error": failure}
        return self._numbered([{"type": "response.failed", "response": response}])

    def response(self) -> JsonObject:
        """The response object as it stands."""
        is_cut = self._end is FinishReason.LENGTH
        output: list[JsonValue] = [] if self._end is None else [item.body() for item in self._items]
        return {
            "id": self._call.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": self._completed,
            "status": self._status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self._call.model,
            "system_fingerprint": self._call.fingerprint,
            "output": output,
            "usage": None if self._end is None else _usage(self.usage),
            **(self._call.told or {}),
        }

    @property
    def _status(self) -> str:
        if self._end is None:
            return "in_progress"
        return "incomplete" if self._end is FinishReason.LENGTH else "completed"

    def _text(self, text: str) -> list[JsonObject]:
        entries, self._waiting = self._waiting, []
        told: list[JsonValue] = [_logprob(entry, self._tokenizer) for entry in entries]
        message, made = self._message()
        return [*made, message.more(text, told)]

    def _message(self) -> tuple[MessageItem, list[JsonObject]]:
        """The message that text goes to, and what opening it adds."""
        last = self._items[-1] if self._items else None
        if isinstance(last, MessageItem):
            return last, []
        message = MessageItem(self._item_id("msg"), len(self._items))
        return message, self._opened(message)

    def _begun(self, place: int, name: str, arguments: str) -> list[JsonObject]:
        call = CallItem(self._item_id("fc"), len(self._items), tool_call_id(self._call.id, 0, place), name)
        # Tokens of calls are told without their log-probabilities, which belong to texts.
        self._waiting.clear()
        return [*self._opened(call), *([call.more(arguments)] if arguments else [])]

    def _arguments(self, text: str) -> list[JsonObject]:
        call = self._items[-1]
        assert isinstance(call, CallItem)
        return [call.more(text)]

    def _opened(self, item: MessageItem | CallItem) -> list[JsonObject]:
        """An item begins when the one before it has ended."""
        before = self._items[-1].ended("completed") if self._items else []
        self._items.append(item)
        return [*before, *item.begun()]

    def _finish(self) -> list[JsonObject]:
        # A response without any item would be none that clients can read.
        made = [] if self._items else self._message()[1]
        made += self._items[-1].ended(self._status)
        return [*made, {"type": f"response.{self._status}", "response": self.response()}]

    def _item_id(self, kind: str) -> str:
        name = self._call.id.replace("resp", kind, 1)
        return name if not self._items else f"{name}{len(self._items):02x}"

    def _numbered(self, events: list[JsonObject]) -> list[JsonObject]:
        first, self._number = self._number, self._number + len(events)
        return [{**event, "sequence_number": first + place} for place, event in enumerate(events)]


class ResponseAnswer:
    """The response to one call, in one piece: as `Answer`, of another shape."""

    def __init__(self, call: Call, tokenizer: Tokenizer, unix_now: Callable[[], int]) -> None:
        self._events = ResponseEvents(call, tokenizer, unix_now)
        self._last: Delta | None = None

    def add(self, prompt: int, delta: Delta) -> None:
        """A response has one prompt and one choice."""
        self._events.add(delta)
        self._last = delta

    @property
    def is_complete(self) -> bool:
        return self._end is not None

    @property
    def is_aborted(self) -> bool:
        return self._end is FinishReason.ABORT

    @property
    def failure(self) -> str | None:
        failed = self._last is not None and self._end is FinishReason.ERROR
        return (self._last.error or "no reason given") if failed and self._last is not None else None

    def usage(self) -> Usage:
        return self._events.usage

    def body(self) -> JsonObject:
        """The response object, once complete."""
        return self._events.response()

    @property
    def _end(self) -> FinishReason | None:
        return None if self._last is None else self._last.finish_reason


def _logprob(entry: TokenLogprob, tokenizer: Tokenizer) -> JsonObject:
    def told(token: int, logprob: float) -> JsonObject:
        piece = tokenizer.token_bytes(token)
        return {"token": spelled(piece), "logprob": floored(logprob), "bytes": list(piece)}

    top: list[JsonValue] = [told(token, logprob) for token, logprob in entry.top]
    return {**told(entry.token, entry.logprob), "top_logprobs": top}


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens,
        # Whatever is computed stays in the cache; nothing is written there because a client asks and pays for it.
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
