"""Structured: which form a body wants its answer to have.

Owns the fields that ask for one: OpenAI's `response_format`, vLLM's `structured_outputs`, the older `guided_*` and
those of llama.cpp and SGLang. Compiles nothing.
Invariant: at most one form; a field that is there and cannot be understood is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.api.bodies import JsonObject, JsonValue, json_bytes, shown
from plait.core.errors import RequestError
from plait.text.grammar import Grammar, GrammarKind

ANY_OBJECT = '{"type":"object"}'

# Field -> what it holds.
_FLAT: Mapping[str, GrammarKind] = {
    "guided_json": GrammarKind.JSON_SCHEMA,
    "guided_regex": GrammarKind.REGEX,
    "guided_choice": GrammarKind.CHOICE,
    "guided_grammar": GrammarKind.GRAMMAR,
    "json_schema": GrammarKind.JSON_SCHEMA,
    "regex": GrammarKind.REGEX,
    "grammar": GrammarKind.GRAMMAR,
    "ebnf": GrammarKind.GRAMMAR,
}
FORM_FIELDS = ("response_format", "structured_outputs", *_FLAT)
_NESTED: Mapping[str, GrammarKind] = {
    "json": GrammarKind.JSON_SCHEMA,
    "regex": GrammarKind.REGEX,
    "choice": GrammarKind.CHOICE,
    "grammar": GrammarKind.GRAMMAR,
}


def grammar_of(body: JsonObject) -> Grammar | None:
    """The form that the answer must have; `RequestError` for more than one."""
    found = [*_response_format(body.get("response_format")), *_structured(body.get("structured_outputs"))]
    for field, kind in _FLAT.items():
        value = body.get(field)
        if value is not None and value != "":
            found.append(_grammar(kind, value, field))
    if len(found) > 1:
        raise RequestError(
            f"{found[0].param} and {found[1].param} both say what form the answer must have; leave one out",
            param=found[1].param,
        )
    return found[0] if found else None


def _response_format(wanted: JsonValue) -> list[Grammar]:
    if wanted is None:
        return []
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if not isinstance(wanted, dict) or not isinstance(kind, str):
        raise RequestError(
            f'response_format is {shown(wanted)}; it must be an object such as {{"type": "text"}}',
            param="response_format",
        )
    if kind == "text":
        return []
    if kind == "json_object":
        return [Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT, "response_format")]
    if kind == "json_schema":
        path = "response_format.json_schema"
        named = wanted.get("json_schema")
        schema = named.get("schema") if isinstance(named, dict) else None
        if not isinstance(schema, dict):
            raise RequestError(
                f'{path} is {shown(named)}; it must be an object such as {{"name": "x", "schema": {{...}}}}', param=path
            )
        return [_grammar(GrammarKind.JSON_SCHEMA, schema, f"{path}.schema")]
    if kind in ("regex", "grammar", "ebnf"):
        place = f"response_format.{kind}"
        return [_grammar(_FLAT[kind], wanted.get(kind), place)]
    raise RequestError(
        f"response_format.type is {shown(kind)}; it must be text, json_object or json_schema",
        param="response_format.type",
    )


def _structured(wanted: JsonValue) -> list[Grammar]:
    if wanted is None or wanted == {}:
        return []
    if not isinstance(wanted, dict):
        raise RequestError(
            f'structured_outputs is {shown(wanted)}; it must be an object such as {{"choice": ["yes", "no"]}}',
            param="structured_outputs",
        )
    found = []
    for field, value in wanted.items():
        path = f"structured_outputs.{field}"
        if value is None or field in ("whitespace_pattern", "disable_any_whitespace"):
            continue
        if field == "json_object":
            if value is True:
                found.append(Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT, path))
            continue
        if field not in _NESTED:
            raise RequestError(
                f"{path} is not known here; json, json_object, regex, choice and grammar are",
                param=path,
                code="unsupported_parameter",
            )
        found.append(_grammar(_NESTED[field], value, path))
    return found


def _grammar(kind: GrammarKind, value: JsonValue, path: str) -> Grammar:
    is_text = isinstance(value, str)
    match kind:
        case GrammarKind.JSON_SCHEMA if isinstance(value, dict | bool) or is_text:
            return Grammar(kind, value if isinstance(value, str) else json_bytes(value).decode(), path)
        case GrammarKind.CHOICE if isinstance(value, list):
            return Grammar(kind, json_bytes(value).decode(), path)
        case GrammarKind.REGEX | GrammarKind.GRAMMAR if isinstance(value, str):
            return Grammar(kind, value, path)
    wanted = {
        GrammarKind.JSON_SCHEMA: "a JSON schema, as an object or as text",
        GrammarKind.CHOICE: "a list of texts",
        GrammarKind.REGEX: "a regular expression",
        GrammarKind.GRAMMAR: "a grammar in Lark's notation or GBNF",
    }[kind]
    raise RequestError(f"{path} is {shown(value)}; it must be {wanted}", param=path)
