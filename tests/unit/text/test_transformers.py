"""Tokenizers and templates against `transformers` itself, reading the same directory.

The templates do what the ones of families of models do, and were written for this test.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.unit.text.directories import CONTROL, KINDS, write_directory
from tests.unit.text.goldens import FOLDER, conversations
from tests.unit.text.random_texts import awkward_texts, random_texts

from plait.core.errors import RequestError
from plait.text.chat import ChatTemplate
from plait.text.hf import tokenizer_from_hf
from plait.text.prompt import encode_chat
from plait.text.templates import chat_template_from_hf

pytestmark = pytest.mark.torch
FAMILIES = {path.stem: path.read_text() for path in sorted((FOLDER / "families").glob("*.jinja"))}
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def now() -> datetime:
    return datetime.now(UTC)


def theirs(directory: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(directory)


def rendered_by_them(tokenizer: Any, told: Mapping[str, Any], **more: object) -> str | None:
    """None where the template refuses."""
    from jinja2.exceptions import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(
            told["messages"], tools=told.get("tools"), tokenize=False, **(told.get("variables", {}) | more)
        )
    except (TemplateError, TypeError):
        return None
    return text


def rendered_by_us(template: ChatTemplate, told: Mapping[str, Any], prompt: bool, **more: object) -> str | None:
    try:
        return template.render(told["messages"], prompt, told.get("tools"), told.get("variables", {}) | more)
    except RequestError:
        return None


@pytest.mark.parametrize("family", FAMILIES)
def test_templates_render_as_transformers_does(tmp_path: Path, family: str) -> None:
    write_directory(tmp_path, "gpt2", chat_template=FAMILIES[family])
    tokenizer, template = theirs(tmp_path), chat_template_from_hf(tmp_path, NAMED, now)
    assert template is not None
    told: dict[str, Mapping[str, Any]] = dict(conversations())
    told["reasoning"] = {
        "messages": [*told["one question"]["messages"], {"role": "assistant", "content": "<think>hm</think>\nParis"}]
    }
    told["reasoning, then more"] = {"messages": [*told["reasoning"]["messages"], {"role": "user", "content": "Sure?"}]}
    told["no tools"] = {**told["one question"], "tools": []}
    rendered = 0
    for name, conversation in told.items():
        for prompt in (False, True):
            for more in ({}, {"enable_thinking": False}):
                wanted = rendered_by_them(tokenizer, conversation, add_generation_prompt=prompt, **more)
                assert rendered_by_us(template, conversation, prompt, **more) == wanted, name
                rendered += wanted is not None
    assert rendered > 40


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["chatml", "phi3"])
def test_conversations_give_the_ids_of_transformers(tmp_path: Path, kind: str, family: str) -> None:
    added = {"3": {"content": "<|im_start|>", "rstrip": True}, "4": {"content": "<|im_end|>", "lstrip": True}}
    whole = {
        key: {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False} | token
        for key, token in added.items()
    }
    write_directory(tmp_path, kind, chat_template=FAMILIES[family], added_tokens_decoder=whole)
    tokenizer, ours = theirs(tmp_path), tokenizer_from_hf(tmp_path)
    template = chat_template_from_hf(tmp_path, ours.named_tokens, now)
    compared = 0
    for name in ("one question", "own system prompt", "several turns", "system prompt with spaces around", "unicode"):
        messages = conversations()[name]["messages"]
        wanted = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert encode_chat(ours, template, messages) == wanted, name
        compared += len(wanted)
    assert compared > 50


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": False, "add_eos_token": True},
        {
            "additional_special_tokens": ["<think>"],
            "pad_token": {"__type": "AddedToken", "content": "</think>", "lstrip": True},
        },
        {"added_tokens_decoder": {"3": {"content": "<|im_start|>", "special": True, "rstrip": True}}},
    ],
)
def test_directories_give_the_ids_and_texts_of_transformers(
    tmp_path: Path, kind: str, config: dict[str, object]
) -> None:
    write_directory(tmp_path, kind, **config)
    tokenizer, ours = theirs(tmp_path), tokenizer_from_hf(tmp_path)
    spelled = [f"a {control} \n{control}b" for control in (*CONTROL, "<think>", "</think>", "word")]
    texts = [text for text in (*awkward_texts(), *random_texts(60, seed=15)) if not text.startswith("<s>")]
    for text in (*texts, *spelled):
        ids = ours.encode(text, add_special=True, parse_special=True)
        assert ids == tokenizer(text)["input_ids"], text
        wanted = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if "\ufffd" not in wanted:
            assert ours.decode(ids) == wanted


def test_two_templates_are_chosen_between_as_transformers_does(tmp_path: Path) -> None:
    both = [{"name": "default", "template": FAMILIES["chatml"]}, {"name": "tool_use", "template": FAMILIES["qwen"]}]
    write_directory(tmp_path, "gpt2", chat_template=both)
    tokenizer, template = theirs(tmp_path), chat_template_from_hf(tmp_path, NAMED, now)
    assert template is not None
    for name in ("one question", "tool offered"):
        told = conversations()[name]
        wanted = rendered_by_them(tokenizer, told, add_generation_prompt=True)
        assert rendered_by_us(template.for_tools(told.get("tools")), told, True) == wanted
