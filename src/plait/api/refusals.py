"""Refusals: fields that we know and cannot honour.

Owns the list of them, each with the reason and the way out. A field on this list is never ignored silently: an answer
that looks right but was made without it is worse than an error. Fields that nobody knows are ignored elsewhere.
Invariant: null, and the values that ask for nothing, are always accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.api.bodies import JsonObject, JsonValue, shown
from plait.core.errors import RequestError


@dataclass(frozen=True, slots=True)
class Refusal:
    """`field` is refused unless it holds one of the `harmless` values."""

    field: str
    reason: str
    harmless: tuple[JsonValue, ...] = ()


_NO_GRAMMAR = "output is not constrained to a grammar yet; leave it out and check the text yourself"
_NO_SCORING = "prompt tokens are not scored yet; leave it out"
_NO_TOOLS = "tools are not supported yet; leave it out and describe the tools in a message"
_NO_TRUNCATION = "a prompt is never cut silently; shorten it yourself and leave this out"

REFUSALS: tuple[Refusal, ...] = (
    Refusal("tools", _NO_TOOLS, ([],)),
    Refusal("functions", _NO_TOOLS, ([],)),
    Refusal("function_call", _NO_TOOLS, ("none", "auto")),
    Refusal("echo", "the prompt is not sent back yet; leave it out and join prompt and text yourself", (False,)),
    Refusal("suffix", "text is only added at the end; leave it out and put all of the text into prompt", ("",)),
    Refusal("prompt_logprobs", _NO_SCORING),
    Refusal("structured_outputs", _NO_GRAMMAR, ({},)),
    Refusal("guided_json", _NO_GRAMMAR),
    Refusal("guided_regex", _NO_GRAMMAR),
    Refusal("guided_choice", _NO_GRAMMAR),
    Refusal("guided_grammar", _NO_GRAMMAR),
    Refusal("grammar", _NO_GRAMMAR, ("",)),
    Refusal("json_schema", _NO_GRAMMAR),
    Refusal("regex", _NO_GRAMMAR, ("",)),
    Refusal("ebnf", _NO_GRAMMAR, ("",)),
    Refusal("stop_regex", "only fixed stop strings are supported; use stop"),
    Refusal("bad_words", "use logit_bias with -100 for the tokens that must not appear", ([],)),
    Refusal("use_beam_search", "only sampling is supported; leave it out", (False,)),
    Refusal("length_penalty", "it belongs to beam search, which is not supported; leave it out", (1, 1.0)),
    Refusal("truncate_prompt_tokens", _NO_TRUNCATION),
    Refusal("chat_template", "the model's own chat template is used; leave it out"),
    Refusal("documents", "put the documents into a message", ([],)),
    Refusal("continue_final_message", "an answer always starts a new message; leave it out", (False,)),
    Refusal("spaces_between_special_tokens", "text is never padded with spaces; leave it out", (True,)),
    Refusal("return_tokens_as_token_ids", "use return_token_ids", (False,)),
    Refusal("logits_processors", "they are not supported; leave them out", ([],)),
    Refusal("audio", "answers are text only; leave it out", ({},)),
    Refusal("web_search_options", "nothing is searched; leave it out and put what was found into a message"),
    Refusal("kv_transfer_params", "KV is not moved between engines; leave it out"),
)


def refuse_unsupported(body: JsonObject) -> None:
    """Raise `RequestError` for the first field of `body` that asks for something we do not have."""
    for refusal in REFUSALS:
        value = body.get(refusal.field)
        if value is not None and not any(_same(value, harmless) for harmless in refusal.harmless):
            raise _unsupported(refusal.field, value, refusal.reason)
    _refuse_tool_choice(body.get("tool_choice"))
    _refuse_response_format(body.get("response_format"))
    _refuse_modalities(body.get("modalities"))


def _same(left: JsonValue, right: JsonValue) -> bool:
    # In Python 0 == False and 1 == True; in JSON they differ.
    return type(left) is type(right) and left == right


def _unsupported(field: str, value: JsonValue, reason: str) -> RequestError:
    return RequestError(f"{field} is {shown(value)}; {reason}", param=field, code="unsupported_parameter")


def _refuse_tool_choice(choice: JsonValue) -> None:
    if choice is not None and choice != "none" and choice != "auto":
        raise _unsupported("tool_choice", choice, 'there are no tools to choose from: only "none" and "auto" work')


def _refuse_response_format(wanted: JsonValue) -> None:
    if wanted is None:
        return
    if not isinstance(wanted, dict) or not isinstance(wanted.get("type"), str):
        raise RequestError(
            f'response_format is {shown(wanted)}; it must be an object such as {{"type": "text"}}',
            param="response_format",
        )
    if wanted["type"] != "text":
        reason = f'only "text" works: {_NO_GRAMMAR}'
        raise _unsupported("response_format.type", wanted["type"], reason)


def _refuse_modalities(modalities: JsonValue) -> None:
    if modalities is None:
        return
    if not isinstance(modalities, list):
        raise RequestError(f'modalities is {shown(modalities)}; it must be a list such as ["text"]', param="modalities")
    for place, modality in enumerate(modalities):
        if modality != "text":
            raise _unsupported(f"modalities.{place}", modality, 'only "text" works')
