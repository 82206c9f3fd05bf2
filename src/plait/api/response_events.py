"""Response events: deltas as the event stream of /v1/responses, and as its response object.

Owns the order of events, their numbers and the states of a response. One message with one text is all that there is.
Invariant: `sequence_number` counts every event from 0; the last event holds the whole output, and the joined text
deltas are its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait.api.answers import Usage
from plait.api.bodies import JsonObject, JsonValue
from plait.api.calls import Call
from plait.api.logprobs import floored, spelled
from plait.core.client import Delta
from plait.core.errors import RequestError
from plait.core.request import FinishReason
from plait.core.step import TokenLogprob
from plait.text.tokenizer import Tokenizer


class ResponseEvents:
    """The response to one call. `created` is Unix time in whole seconds."""

    def __init__(self, call: Call, told: JsonObject, tokenizer: Tokenizer, created: int) -> None:
        self._call = call
        self._told = told
        self._tokenizer = tokenizer
        self._created = created
        self._item_id = call.id.replace("resp", "msg", 1)
        self._number = 0
        self._pieces: list[str] = []
        self._waiting: list[TokenLogprob] = []
        self._logprobs: list[JsonValue] = []
        self._usage = Usage(prompt_tokens=len(call.requests[0].prompt))
        self._end: FinishReason | None = None

    def start(self) -> list[JsonObject]:
        item = self._item("in_progress", with_text=False)
        return [
            self._event("response.created", response=self.response()),
            self._event("response.in_progress", response=self.response()),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._place(), part=_part("", [])),
        ]

    def add(self, delta: Delta) -> list[JsonObject]:
        """What a delta adds, often nothing; everything that ends a response with the last one."""
        self._usage = replace(
            self._usage,
            cached_tokens=delta.num_cached,
            output_tokens=self._usage.output_tokens + len(delta.tokens),
        )
        self._waiting += delta.logprobs
        self._end = delta.finish_reason
        made: list[JsonObject] = []
        if delta.text or (self._end is not None and self._waiting):
            entries, self._waiting = self._waiting, []
            told: list[JsonValue] = [_logprob(entry, self._tokenizer) for entry in entries]
            self._logprobs += told
            self._pieces.append(delta.text)
            made.append(self._event("response.output_text.delta", **self._place(), delta=delta.text, logprobs=told))
        return made if self._end is None else [*made, *self._finish()]

    def failed(self, error: RequestError) -> list[JsonObject]:
        failure: JsonObject = {"code": "server_error", "message": error.message}
        return [self._event("response.failed", response=self.response() | {"status": "failed", "error": failure})]

    def response(self) -> JsonObject:
        """The response object as it stands."""
        is_cut = self._end is FinishReason.LENGTH
        status = "in_progress" if self._end is None else "incomplete" if is_cut else "completed"
        output: list[JsonValue] = []
        if self._end is not None:
            output.append(self._item(status, with_text=True))
        return {
            "id": self._call.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self._call.model,
            "system_fingerprint": self._call.fingerprint,
            "output": output,
            "usage": None if self._end is None else _usage(self._usage),
            **self._told,
        }

    def _finish(self) -> list[JsonObject]:
        text, response = "".join(self._pieces), self.response()
        part = _part(text, self._logprobs)
        return [
            self._event("response.output_text.done", **self._place(), text=text, logprobs=list(self._logprobs)),
            self._event("response.content_part.done", **self._place(), part=part),
            self._event(
                "response.output_item.done", output_index=0, item=self._item(str(response["status"]), with_text=True)
            ),
            self._event(f"response.{response['status']}", response=response),
        ]

    def _event(self, kind: str, **fields: JsonValue) -> JsonObject:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _place(self) -> JsonObject:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, status: str, *, with_text: bool) -> JsonObject:
        content: list[JsonValue] = [_part("".join(self._pieces), self._logprobs)] if with_text else []
        return {"id": self._item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def _part(text: str, logprobs: Sequence[JsonValue]) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _logprob(entry: TokenLogprob, tokenizer: Tokenizer) -> JsonObject:
    def told(token: int, logprob: float) -> JsonObject:
        piece = tokenizer.token_bytes(token)
        return {"token": spelled(piece), "logprob": floored(logprob), "bytes": list(piece)}

    top: list[JsonValue] = [told(token, logprob) for token, logprob in entry.top]
    return {**told(entry.token, entry.logprob), "top_logprobs": top}


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
