"""Which form a body asks for: every dialect, and what is refused."""

from __future__ import annotations

import pytest

from plait.api.bodies import JsonObject
from plait.api.structured import ANY_OBJECT, grammar_of
from plait.core.errors import RequestError
from plait.text.grammar import GrammarKind

SCHEMA: JsonObject = {"type": "integer"}


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_SCHEMA, ANY_OBJECT),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            GrammarKind.JSON_SCHEMA,
            '{"type":"integer"}',
        ),
        ({"structured_outputs": {"json": SCHEMA}}, GrammarKind.JSON_SCHEMA, '{"type":"integer"}'),
        ({"structured_outputs": {"json": '{"type":"integer"}'}}, GrammarKind.JSON_SCHEMA, '{"type":"integer"}'),
        ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON_SCHEMA, ANY_OBJECT),
        ({"structured_outputs": {"choice": ["a", "b"], "regex": None}}, GrammarKind.CHOICE, '["a","b"]'),
        ({"guided_regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"guided_choice": ["x"]}, GrammarKind.CHOICE, '["x"]'),
        ({"grammar": 'root ::= "x"'}, GrammarKind.GRAMMAR, 'root ::= "x"'),
        ({"json_schema": SCHEMA}, GrammarKind.JSON_SCHEMA, '{"type":"integer"}'),
        ({"regex": "b"}, GrammarKind.REGEX, "b"),
    ],
)
def test_every_dialect_is_understood(body: JsonObject, kind: GrammarKind, text: str) -> None:
    found = grammar_of(body)
    assert found is not None
    assert (found.kind, found.text) == (kind, text)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json_object": False}},
        {"grammar": ""},
        {"guided_json": None},
    ],
)
def test_what_asks_for_nothing_is_no_form(body: JsonObject) -> None:
    assert grammar_of(body) is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": []}, "response_format"),
        ({"response_format": {"type": 5}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}}, "response_format.json_schema"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": "json"}, "structured_outputs"),
        ({"guided_choice": "yes"}, "guided_choice"),
        ({"guided_regex": ["a"]}, "guided_regex"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
def test_what_cannot_be_understood_or_is_said_twice_is_refused(body: JsonObject, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        grammar_of(body)
    assert caught.value.param == param
