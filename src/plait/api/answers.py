"""Answers: deltas folded into the response objects of the OpenAI API.

Owns `Answer`, which grows delta by delta and is read when every choice has finished. Talks to no engine and counts no
time.
Invariant: the text and tokens of a choice are its deltas joined; usage counts each prompt once, whatever `n` is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plait.api.bodies import JsonObject, JsonValue
from plait.api.calls import Call, Endpoint
from plait.api.logprobs import CompletionOffsets, chat_logprobs, completion_logprobs
from plait.api.scoring import PromptPart, joined, without_output
from plait.core.client import Delta
from plait.core.errors import InvariantError
from plait.core.request import FinishReason
from plait.core.step import TokenLogprob
from plait.text.tokenizer import Tokenizer
from plait.text.tool_calls import Arguments, CallBegun, Text


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. `cached_tokens` are the prompt tokens found in the prefix index."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def plus(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
        )

    def minus(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens - other.prompt_tokens,
            self.cached_tokens - other.cached_tokens,
            self.output_tokens - other.output_tokens,
        )

    def body(self) -> JsonObject:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(slots=True, eq=False)
class _Choice:
    """One choice as far as it has come."""

    pieces: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    seed: int = 0
    error: str | None = None

    def add(self, delta: Delta) -> None:
        if self.finish_reason is not None:
            raise InvariantError(f"a delta came after choice {delta.choice} had finished ({self.finish_reason})")
        self.pieces.append(delta.text)
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
        self.seed = delta.seed
        self.error = delta.error


class Answer:
    """The answer to one call. `created` is Unix time in whole seconds."""

    def __init__(self, call: Call, tokenizer: Tokenizer, created: int) -> None:
        self._call = call
        self._tokenizer = tokenizer
        self._created = created
        self._choices = [_Choice() for _ in range(call.num_choices)]
        self._cached = [0] * len(call.requests)
        self._parts = call.prompt_parts()

    def add(self, prompt: int, delta: Delta) -> None:
        """Add a delta of the request of prompt number `prompt`."""
        self._parts[prompt].add(delta)
        if self._call.generation.scoring.prompt_only:
            delta = without_output(delta)
        self._choices[prompt * self._call.generation.n + delta.choice].add(delta)
        # Later choices find the whole prompt cached because the first computed it; that was no saving for the caller.
        if delta.choice == 0:
            self._cached[prompt] = delta.num_cached

    @property
    def is_complete(self) -> bool:
        return all(choice.finish_reason is not None for choice in self._choices)

    @property
    def is_aborted(self) -> bool:
        return any(choice.finish_reason is FinishReason.ABORT for choice in self._choices)

    @property
    def failure(self) -> str | None:
        """Why the engine could not compute a choice; None if it could."""
        failed = [choice for choice in self._choices if choice.finish_reason is FinishReason.ERROR]
        return (failed[0].error or "no reason given") if failed else None

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=sum(len(request.prompt) for request in self._call.requests),
            cached_tokens=sum(self._cached),
            output_tokens=sum(len(choice.tokens) for choice in self._choices),
        )

    def body(self) -> JsonObject:
        """The response object, once complete."""
        if not self.is_complete or self.is_aborted or self.failure is not None:
            raise InvariantError(f"the answer to {self._call.id} was read before every choice had finished well")
        is_chat = self._call.endpoint is Endpoint.CHAT
        choices: list[JsonValue] = [self._choice(index, choice) for index, choice in enumerate(self._choices)]
        body: JsonObject = {
            "id": self._call.id,
            "object": "chat.completion" if is_chat else "text_completion",
            "created": self._created,
            "model": self._call.model,
            "system_fingerprint": self._call.fingerprint,
            "choices": choices,
            "usage": self.usage().body(),
        }
        if self._call.generation.service_tier is not None:
            body["service_tier"] = self._call.generation.service_tier
        if self._call.generation.return_token_ids and is_chat:
            body["prompt_token_ids"] = list(self._call.requests[0].prompt)
        if is_chat and (told := self._parts[0].told(self._tokenizer)) is not None:
            body["prompt_logprobs"] = told
        return body

    def _message(self, index: int, text: str) -> tuple[JsonObject, int]:
        """A chat's message, and how many calls it makes."""
        reader = self._call.tool_reader()
        if reader is None:
            return {"role": "assistant", "content": text, "refusal": None}, 0
        said, calls = [], dict[int, tuple[str, list[str]]]()
        for event in [*reader.push(text), *reader.finish()]:
            match event:
                case Text(more):
                    said.append(more)
                case CallBegun(place, name, arguments):
                    calls[place] = (name, [arguments])
                case Arguments(place, more):
                    calls[place][1].append(more)
        message: JsonObject = {"role": "assistant", "content": "".join(said) or None, "refusal": None}
        if calls:
            message["tool_calls"] = [
                {
                    "id": tool_call_id(self._call.id, index, place),
                    "type": "function",
                    "function": {"name": name, "arguments": "".join(arguments)},
                }
                for place, (name, arguments) in calls.items()
            ]
        elif message["content"] is None:
            message["content"] = ""
        return message, reader.num_calls

    def _choice(self, index: int, choice: _Choice) -> JsonObject:
        generation = self._call.generation
        text = "".join(choice.pieces)
        wants_logprobs = generation.sampling.logprobs is not None
        body: JsonObject = {"index": index}
        num_calls = 0
        if self._call.endpoint is Endpoint.CHAT:
            body["message"], num_calls = self._message(index, text)
            spelling = generation.spelling
            body["logprobs"] = chat_logprobs(choice.logprobs, self._tokenizer, spelling) if wants_logprobs else None
        else:
            body |= self._completion(self._parts[index // generation.n], choice, text)
        body["finish_reason"] = finish_word(choice.finish_reason, num_calls)
        body["stop_reason"] = choice.stop_reason
        if not generation.sampling.is_greedy:
            # With the seed and the same body, anyone can make this choice again.
            body["seed"] = choice.seed
        if generation.return_token_ids:
            body["token_ids"] = list(choice.tokens)
            if self._call.endpoint is Endpoint.COMPLETIONS:
                body["prompt_token_ids"] = list(self._call.requests[index // generation.n].prompt)
        return body

    def _completion(self, part: PromptPart, choice: _Choice, text: str) -> JsonObject:
        """Text and log-probabilities of a text completion, its prompt's before its own."""
        generation, tokenizer = self._call.generation, self._tokenizer
        body: JsonObject = {"text": text if part.echo is None else part.echo.text + text, "logprobs": None}
        if generation.sampling.logprobs is not None:
            start, skip_special = part.num_chars, generation.sampling.skip_special_tokens
            places = CompletionOffsets(tokenizer, skip_special, start=start).place(choice.logprobs, text)
            own = completion_logprobs(choice.logprobs, tokenizer, places, generation.spelling)
            body["logprobs"] = joined(part.logprobs(tokenizer, generation.spelling), own)
        if (told := part.told(tokenizer)) is not None:
            body["prompt_logprobs"] = told
        return body


def finish_word(reason: FinishReason | None, num_calls: int) -> str | None:
    """Why a choice ended, as clients read it: one that ended by itself with a complete call wants the call's result."""
    if reason is None:
        return None
    return "tool_calls" if reason is FinishReason.STOP and num_calls else reason.value


def tool_call_id(call_id: str, choice: int, place: int) -> str:
    """The same whether the answer comes in one piece or as a stream."""
    return f"call_{call_id.rpartition('-')[2].rpartition('_')[2]}{choice:02x}{place:02x}"
