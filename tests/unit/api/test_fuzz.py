"""Any JSON object is either a body or one clear error, never anything else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.api.byte_text import MODEL, byte_text

from plait.api.bodies import JsonObject, JsonValue
from plait.api.calls import Call
from plait.api.chat import ChatFields, chat_call, parse_chat
from plait.api.completions import CompletionFields, completion_call, parse_completion
from plait.api.fields import SharedFields
from plait.api.refusals import REFUSALS
from plait.core.errors import RequestError

TEXT = byte_text()
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2**63, -(2**63) - 1, 10**40])
    | st.floats()
    | st.text(max_size=8)
)
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = sorted(
    {*SharedFields.model_fields, *ChatFields.model_fields, *CompletionFields.model_fields}
    | {refusal.field for refusal in REFUSALS}
    | {"messages", "prompt", "tool_choice", "response_format", "modalities"}
)
MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls"]), VALUES)
    | st.fixed_dictionaries({"role": st.sampled_from(["user", "tool", "developer"]), "content": VALUES}),
    max_size=3,
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), VALUES, max_size=6)


def outcome(body: JsonObject, *, chat: bool) -> Call | RequestError:
    try:
        if chat:
            return chat_call(parse_chat(body), "chatcmpl-1", TEXT, MODEL)
        return completion_call(parse_completion(body), "cmpl-1", TEXT, MODEL)
    except RequestError as error:
        return error


def check(result: Call | RequestError) -> None:
    if isinstance(result, Call):
        for request in result.requests:
            request.sampling.validate(MODEL.vocab_size)
            assert 0 < len(request.prompt) < MODEL.max_model_tokens
            assert len(request.prompt) + (request.sampling.max_tokens or 1) <= MODEL.max_model_tokens
            assert 1 <= request.n <= 128
    else:
        assert 400 <= result.status < 500
        assert result.param
        assert "\n" not in result.message
        assert "Input should" not in result.message
        assert len(result.message) < 600


@given(OBJECTS, st.booleans())
@settings(max_examples=150)
def test_any_object_is_a_body_or_one_error(body: JsonObject, chat: bool) -> None:
    check(outcome(body, chat=chat))


@given(OBJECTS, MESSAGES | VALUES)
@settings(max_examples=100)
def test_any_conversation_is_a_body_or_one_error(body: JsonObject, messages: JsonValue) -> None:
    check(outcome({**body, "messages": messages}, chat=True))


@given(st.sampled_from(NAMES), VALUES)
@settings(max_examples=150)
def test_one_odd_field_in_a_sound_body_is_honoured_ignored_or_blamed(name: str, value: JsonValue) -> None:
    sound: JsonObject = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    for chat in (True, False):
        result = outcome({**sound, name: value}, chat=chat)
        check(result)
        if isinstance(result, RequestError):
            assert result.param is not None
            assert result.param.split(".")[0] == name
