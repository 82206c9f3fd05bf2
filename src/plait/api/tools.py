"""Tools: what a body says about functions that the model may call.

Owns the checks of `tools`, `tool_choice` and of messages that carry calls, and the form that a forced call must have.
Runs no tool.
Invariant: a choice that names or requires a tool has one; `none` means that the model is told of no tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from plait.api.bodies import JsonObject, JsonValue, json_bytes, shown
from plait.core.errors import RequestError
from plait.text.grammar import Grammar, GrammarKind
from plait.text.tool_calls import ToolFormat

MAX_TOOLS = 128
_ANY = {"type": "object"}
# What these hold is no schema, though it may look like one; what those hold is schemas by names of the user's.
_VALUES = ("const", "enum", "default", "examples")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


@dataclass(frozen=True, slots=True)
class Tools:
    """`shown`: what the template is given. `forced`: the names of which one must be called; None: the model chooses."""

    shown: tuple[JsonObject, ...]
    parameters: Mapping[str, JsonObject]
    """Name -> schema of the arguments."""
    forced: tuple[str, ...] | None = None

    def grammar(self, form: ToolFormat) -> Grammar | None:
        """The form of a forced call."""
        if self.forced is None:
            return None
        arguments = "parameters" if form is ToolFormat.LLAMA3_JSON else "arguments"
        calls = []
        for number, name in enumerate(self.forced):
            place = f"#/properties/{arguments}" if len(self.forced) == 1 else f"#/anyOf/{number}/properties/{arguments}"
            calls.append(
                {
                    "type": "object",
                    "properties": {"name": {"const": name}, arguments: moved(self.parameters[name], place)},
                    "required": ["name", arguments],
                    "additionalProperties": False,
                }
            )
        schema = json_bytes(calls[0] if len(calls) == 1 else {"anyOf": calls}).decode()
        return Grammar(GrammarKind.GRAMMAR, _call_rule(form, schema), "tools")


def moved(schema: JsonObject, place: str) -> JsonObject:
    """A schema that was the root of a document and now stands at `place` of another one: `#/$defs/A` of the one is
    `#/properties/arguments/$defs/A` of the other. Its `$id` is left out, for references to be read from the new root.
    """
    return {key: _moved(key, value, place) for key, value in schema.items() if key != "$id"}


def _moved(key: str, value: JsonValue, place: str) -> JsonValue:
    if key in ("$ref", "$dynamicRef") and isinstance(value, str):
        # `#name` is an anchor, which is found wherever it stands.
        return place + value[1:] if value == "#" or value.startswith("#/") else value
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, dict):
        return {name: _moved("", schema, place) for name, schema in value.items()}
    if isinstance(value, dict):
        return {inner: _moved(inner, one, place) for inner, one in value.items()}
    if isinstance(value, list):
        return [_moved("", one, place) for one in value]
    return value


def _call_rule(form: ToolFormat, schema: str) -> str:
    """In Lark's notation, with JSON as models write it."""
    options = '"x-guidance": {"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}'
    call = f"%json {{{options}, {schema[1:]}"
    match form:
        case ToolFormat.HERMES:
            return f'start: "<tool_call>\\n" call "\\n</tool_call>"\ncall: {call}'
        case ToolFormat.LLAMA3_JSON:
            return f"start: call\ncall: {call}"
        case ToolFormat.MISTRAL:
            return f'start: "[TOOL_CALLS] [" call "]"\ncall: {call}'


def parse_tools(body: JsonObject) -> Tools | None:
    """None: nothing that could be called. `RequestError` for the first fault."""
    choice = body.get("tool_choice")
    functions = _functions(body.get("tools"))
    named = _named(choice)
    if not functions:
        if choice == "required" or named is not None:
            raise RequestError(
                f"tool_choice is {shown(choice)} but there are no tools; send them in tools", param="tool_choice"
            )
        return None
    if choice == "none":
        return None
    parameters: dict[str, JsonObject] = {}
    for name, function in functions.items():
        schema = function.get("parameters")
        parameters[name] = dict(_ANY) if not isinstance(schema, dict) or not schema else schema
    forced: tuple[str, ...] | None = None
    if choice == "required":
        forced = tuple(functions)
    elif named is not None:
        if named not in functions:
            raise RequestError(
                f"tool_choice names {shown(named)}, which is not among the tools; there are {', '.join(functions)}",
                param="tool_choice",
            )
        forced = (named,)
    shown_tools: list[JsonObject] = [
        {"type": "function", "function": dict(function)} for function in functions.values()
    ]
    return Tools(tuple(shown_tools), parameters, forced)


def _functions(tools: JsonValue) -> dict[str, JsonObject]:
    """Name -> definition, in the order of the body."""
    if tools is None:
        return {}
    if not isinstance(tools, list):
        raise RequestError(f"tools is {shown(tools)}; it must be a list of functions", param="tools")
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"there are {len(tools)} tools; at most {MAX_TOOLS} can be offered", param="tools")
    functions: dict[str, JsonObject] = {}
    for place, tool in enumerate(tools):
        path = f"tools.{place}"
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or tool.get("type", "function") != "function" or not isinstance(function, dict):
            raise RequestError(
                f'{path} is {shown(tool)}; it must be an object such as {{"type": "function", "function": {{...}}}}',
                param=path,
            )
        name = function.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= 256 or '"' in name or "\\" in name:
            raise RequestError(f"{path}.function.name is {shown(name)}; it must name it", param=f"{path}.function.name")
        if name in functions:
            raise RequestError(
                f"{path}.function.name is {shown(name)}, which is there already", param=f"{path}.function.name"
            )
        if not isinstance(function.get("parameters"), dict | None):
            where = f"{path}.function.parameters"
            raise RequestError(f"{where} is {shown(function['parameters'])}; it must be a JSON schema", param=where)
        functions[name] = function
    return functions


def _named(choice: JsonValue) -> str | None:
    """The function that must be called, where one is named."""
    if choice in (None, "none", "auto", "required"):
        return None
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            return name
    raise RequestError(
        f'tool_choice is {shown(choice)}; it must be "none", "auto", "required" or a function such as '
        '{"type": "function", "function": {"name": "f"}}',
        param="tool_choice",
    )


def checked_call(call: JsonValue, path: str) -> JsonObject:
    """A call in an assistant's message, its arguments as an object: templates write them as JSON."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(
            f'{path} is {shown(call)}; it must be an object such as {{"id": "call_1", "type": "function", "function": '
            '{"name": "f", "arguments": "{}"}}',
            param=path,
        )
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError:
            arguments = None
    if not isinstance(arguments, dict | None) or (arguments is None and function.get("arguments") is not None):
        where = f"{path}.function.arguments"
        raise RequestError(
            f"{where} is {shown(function.get('arguments'))}; it must be a JSON object, as text", param=where
        )
    return {
        **call,
        "type": "function",
        "function": {**function, "arguments": arguments or {}},
    }
