"""Admission: whether a sequence can ever be served, whatever else runs.

Owns the refusals and their wording. Pure: knows the limits, nothing of who waits or runs now.
Invariant: what passes here is served in the end if everybody else ends.
"""

from __future__ import annotations

from plait.core.errors import RequestError
from plait.core.request import Sequence, Task


def refuse_impossible(
    seq: Sequence,
    max_model_tokens: int,
    capacity_tokens: int,
    *,
    can_embed: bool = False,
    can_import: bool = False,
    can_see: bool = False,
) -> None:
    """Raise `RequestError` naming value, limit and way out. The limits hold for prompt and output tokens together:
    the model's, and what the cache holds when it is empty.
    """
    request = seq.request
    if request.task is Task.EMBED and not can_embed:
        raise RequestError(f"task {request.task} is not supported by this engine; ask for a continuation", param="task")
    if request.num_imported and not can_import:
        raise RequestError("this engine takes no keys and values from another; send the prompt alone", param="prompt")
    if request.adapter is not None:
        raise RequestError(
            f"adapter {request.adapter!r} is not loaded; leave it out", param="adapter", code="model_not_found"
        )
    if request.images and not can_see:
        raise RequestError("this model reads text only; leave the images out", param="messages")
    if not request.prompt:
        raise RequestError("the prompt is empty; send at least one token", param="prompt")
    _refuse_too_long(len(request.prompt), seq.max_output_tokens, max_model_tokens, capacity_tokens)


def refuse_too_many_images(seq: Sequence, can_be_held: bool) -> None:
    """Raise `RequestError` unless empty memory holds the prompt, its answer and the rows of its images."""
    if not can_be_held:
        rows = sum(image.num_rows or image.num_tokens for image in seq.request.images)
        raise RequestError(
            f"the cache cannot hold {len(seq.request.images)} images of {rows} rows beside the prompt; send fewer or "
            "start with a larger --kv-cache-memory",
            param="messages",
        )


def _refuse_too_long(num_prompt: int, max_output_tokens: int, max_model_tokens: int, capacity_tokens: int) -> None:
    needed = num_prompt + max_output_tokens
    if num_prompt >= max_model_tokens and max_output_tokens:
        raise RequestError(
            f"the prompt has {num_prompt} tokens but this model holds {max_model_tokens}, output included; shorten it "
            f"to {max_model_tokens - 1} tokens or less",
            param="prompt",
            code="context_length_exceeded",
        )
    if num_prompt > max_model_tokens:
        raise RequestError(
            f"the prompt has {num_prompt} tokens but this model holds {max_model_tokens}; shorten it",
            param="prompt",
            code="context_length_exceeded",
        )
    if needed > max_model_tokens:
        raise RequestError(
            f"the prompt has {num_prompt} tokens and max_tokens is {max_output_tokens}, together {needed}, but this "
            f"model holds {max_model_tokens}; shorten the prompt or lower max_tokens",
            param="max_tokens",
            code="context_length_exceeded",
        )
    if needed > capacity_tokens:
        raise RequestError(
            f"the request needs memory for {needed} tokens but the cache holds {capacity_tokens}; shorten it or start "
            "with a larger --kv-cache-memory",
            param="max_tokens",
            code="context_length_exceeded",
        )
