"""Tokens: /tokenize, /detokenize and /tokenizer_info, in vLLM's shapes.

Owns nothing but these bodies: texts are encoded exactly as prompts are.
"""

from __future__ import annotations

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from plait.api.bodies import JsonObject
from plait.api.calls import check_model
from plait.api.chat import chat_prompt, parse_chat
from plait.api.checking import LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES, Integer, checked
from plait.api.logprobs import spelled
from plait.core.errors import RequestError
from plait.core.sampling import check_token_ids
from plait.server.incoming import read_json
from plait.server.replies import Json
from plait.server.serving import Serving


class TokenizeFields(BaseModel):
    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeFields(BaseModel):
    model_config = LENIENT_ABOUT_NAMES_STRICT_ABOUT_TYPES

    model: str | None = None
    tokens: list[Integer]


async def tokenize(serving: Serving, request: Request) -> Response:
    body = await read_json(request, serving.limits.max_body_bytes, serving.beside_loop)
    return Json(await serving.beside_loop(_tokenized, serving, body))


async def detokenize(serving: Serving, request: Request) -> Response:
    body = await read_json(request, serving.limits.max_body_bytes, serving.beside_loop)
    return Json(await serving.beside_loop(_detokenized, serving, body))


async def tokenizer_info(serving: Serving, request: Request) -> Response:
    """What a client needs to tokenize through this server, as lm-eval does where it finds this route."""
    text = serving.text
    # Clients read the one and require the other, so both are there even where the model has none.
    named: JsonObject = {"bos_token": None, "eos_token": None, **text.tokenizer.named_tokens}
    return Json(
        {
            **named,
            "vocab_size": text.tokenizer.vocab_size,
            "model_max_length": serving.client.model.max_model_tokens,
            "chat_template": None if text.template is None else text.template.source,
        }
    )


def _tokenized(serving: Serving, body: JsonObject) -> JsonObject:
    fields = checked(TokenizeFields, body)
    check_model(fields.model, serving.names)
    if (fields.prompt is None) == (body.get("messages") is None):
        raise RequestError("one of prompt and messages must be given, and not both", param="prompt")
    if fields.prompt is not None:
        tokens = serving.text.encode_text(fields.prompt, fields.add_special_tokens is not False)
    else:
        # All that a chat's prompt depends on. Templates write the tokens around it themselves.
        chat = parse_chat({field: value for field, value in body.items() if field != "add_special_tokens"})
        tokens = chat_prompt(chat, serving.text)
    told: JsonObject = {
        "count": len(tokens),
        "max_model_len": serving.client.model.max_model_tokens,
        "tokens": list(tokens),
        "token_strs": None,
    }
    if fields.return_token_strs:
        told["token_strs"] = [spelled(serving.text.tokenizer.token_bytes(token)) for token in tokens]
    return told


def _detokenized(serving: Serving, body: JsonObject) -> JsonObject:
    fields = checked(DetokenizeFields, body)
    check_model(fields.model, serving.names)
    check_token_ids("tokens", fields.tokens, serving.client.model.vocab_size)
    return {"prompt": serving.text.tokenizer.decode(fields.tokens, skip_special=False)}
