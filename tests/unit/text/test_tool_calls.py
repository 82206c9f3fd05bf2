"""Tool calls in text: the same events however the text is cut, nothing lost, time in proportion to the text."""

from __future__ import annotations

import json
from random import Random

import pytest

from plait.text.tool_calls import Arguments, CallBegun, Text, ToolCallReader, ToolEvent, ToolFormat

H, L, M = ToolFormat.HERMES, ToolFormat.LLAMA3_JSON, ToolFormat.MISTRAL


def read(form: ToolFormat, pieces: list[str]) -> tuple[str, list[tuple[str, str]], int]:
    """Text, calls as (name, arguments), and how many of them are complete."""
    reader = ToolCallReader(form)
    events: list[ToolEvent] = []
    for piece in pieces:
        events += reader.push(piece)
    events += reader.finish()
    text, calls = "", []
    for event in events:
        match event:
            case Text(said):
                text += said
            case CallBegun(index, name, arguments):
                assert index == len(calls)
                calls.append((name, arguments))
            case Arguments(index, more):
                assert index == len(calls) - 1
                calls[index] = (calls[index][0], calls[index][1] + more)
    return text, calls, reader.num_calls


CASES = [
    (H, "just text", "just text", [], 0),
    (H, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", [("f", '{"a": 1}')], 1),
    (
        H,
        'Let me see.\n<tool_call>{"name": "f", "arguments": {"a": "}<tool_call>"}}</tool_call>\n'
        '<tool_call>{"arguments": {"b": [1, {}]}, "name": "g"}</tool_call>\n',
        "Let me see.\n",
        [("f", '{"a": "}<tool_call>"}'), ("g", '{"b": [1, {}]}')],
        2,
    ),
    (H, '<tool_call>{"name": "f", "arguments": {"a": "é\\"{"}}', "", [("f", '{"a": "é\\"{"}')], 1),
    (H, '<tool_call>{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')], 0),
    (H, '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")], 1),
    (H, "a <tool_call> b", "a <tool_call> b", [], 0),
    (H, "a <tool_call", "a <tool_call", [], 0),
    (H, "a < b <<tool_call>x", "a < b <<tool_call>x", [], 0),
    (H, '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', [], 0),
    (H, '<tool_call>{"name": ', '<tool_call>{"name": ', [], 0),
    (
        H,
        '<tool_call>{"name": "f", "arguments": {}}<tool_call>{"name": "g", "arguments": {}}</tool_call>',
        "",
        [("f", "{}"), ("g", "{}")],
        2,
    ),
    (H, '<tool_call>{"name": "f", "arguments": {}}</tool_call> and so on', " and so on", [("f", "{}")], 1),
    (L, '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')], 1),
    (
        L,
        '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
        2,
    ),
    (L, " hello {", " hello {", [], 0),
    (L, '{"a": 1} is JSON', '{"a": 1} is JSON', [], 0),
    (L, "<|python", "<|python", [], 0),
    (
        M,
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
        2,
    ),
    (M, '[TOOL_CALLS]f[ARGS]{"a": [1]}', "", [("f", '{"a": [1]}')], 1),
    (M, '[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{"b": 2}', "", [("f", '{"a": 1}'), ("g", '{"b": 2}')], 2),
    (M, "Hi [TOOL] x", "Hi [TOOL] x", [], 0),
    (M, "[TOOL_CALLS]?", "[TOOL_CALLS]?", [], 0),
]


@pytest.mark.parametrize(("form", "answer", "text", "calls", "complete"), CASES)
def test_calls_are_found_whole_and_char_by_char(
    form: ToolFormat, answer: str, text: str, calls: list[tuple[str, str]], complete: int
) -> None:
    assert read(form, [answer]) == (text, calls, complete)
    assert read(form, list(answer)) == (text, calls, complete)


CALL = {
    H: '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    L: '{"name": "f", "parameters": {}}',
    M: '[TOOL_CALLS][{"name": "f", "arguments": {}}]',
}


@pytest.mark.parametrize("form", ToolFormat)
def test_behind_a_call_too_the_cut_changes_nothing(form: ToolFormat) -> None:
    words = [CALL[form], "<tool_call>", "[TOOL_CALLS]", "<tool", "[", "{", " ", "\n", "text", ";", ","]
    for seed in range(1000):
        random = Random(seed)
        answer = CALL[form] + "".join(random.choices(words, k=random.randint(1, 8)))
        assert read(form, list(answer)) == read(form, [answer])
    assert read(form, [*CALL[form], "\n", " "]) == ("", read(form, [CALL[form]])[1], 1)


def test_what_was_opened_behind_a_call_and_cut_is_told() -> None:
    assert read(H, [CALL[H] + "<tool_call>{"])[0] == "<tool_call>{"


@pytest.mark.parametrize("form", ToolFormat)
def test_how_the_text_is_cut_changes_nothing_and_no_text_is_lost(form: ToolFormat) -> None:
    marks = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", '{"name": "f", ']
    words = [*marks, '"arguments": {', "}", "]", "[", ",", ";", '"', "\\", " ", "\n", "text", "f", "é"]
    for seed in range(400):
        random = Random(seed)
        answer = "".join(random.choices(words, k=random.randint(1, 14)))
        whole = read(form, [answer])
        assert read(form, list(answer)) == whole
        if not whole[1] and form is not ToolFormat.LLAMA3_JSON:
            assert whole[0] == answer


@pytest.mark.parametrize(
    "piece", ['[f(a="', "<tool_call>", '{"name":', '<tool_call>{"name": "f", "arguments": {', "[TOOL_CALLS]", " ", "[,"]
)
@pytest.mark.parametrize("form", ToolFormat)
def test_long_nonsense_is_read_in_one_pass(form: ToolFormat, piece: str) -> None:
    answer = piece * (200_000 // len(piece))
    for before in ("", CALL[form]):
        text, _, _ = read(form, [before + answer])
        assert len(text) <= len(answer) + 20


def test_arguments_come_while_they_are_written() -> None:
    reader = ToolCallReader(H)
    assert reader.push('<tool_call>{"name": "f", "arguments": {"a"') == [CallBegun(0, "f"), Arguments(0, '{"a"')]
    assert reader.push(": 1") == [Arguments(0, ": 1")]
    assert json.loads('{"a"' + ": 1" + "}")
