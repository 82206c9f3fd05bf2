"""The event stream of a response whose model says something, calls functions and speaks again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.unit.api.byte_text import MODEL, byte_text

from plait.api.bodies import JsonObject
from plait.api.response_events import ResponseEvents
from plait.api.responses import parse_response
from plait.core.client import Delta
from plait.core.errors import RequestError
from plait.core.request import FinishReason
from plait.text.tool_calls import ToolFormat

TEXT = byte_text()
CALL = '<tool_call>{{"name": "{}", "arguments": {{"a": {}}}}}</tool_call>'
SAID = f"Well. {CALL.format('f', 1)}{CALL.format('g', 22)} Done"


def events_of(
    text: str, cuts: Sequence[int], end: FinishReason = FinishReason.STOP, form: ToolFormat | None = ToolFormat.HERMES
) -> tuple[list[JsonObject], JsonObject]:
    """The events of `text` cut in these places, and the response in the end."""
    asked = parse_response({"input": "hi"})
    call = replace(asked.call("resp_1", TEXT, MODEL), tool_format=form)
    events = ResponseEvents(call, TEXT.tokenizer, lambda: 1)
    made = events.start()
    places = [0, *cuts, len(text)]
    for first, last in pairwise(places):
        is_last = last == len(text)
        made += events.add(Delta(0, text[first:last], (1,), finish_reason=end if is_last else None))
    return made, events.response()


def kinds(made: Sequence[JsonObject]) -> list[str]:
    return [str(event["type"]).removeprefix("response.") for event in made if "delta" not in str(event["type"])]


MESSAGE = ["output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done"]
FUNCTION = ["output_item.added", "function_call_arguments.done", "output_item.done"]


@pytest.mark.parametrize("cuts", [(), (3, 11, 40, 41, 90), tuple(range(1, len(SAID)))])
def test_each_item_ends_before_the_next_begins_however_the_text_is_cut(cuts: tuple[int, ...]) -> None:
    made, response = events_of(SAID, cuts)
    assert kinds(made) == ["created", "in_progress", *MESSAGE, *FUNCTION, *FUNCTION, *MESSAGE, "completed"]
    assert [event["sequence_number"] for event in made] == list(range(len(made)))
    output = response["output"]
    assert isinstance(output, list)
    assert [(item["type"], item["status"]) for item in output if isinstance(item, dict)] == [
        ("message", "completed"),
        ("function_call", "completed"),
        ("function_call", "completed"),
        ("message", "completed"),
    ]
    first, f, g, last = output
    assert isinstance(f, dict)
    assert isinstance(g, dict)
    assert (f["name"], f["arguments"]) == ("f", '{"a": 1}')
    assert (g["name"], g["arguments"]) == ("g", '{"a": 22}')
    assert f["call_id"] != g["call_id"]
    assert len({item["id"] for item in output if isinstance(item, dict)}) == 4
    for place in range(4):
        told = "".join(str(e["delta"]) for e in made if e.get("output_index") == place and "delta" in e)
        item = output[place]
        assert isinstance(item, dict)
        assert told == (item["arguments"] if "arguments" in item else item["content"][0]["text"])  # type: ignore[index,call-overload]
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert made[-1]["response"] == response


def test_a_call_that_is_cut_is_incomplete_and_what_came_before_it_is_not() -> None:
    made, response = events_of(SAID[:50], (), FinishReason.LENGTH)
    output = response["output"]
    assert isinstance(output, list)
    assert [item["status"] for item in output if isinstance(item, dict)] == ["completed", "incomplete"]
    assert response["status"] == "incomplete"
    assert kinds(made)[-1] == "incomplete"


def test_where_calls_must_come_one_by_one_only_the_first_is_told() -> None:
    asked = parse_response({"input": "hi", "parallel_tool_calls": False})
    call = replace(asked.call("resp_1", TEXT, MODEL), tool_format=ToolFormat.HERMES, only_first_call=True)
    events = ResponseEvents(call, TEXT.tokenizer, lambda: 1)
    events.add(Delta(0, SAID, (1,), finish_reason=FinishReason.STOP))
    output = events.response()["output"]
    assert isinstance(output, list)
    assert [item.get("name", "text") for item in output if isinstance(item, dict)] == ["text", "f", "text"]


def test_a_response_with_nothing_in_it_is_an_empty_message() -> None:
    for form in (ToolFormat.HERMES, None):
        made, response = events_of("", (), form=form)
        assert kinds(made) == ["created", "in_progress", *MESSAGE, "completed"]
        assert response["status"] == "completed"


def test_what_fails_is_told_as_the_last_event() -> None:
    asked = parse_response({"input": "hi"})
    events = ResponseEvents(asked.call("resp_1", TEXT, MODEL), TEXT.tokenizer, lambda: 1)
    begun = events.start()
    (failed,) = events.failed(RequestError("broken", status=500))
    assert failed["sequence_number"] == len(begun)
    response = failed["response"]
    assert isinstance(response, dict)
    assert (response["status"], response["error"]) == ("failed", {"code": "server_error", "message": "broken"})
