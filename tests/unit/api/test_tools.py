"""Tools: every choice with and without tools, calls in the history, and the form of a forced call."""

from __future__ import annotations

import pytest
from tests.unit.api.byte_text import byte_text

from plait.api.bodies import JsonObject, JsonValue
from plait.api.messages import parse_messages
from plait.api.tools import MAX_TOOLS, parse_tools
from plait.core.errors import RequestError
from plait.text.grammar import Grammar, GrammarCompiler, GrammarKind
from plait.text.tool_calls import ToolFormat

TOOL: JsonValue = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED: JsonValue = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("choice", [None, "none", "auto"])
def test_no_tools_and_no_need_for_them_is_fine(tools: JsonValue, choice: JsonValue) -> None:
    assert parse_tools({"tools": tools, "tool_choice": choice}) is None


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("choice", ["required", NAMED, "banana", 1])
def test_a_choice_among_no_tools_is_refused(tools: JsonValue, choice: JsonValue) -> None:
    with pytest.raises(RequestError) as caught:
        parse_tools({"tools": tools, "tool_choice": choice})
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(("choice", "forced"), [(None, None), ("auto", None), ("required", ("f",)), (NAMED, ("f",))])
def test_a_tool_is_offered_or_forced(choice: JsonValue, forced: tuple[str, ...] | None) -> None:
    tools = parse_tools({"tools": [TOOL], "tool_choice": choice})
    assert tools is not None
    assert tools.forced == forced
    assert list(tools.shown) == [TOOL]


def test_none_hides_the_tools() -> None:
    assert parse_tools({"tools": [TOOL], "tool_choice": "none"}) is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": "f"}, "tools"),
        ({"tools": [5]}, "tools.0"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({"tools": [TOOL, TOOL]}, "tools.1.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools.0.function.parameters"),
        ({"tools": [TOOL] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": [TOOL], "tool_choice": "banana"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ],
)
def test_a_wrong_tool_is_named(body: JsonObject, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_tools(body)
    assert caught.value.param == param


CALLS = (
    (ToolFormat.HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
    (ToolFormat.LLAMA3_JSON, '{"name": "f", "parameters": {"a": 1}}'),
    (ToolFormat.MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]'),
)


@pytest.mark.parametrize(("form", "call"), CALLS)
def test_the_form_of_a_forced_call_is_that_of_the_model(form: ToolFormat, call: str) -> None:
    schema: JsonObject = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = parse_tools({"tools": [_tool("f", schema), _tool("g", schema)], "tool_choice": "required"})
    assert tools is not None
    grammar = tools.grammar(form)
    assert grammar is not None
    assert _follows(grammar, call)
    assert _follows(grammar, call.replace('"f"', '"g"'))
    assert not _follows(grammar, call.replace('"f"', '"h"'))
    assert not _follows(grammar, call.replace("1", '"one"'))


NODE: JsonObject = {
    "$id": "https://example.com/node",
    "type": "object",
    "properties": {
        "side": {"$ref": "#/$defs/Side"},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "$ref": {"const": {"$ref": "#/$defs/Side"}},
    },
    "required": ["side", "next"],
    "additionalProperties": False,
    "$defs": {"Side": {"enum": ["left", "right"]}},
}


@pytest.mark.parametrize("form", ToolFormat)
@pytest.mark.parametrize("names", [("f",), ("f", "g")])
def test_references_inside_a_tools_schema_mean_what_they_meant(form: ToolFormat, names: tuple[str, ...]) -> None:
    tools = parse_tools({"tools": [_tool(name, NODE) for name in names], "tool_choice": "required"})
    assert tools is not None
    grammar = tools.grammar(form)
    assert grammar is not None
    call = next(text for known, text in CALLS if known is form)
    for name in names:
        written = call.replace('"f"', f'"{name}"')
        assert _follows(grammar, written.replace('{"a": 1}', '{"side": "left", "next": null}'))
        assert _follows(
            grammar, written.replace('{"a": 1}', '{"side": "left", "next": {"side": "right", "next": null}}')
        )
        assert not _follows(grammar, written.replace('{"a": 1}', '{"side": "up", "next": null}'))
        odd = '{"side": "left", "next": null, "$ref": {"$ref": "#/$defs/Side"}}'
        assert _follows(grammar, written.replace('{"a": 1}', odd))


def test_calls_in_the_history_are_given_to_the_template_as_objects() -> None:
    call: JsonObject = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    messages = parse_messages(
        [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "result"},
            {"role": "assistant", "content": "x", "tool_calls": []},
            {"role": "assistant", "content": "x", "tool_calls": None},
        ]
    )
    assert messages[0]["tool_calls"] == [{**call, "function": {"name": "f", "arguments": {"a": [1]}}}]
    assert messages[1]["content"] == "result"
    assert "tool_calls" not in messages[2]


@pytest.mark.parametrize(
    ("calls", "param"),
    [
        ("f", "messages.0.tool_calls"),
        ([{}], "messages.0.tool_calls.0"),
        ([{"function": {"name": "f", "arguments": "not json"}}], "messages.0.tool_calls.0.function.arguments"),
        ([{"function": {"name": "f", "arguments": "[1]"}}], "messages.0.tool_calls.0.function.arguments"),
    ],
)
def test_a_wrong_call_in_the_history_is_named(calls: JsonValue, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_messages([{"role": "assistant", "content": "", "tool_calls": calls}])
    assert caught.value.param == param


def _tool(name: str, schema: JsonObject) -> JsonValue:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def _follows(grammar: Grammar, text: str) -> bool:
    """Whether the whole text is allowed, token by token, and complete."""
    assert grammar.kind is GrammarKind.GRAMMAR
    tokenizer = byte_text().tokenizer
    state = GrammarCompiler(tokenizer).compile(grammar).begin()
    for token in tokenizer.encode(text, add_special=False):
        if not int.from_bytes(state.mask(), "little") >> token & 1:
            return False
        state.accept(token)
    return state.is_over
