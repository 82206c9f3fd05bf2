"""Chat templates render as `transformers` renders them, and their trouble is the request's or the model's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.text.goldens import conversations, lines, template

from plait.core.errors import ModelError, RequestError
from plait.text.chat import ChatTemplate
from plait.text.messages import Reading
from plait.text.templates import chat_template_from_gguf

NAMED = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
    "pad_token": "<|im_end|>",
}
HI = [{"role": "user", "content": "hi"}]


def now() -> datetime:
    return datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)


def make(source: str) -> ChatTemplate:
    return ChatTemplate(source, NAMED, now)


OURS = {name: make(template(name)) for name in ("parts", "plain", "strict", "tools", "words")}
GOLDENS = [line for line in lines("chats.jsonl") if line["template"] != "model"]


@pytest.mark.parametrize("name", list(OURS))
def test_conversations_render_as_transformers_renders_them(name: str) -> None:
    told = conversations()
    mine = [line for line in GOLDENS if line["template"] == name]
    assert len(mine) == 2 * len(told)
    for line in mine:
        assert rendered(OURS[name], told[line["conversation"]], line) == line.get("text"), line["conversation"]


def rendered(chat: ChatTemplate, conversation: dict[str, Any], line: dict[str, Any]) -> str | None:
    """The text, or None where the template refuses."""
    try:
        return chat.render(
            conversation["messages"],
            line["add_generation_prompt"],
            conversation.get("tools"),
            conversation.get("variables"),
        )
    except RequestError:
        return None


def test_a_refusal_says_what_the_template_says_in_one_line() -> None:
    with pytest.raises(RequestError) as refusal:
        OURS["strict"].render([*HI, *HI], add_generation_prompt=True)
    assert str(refusal.value) == (
        "the model's chat template refuses these messages: turns must alternate, got user at 1"
    )
    assert (refusal.value.param, refusal.value.status) == ("messages", 400)


def test_a_long_refusal_of_many_lines_is_cut_to_one() -> None:
    with pytest.raises(RequestError) as refusal:
        make("{{ raise_exception('one\n  two ' * 1000) }}").render(HI, add_generation_prompt=True)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1e400 }}",  # becomes the name inf in the program that jinja makes of it
        "{{ messages[0].missing.attribute }}",
        "{{ messages[5].content }}",
        "{{ 'a' + 1 }}",
        "{{ 1 / 0 }}",
        "{{ 1.5 ** 10000 }}",
        "{{ 'a' | int('x') + [] }}",
        "{{ [1, 'a'] | sort }}",
        "{{ messages() }}",
        "{{ 'a'.index('b') }}",
        "{{ {}['a'].b }}",
        "{{ range(10 ** 6) | list }}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ ''.__class__.__mro__ }}",
        "{% include 'other' %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{{ strftime_now('%Y', 1) }}",
        "{{ strftime_now(1) }}",
    ],
)
def test_whatever_goes_wrong_while_rendering_refuses_that_request(source: str) -> None:
    with pytest.raises(RequestError, match="the model's chat template refuses these messages: ") as refusal:
        make(source).render(HI, add_generation_prompt=True)
    assert refusal.value.param == "messages"
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages",
        "{% for m in messages %}",
        "{% nonsense %}",
        "{{ x | no_such_filter }}",
        "{{ x is no_such_test }}",
        "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
        "{% for i in x %}" * 30 + "{% endfor %}" * 30,
        "{% break %}",
        "{% generation %}",
        "{% set loop = 1 %}{% for loop in x %}{% endfor %}",
        "x" * 1_000_001,
    ],
)
def test_a_template_that_does_not_compile_is_the_models_fault(source: str) -> None:
    with pytest.raises(ModelError, match="the chat template ") as refusal:
        make(source)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


def test_a_syntax_error_names_its_line() -> None:
    with pytest.raises(ModelError, match="cannot be compiled at line 3: "):
        make("a\nb\n{{ c")


def test_no_messages_are_refused() -> None:
    with pytest.raises(RequestError, match="messages is empty") as refusal:
        OURS["plain"].render([], add_generation_prompt=True)
    assert refusal.value.param == "messages"


def test_variables_reach_the_template_and_override_names_but_not_the_conversation() -> None:
    source = "{{ bos_token }}{{ flag }}{{ messages[0].content }}{{ add_generation_prompt }}{{ tools }}{{ documents }}"
    given: dict[str, object] = {"flag": 1, "bos_token": "B", "messages": [], "tools": "T", "documents": ["d"]}
    assert make(source).render(HI, add_generation_prompt=False, variables=given) == "B1hiFalseNone['d']"
    assert make(source).render(HI, add_generation_prompt=True) == "<|im_start|>hiTrueNoneNone"


def test_a_template_sees_only_plain_values() -> None:
    with pytest.raises(RequestError, match=r"variables.clock holds a type; send only JSON values"):
        make("{{ clock.now() }}").render(HI, add_generation_prompt=True, variables={"clock": datetime})


def test_rendering_does_not_change_what_it_was_given() -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": None, "reasoning": "r"}, *HI]
    make("{{ messages[0].reasoning_content }}").render(messages, add_generation_prompt=True)
    assert messages == [{"role": "user", "content": None, "reasoning": "r"}, *HI]


def test_the_clock_is_read_when_a_request_is_rendered() -> None:
    days = iter(range(1, 9))
    chat = ChatTemplate("{{ strftime_now('%d') }}", {}, lambda: datetime(2026, 1, next(days), tzinfo=UTC))
    first, second = (int(chat.render(HI, add_generation_prompt=True)) for _ in range(2))
    assert second == first + 1


def test_a_template_is_asked_what_it_reads() -> None:
    assert OURS["plain"].reading == Reading(strings=True, parts=False, developer=False)
    assert OURS["parts"].reading == Reading(strings=True, parts=True, developer=False)
    assert OURS["tools"].reading == Reading(strings=True, parts=False, developer=True)
    only_parts = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    assert make(only_parts).reading == Reading(strings=False, parts=True)
    assert make("{{ messages[0].content }}").reading == Reading(strings=True, parts=False)
    assert make("{{ messages[0].content | tojson }}").reading == Reading(strings=True, parts=False)


def test_a_template_that_refuses_the_question_is_taken_to_read_strings() -> None:
    assert make("{{ raise_exception('never') }}").reading == Reading(strings=True, parts=False)


def test_the_template_comes_from_the_model_file_or_there_is_none() -> None:
    chat = chat_template_from_gguf({"tokenizer.chat_template": "{{ eos_token }}"}, NAMED, now)
    assert chat is not None
    assert chat.render(HI, add_generation_prompt=True) == "<|im_end|>"
    assert chat_template_from_gguf({}, NAMED, now) is None
    with pytest.raises(ModelError, match=r"tokenizer.chat_template is a list but must be a string"):
        chat_template_from_gguf({"tokenizer.chat_template": ["a"]}, NAMED, now)
