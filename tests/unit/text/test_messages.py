"""Messages fitted to what a template reads."""

from __future__ import annotations

import pytest

from plait.core.errors import RequestError
from plait.text.messages import Message, Reading, fit_messages, plain_copy, texts_in

STRINGS = Reading()
PARTS = Reading(strings=False, parts=True)
EITHER = Reading(parts=True)


def user(content: object) -> Message:
    return {"role": "user", "content": content}


def part(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def test_a_string_stays_a_string_where_the_template_reads_strings() -> None:
    assert fit_messages([user("hi")], STRINGS) == [user("hi")]
    assert fit_messages([user("hi")], EITHER) == [user("hi")]
    assert fit_messages([user("")], STRINGS) == [user("")]


def test_a_string_becomes_a_part_where_the_template_reads_only_parts() -> None:
    assert fit_messages([user("hi")], PARTS) == [user([part("hi")])]


def test_parts_become_lines_where_the_template_reads_only_strings() -> None:
    assert fit_messages([user([part("one"), part("two")])], STRINGS) == [user("one\ntwo")]
    assert fit_messages([user([part("one")])], STRINGS) == [user("one")]


def test_parts_stay_parts_where_the_template_reads_them_without_what_else_they_carry() -> None:
    parts: list[object] = [{**part("one"), "cache_control": {"type": "ephemeral"}}]
    assert fit_messages([user(parts)], EITHER) == [user([part("one")])]


def test_a_developer_is_a_system_where_the_template_knows_none() -> None:
    developer: Message = {"role": "developer", "content": "Rhyme."}
    assert fit_messages([developer, user("hi")], STRINGS) == [{"role": "system", "content": "Rhyme."}, user("hi")]
    assert fit_messages([developer], Reading(developer=True)) == [developer]


def test_system_and_developer_become_one_message_with_both_texts() -> None:
    messages = [{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}, user("hi")]
    assert fit_messages(messages, STRINGS) == [{"role": "system", "content": "A\n\nB"}, user("hi")]
    assert fit_messages(messages, PARTS)[0]["content"] == [part("A"), part("B")]


def test_a_developer_later_in_the_conversation_stays_where_it_is() -> None:
    messages = [user("hi"), {"role": "developer", "content": "B"}]
    assert fit_messages(messages, STRINGS) == [user("hi"), {"role": "system", "content": "B"}]


def test_null_fields_are_left_out_and_others_kept() -> None:
    message = {"role": "user", "content": "hi", "name": "ann", "tool_calls": None}
    assert fit_messages([message], STRINGS) == [{"role": "user", "content": "hi", "name": "ann"}]


def test_an_assistant_that_called_tools_may_have_said_nothing() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    assert fit_messages([message], STRINGS) == [{"role": "assistant", "tool_calls": [{"id": "1"}]}]


def test_what_the_client_sent_is_not_changed() -> None:
    messages = [{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}]
    fitted = fit_messages(messages, STRINGS)
    fitted[0]["content"] = "C"
    assert messages == [{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}]


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([], "messages", "messages is empty"),
        ("hi", "messages", "messages is a str but must be a list"),
        (None, "messages", "messages is a NoneType"),
        (["hi"], "messages.0", "messages.0 is a str but must be an object"),
        ([user("a"), [user("b")]], "messages.1", "messages.1 is a list"),
        ([{"content": "hi"}], "messages.0.role", "messages.0.role is missing; use one of system, developer, user"),
        ([{"role": "robot", "content": "hi"}], "messages.0.role", "is 'robot'; use one of"),
        ([{"role": ["user"], "content": "hi"}], "messages.0.role", "is ['user']; use one of"),
        ([user(None)], "messages.0.content", "messages.0.content is missing"),
        ([{"role": "assistant"}], "messages.0.content", "messages.0.content is missing"),
        ([{"role": "assistant", "tool_calls": []}], "messages.0.content", "messages.0.content is missing"),
        ([user("a"), user(5)], "messages.1.content", "messages.1.content is a int but must be a string"),
        ([user({"type": "text"})], "messages.0.content", "is a dict but must be a string"),
        ([user([])], "messages.0.content", "messages.0.content is an empty list"),
        ([user(["hi"])], "messages.0.content.0", "messages.0.content.0 is a str"),
        ([user([part("a"), {"type": "image_url"}])], "messages.0.content.1.type", "is 'image_url'; this model reads"),
        ([user([{"text": "a"}])], "messages.0.content.0.type", "is None; this model reads only text"),
        ([user([{"type": "text"}])], "messages.0.content.0.text", "is a NoneType but must be a string"),
        ([{**user("a"), "a\nb": {1}}], r"messages.0.'a\nb'", "messages.0.'a\\nb' holds a set; send only JSON values"),
        ([user("a\ud800")], "messages.0.content", "contains the lone surrogate U+D800, which is no character"),
        ([{**user("a"), "name": {1, 2}}], "messages.0.name", "messages.0.name holds a set; send only JSON values"),
    ],
)
def test_a_message_that_is_none_is_refused_by_its_path(messages: object, param: str, words: str) -> None:
    with pytest.raises(RequestError) as refusal:
        fit_messages(messages, STRINGS)
    assert refusal.value.param == param
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_values_nested_beyond_reason_are_refused() -> None:
    deep: object = "x"
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(RequestError, match="tools is nested more than 100 levels deep"):
        plain_copy(deep, "tools")


def test_a_plain_copy_shares_nothing_with_the_original() -> None:
    original = {"a": [1, 2.5, True, None, ("b", {"c": "d"})]}
    copied = plain_copy(original, "x")
    assert copied == {"a": [1, 2.5, True, None, ["b", {"c": "d"}]]}
    original["a"].append("e")
    assert copied != original


def test_every_text_is_found_keys_included() -> None:
    assert texts_in({"a": ["b", {"c": ["d", 1, None]}], "e": "f"}) == ["a", "b", "c", "d", "e", "f"]
