"""Chunks: deltas as the stream objects of the OpenAI API, in JSON.

Owns the order of a stream: for a chat the role first, then text, then a chunk with the finish reason, for every choice;
last of all the usage, where it was asked for. Counts tokens as `answers` does.
Invariant: the texts of a choice's chunks, joined, are the text of the answer that is given in one piece, and so are
its log-probabilities; tokens that have no text yet wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plait.api.answers import Usage, finish_word, tool_call_id
from plait.api.bodies import JsonObject, JsonValue, json_bytes
from plait.api.calls import Call, Endpoint
from plait.api.logprobs import CompletionOffsets, chat_logprobs, completion_logprobs
from plait.api.scoring import PromptPart, without_output
from plait.core.client import Delta
from plait.core.errors import InvariantError
from plait.core.request import FinishReason
from plait.core.step import TokenLogprob
from plait.text.tokenizer import Tokenizer
from plait.text.tool_calls import Arguments, CallBegun, Text, ToolCallReader


@dataclass(slots=True, eq=False)
class _Choice:
    """What a choice has told so far, and what waits for text."""

    offsets: CompletionOffsets
    begun: bool = False
    finished: bool = False
    num_tokens: int = 0
    waiting_tokens: list[int] = field(default_factory=list)
    waiting_logprobs: list[TokenLogprob] = field(default_factory=list)
    tools: ToolCallReader | None = None
    frame: tuple[bytes, bytes] | None = None
    """What stands before and behind the text in a chunk that says nothing else of its own: most chunks of a stream."""


class Chunks:
    """The stream of one call. `created` is Unix time in whole seconds."""

    def __init__(self, call: Call, tokenizer: Tokenizer, created: int) -> None:
        self._call = call
        self._tokenizer = tokenizer
        self._is_chat = call.endpoint is Endpoint.CHAT
        self._frame: JsonObject = {
            "id": call.id,
            "object": "chat.completion.chunk" if self._is_chat else "text_completion",
            "created": created,
            "model": call.model,
            "system_fingerprint": call.fingerprint,
        }
        skip_special = call.generation.sampling.skip_special_tokens
        self._parts = call.prompt_parts()
        self._choices = [
            _Choice(
                CompletionOffsets(tokenizer, skip_special, start=part.num_chars),
                tools=call.tool_reader(),
            )
            for part in self._parts
            for _ in range(call.generation.n)
        ]
        self._cached = [0] * len(call.requests)
        self._held: list[list[Delta]] = [[] for _ in call.requests]
        self._num_prompt = sum(len(request.prompt) for request in call.requests)

    @property
    def is_complete(self) -> bool:
        return all(choice.finished for choice in self._choices)

    def add(self, prompt: int, delta: Delta) -> list[bytes]:
        """What a delta of the request of prompt number `prompt` adds to the stream, often nothing. A delta that ends in
        an error or an abort has no chunk: the stream ends with it.
        """
        frame = self._choices[prompt * self._call.generation.n + delta.choice].frame
        if frame is not None and delta.text and delta.finish_reason is None:
            return [self._framed(prompt, delta, frame)]
        return [json_bytes(chunk) for chunk in self._added(prompt, delta)]

    def _framed(self, prompt: int, delta: Delta, frame: tuple[bytes, bytes]) -> bytes:
        """What `_added` would come to, at a tenth of its work: this is done for every token."""
        choice = self._choices[prompt * self._call.generation.n + delta.choice]
        choice.num_tokens += len(delta.tokens)
        if delta.choice == 0:
            self._cached[prompt] = delta.num_cached
        return b"".join((frame[0], json_bytes(delta.text), frame[1]))

    def _added(self, prompt: int, delta: Delta) -> list[JsonObject]:
        part, held = self._parts[prompt], self._held[prompt]
        part.add(delta)
        held.append(delta)
        if not part.is_complete:
            # A choice begins with its prompt, and the scores of that come with the first choice's deltas.
            return []
        self._held[prompt] = []
        made: list[JsonObject] = []
        for one in held:
            made += self._told(prompt, without_output(one) if self._call.generation.scoring.prompt_only else one)
        return made

    def _told(self, prompt: int, delta: Delta) -> list[JsonObject]:
        index = prompt * self._call.generation.n + delta.choice
        choice = self._choices[index]
        if choice.finished:
            raise InvariantError(f"a delta came after choice {index} had finished")
        if delta.choice == 0:
            self._cached[prompt] = delta.num_cached
        choice.num_tokens += len(delta.tokens)
        choice.waiting_tokens += delta.tokens
        choice.waiting_logprobs += delta.logprobs
        reason = delta.finish_reason
        choice.finished = reason is not None
        if reason in (FinishReason.ABORT, FinishReason.ERROR):
            return []
        made: list[JsonObject] = [] if choice.begun else self._opening(index, self._parts[prompt])
        if not choice.begun:
            choice.begun, choice.frame = True, self._frame_of(index, choice)
        if choice.tools is not None:
            made += self._calls(index, choice.tools, delta)
        elif delta.text:
            made.append(self._chunk(self._text_choice(index, choice, delta.text)))
        # At the end what waits is told without text.
        if reason is not None and choice.waiting_tokens and self._tells_tokens:
            made.append(self._chunk(self._text_choice(index, choice, "")))
        if reason is not None:
            num_calls = 0 if choice.tools is None else choice.tools.num_calls
            made.append(self._chunk(self._last_choice(index, delta, reason, num_calls)))
        return made

    def _opening(self, index: int, part: PromptPart) -> list[JsonObject]:
        """What comes before a choice's first token: a chat's role, or what is said of the prompt."""
        told = part.told(self._tokenizer)
        if self._is_chat:
            chunk = self._chunk({"index": index, "delta": {"role": "assistant", "content": ""}, **_OPEN})
            return [chunk if told is None else chunk | {"prompt_logprobs": told}]
        if part.echo is None and told is None:
            return []
        choice: JsonObject = {"index": index, "text": "" if part.echo is None else part.echo.text, **_OPEN}
        choice["logprobs"] = part.logprobs(self._tokenizer, self._call.generation.spelling)
        return [self._chunk(choice if told is None else choice | {"prompt_logprobs": told})]

    def _calls(self, index: int, reader: ToolCallReader, delta: Delta) -> list[JsonObject]:
        """What a delta adds to calls, and to the text between them."""
        events = reader.push(delta.text)
        if delta.finish_reason is not None:
            events += reader.finish()
        made = []
        for event in events:
            match event:
                case Text(text):
                    made.append(self._chunk(self._text_choice(index, self._choices[index], text)))
                    continue
                case CallBegun(place, name, arguments):
                    call_id = tool_call_id(self._call.id, index, place)
                    function: JsonObject = {"name": name, "arguments": arguments}
                    call: JsonObject = {"index": place, "id": call_id, "type": "function", "function": function}
                case Arguments(place, text):
                    call = {"index": place, "function": {"arguments": text}}
            made.append(self._chunk({"index": index, "delta": {"tool_calls": [call]}, **_OPEN}))
        return made

    def end(self) -> list[bytes]:
        """What follows the last choice."""
        if not self._call.generation.include_usage:
            return []
        return [json_bytes({**self._frame, "choices": [], "usage": self.usage().body()})]

    def usage(self) -> Usage:
        return Usage(self._num_prompt, sum(self._cached), sum(choice.num_tokens for choice in self._choices))

    @property
    def _tells_tokens(self) -> bool:
        generation = self._call.generation
        return generation.return_token_ids or generation.sampling.logprobs is not None

    def _chunk(self, choice: JsonObject) -> JsonObject:
        chunk: JsonObject = {**self._frame, "choices": [choice]}
        generation = self._call.generation
        if generation.continuous_usage:
            chunk["usage"] = self.usage().body()
        elif generation.include_usage:
            chunk["usage"] = None
        return chunk

    def _frame_of(self, index: int, choice: _Choice) -> tuple[bytes, bytes] | None:
        """None: chunks of this choice say more than a text."""
        if choice.tools is not None or self._tells_tokens or self._call.generation.continuous_usage:
            return None
        mark = "text"
        # Behind the text stand only words that are the same in every chunk.
        before, _, behind = json_bytes(self._chunk(self._text_choice(index, choice, mark))).rpartition(json_bytes(mark))
        return before, behind

    def _text_choice(self, index: int, choice: _Choice, text: str) -> JsonObject:
        tokens, choice.waiting_tokens = choice.waiting_tokens, []
        entries, choice.waiting_logprobs = choice.waiting_logprobs, []
        wants_logprobs = self._call.generation.sampling.logprobs is not None
        spelling = self._call.generation.spelling
        body: JsonObject = {"index": index}
        logprobs: JsonValue = None
        if self._is_chat:
            body["delta"] = {"content": text}
            if wants_logprobs:
                logprobs = chat_logprobs(entries, self._tokenizer, spelling)
        else:
            body["text"] = text
            if wants_logprobs:
                logprobs = completion_logprobs(entries, self._tokenizer, choice.offsets.place(entries, text), spelling)
        body["logprobs"] = logprobs
        body["finish_reason"] = None
        if self._call.generation.return_token_ids:
            body["token_ids"] = list(tokens)
        return body

    def _last_choice(self, index: int, delta: Delta, reason: FinishReason, num_calls: int) -> JsonObject:
        body: JsonObject = {"index": index}
        if self._is_chat:
            body["delta"] = {}
        else:
            body["text"] = ""
        body |= {"logprobs": None, "finish_reason": finish_word(reason, num_calls), "stop_reason": delta.stop_reason}
        if not self._call.generation.sampling.is_greedy:
            body["seed"] = delta.seed
        return body


_OPEN: JsonObject = {"logprobs": None, "finish_reason": None}
