"""Where chat templates come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from plait.core.errors import ModelError, UsageError
from plait.text.chat import ChatTemplate
from plait.text.templates import chat_template_from_file, chat_template_from_gguf, chat_template_from_hf

NAMED = {"bos_token": "<s>"}
TOOLS: list[Mapping[str, object]] = [{"type": "function", "function": {"name": "look"}}]
MESSAGES: list[Mapping[str, object]] = [{"role": "user", "content": "hi"}]


def now() -> datetime:
    return datetime(2026, 2, 3, tzinfo=UTC)


def rendered(template: ChatTemplate | None, tools: list[Mapping[str, object]] | None = None) -> str:
    assert template is not None
    return template.for_tools(tools).render(MESSAGES, add_generation_prompt=False, tools=tools)


def saying(word: str) -> str:
    return f"{{{{ bos_token }}}}{word} {{{{ messages[0].content }}}}"


def test_a_gguf_file_has_one_template_or_a_second_for_tools() -> None:
    metadata = {"tokenizer.chat_template": saying("one")}
    template = chat_template_from_gguf(metadata, NAMED, now)
    assert rendered(template) == rendered(template, TOOLS) == "<s>one hi"
    template = chat_template_from_gguf({**metadata, "tokenizer.chat_template.tool_use": saying("two")}, NAMED, now)
    assert (rendered(template), rendered(template, TOOLS)) == ("<s>one hi", "<s>two hi")


def write(directory: Path, files: Mapping[str, object]) -> None:
    for name, value in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        is_whole = path.suffix == ".jinja" or value == "{}"
        path.write_text(str(value) if is_whole else json.dumps({"chat_template": value}))


CONFIG, JSON, JINJA = "tokenizer_config.json", "chat_template.json", "chat_template.jinja"
BOTH = [{"name": "default", "template": saying("one")}, {"name": "tool_use", "template": saying("two")}]


@pytest.mark.parametrize(
    ("files", "plain", "with_tools"),
    [
        ({CONFIG: saying("config")}, "config", "config"),
        ({JSON: saying("json")}, "json", "json"),
        ({JINJA: saying("own")}, "own", "own"),
        ({CONFIG: saying("config"), JSON: saying("json"), JINJA: saying("own")}, "own", "own"),
        ({CONFIG: saying("config"), JSON: saying("json")}, "config", "config"),
        ({CONFIG: BOTH}, "one", "two"),
        ({CONFIG: {"default": saying("one"), "tool_use": saying("two")}}, "one", "two"),
        ({CONFIG: BOTH[:1]}, "one", "one"),
        ({CONFIG: BOTH, JINJA: saying("own")}, "own", "own"),
        ({JINJA: saying("own"), "additional_chat_templates/tool_use.jinja": saying("tools")}, "own", "tools"),
        ({JINJA: saying("own"), "chat_templates/tool_use.jinja": saying("tools")}, "own", "tools"),
    ],
)
def test_a_directory_says_it_in_several_places(
    tmp_path: Path, files: Mapping[str, object], plain: str, with_tools: str
) -> None:
    write(tmp_path, files)
    template = chat_template_from_hf(tmp_path, NAMED, now)
    assert (rendered(template), rendered(template, TOOLS)) == (f"<s>{plain} hi", f"<s>{with_tools} hi")


def test_a_directory_without_a_template_has_none(tmp_path: Path) -> None:
    assert chat_template_from_hf(tmp_path, NAMED, now) is None
    write(tmp_path, {CONFIG: "{}"})
    assert chat_template_from_hf(tmp_path, NAMED, now) is None


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({CONFIG: [{"name": "rag", "template": "x"}]}, "has no template called 'default' (it has: rag); give one with"),
        ({CONFIG: 7}, "has no template called 'default' (it has: none)"),
        ({CONFIG: [7, {"name": "default"}]}, "has no template called 'default' (it has: none)"),
        ({JINJA: "{% if %}"}, "the chat template cannot be compiled at line 1"),
        ({JINJA: "x" * 1_000_001}, "the chat template has 1,000,001 characters"),
        ({JINJA: "x" * (4 * 1024 * 1024 + 1)}, "has more than 4 MiB"),
    ],
)
def test_a_bad_template_is_refused_in_one_line(tmp_path: Path, files: Mapping[str, object], words: str) -> None:
    write(tmp_path, files)
    with pytest.raises(ModelError) as refusal:
        chat_template_from_hf(tmp_path, NAMED, now)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_user_may_bring_a_template(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    with pytest.raises(UsageError, match=r"own.jinja does not exist; give the path of a Jinja file"):
        chat_template_from_file(path, NAMED, now)
    path.write_text(saying("mine"))
    assert rendered(chat_template_from_file(path, NAMED, now)) == "<s>mine hi"
