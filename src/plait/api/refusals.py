"""Refusals: fields that we know and cannot honour.

Owns the list of them, each with the reason and the way out. A field on this list is never ignored silently: an answer
that looks right but was made without it is worse than an error. Fields that nobody knows are ignored elsewhere.
Invariant: null, and the values that ask for nothing, are always accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plait.api.bodies import JsonObject, JsonValue, shown
from plait.core.errors import RequestError


@dataclass(frozen=True, slots=True)
class Refusal:
    """`field` is refused unless it holds one of the `harmless` values."""

    field: str
    reason: str
    harmless: tuple[JsonValue, ...] = ()


_NO_TOOLS = "it is the older form; use tools"

REFUSALS: tuple[Refusal, ...] = (
    Refusal("functions", _NO_TOOLS, ([],)),
    Refusal("function_call", "it is the older form; use tool_choice", ("none", "auto")),
    Refusal("suffix", "text is only added at the end; leave it out and put all of the text into prompt", ("",)),
    Refusal("stop_regex", "only fixed stop strings are supported; use stop"),
    Refusal("bad_words", "use logit_bias with -100 for the tokens that must not appear", ([],)),
    Refusal("use_beam_search", "only sampling is supported; leave it out", (False,)),
    Refusal("length_penalty", "it belongs to beam search, which is not supported; leave it out", (1, 1.0)),
    Refusal("chat_template", "the model's own chat template is used; leave it out"),
    Refusal("spaces_between_special_tokens", "text is never padded with spaces; leave it out", (True,)),
    Refusal("logits_processors", "they are not supported; leave them out", ([],)),
    Refusal("audio", "answers are text only; leave it out", ({},)),
    Refusal("web_search_options", "nothing is searched; leave it out and put what was found into a message"),
    Refusal("kv_transfer_params", "KV is not moved between engines; leave it out"),
    Refusal("ec_transfer_params", "nothing is moved between engines; leave it out"),
    Refusal("logprob_token_ids", "only the likeliest tokens and the chosen one are told; use logprobs"),
    Refusal("prompt_embeds", "prompts are text or token ids; use prompt"),
    Refusal("thinking_token_budget", "thinking is not counted apart; use max_tokens"),
    Refusal("include_reasoning", "thinking is not told apart from the answer; leave it out", (True,)),
    Refusal("repetition_detection", "nothing ends an answer that repeats itself; use repetition_penalty"),
    Refusal("return_token_offsets", "offsets are told by /v1/completions with logprobs; leave it out", (False,)),
    Refusal("return_prompt_text", "the prompt is told as tokens; use return_token_ids and /detokenize", (False,)),
    Refusal("watermarking", "answers carry no mark; leave it out", (False,)),
    Refusal("vllm_xargs", "there is nothing that would read them; leave it out", ({},)),
    Refusal("mm_processor_kwargs", "prompts are text only; leave it out", ({},)),
    Refusal("media_io_kwargs", "prompts are text only; leave it out", ({},)),
)


def refuse_unsupported(body: JsonObject, further: Sequence[Refusal] = ()) -> None:
    """Raise `RequestError` for the first field of `body` that asks for something we do not have.

    `further`: what only its endpoint does not have.
    """
    for refusal in (*REFUSALS, *further):
        value = body.get(refusal.field)
        if value is not None and not any(_same(value, harmless) for harmless in refusal.harmless):
            raise _unsupported(refusal.field, value, refusal.reason)
    _refuse_modalities(body.get("modalities"))


def _same(left: JsonValue, right: JsonValue) -> bool:
    # In Python 0 == False and 1 == True; in JSON they differ.
    return type(left) is type(right) and left == right


def _unsupported(field: str, value: JsonValue, reason: str) -> RequestError:
    return RequestError(f"{field} is {shown(value)}; {reason}", param=field, code="unsupported_parameter")


def _refuse_modalities(modalities: JsonValue) -> None:
    if modalities is None:
        return
    if not isinstance(modalities, list):
        raise RequestError(f'modalities is {shown(modalities)}; it must be a list such as ["text"]', param="modalities")
    for place, modality in enumerate(modalities):
        if modality != "text":
            raise _unsupported(f"modalities.{place}", modality, 'only "text" works')
