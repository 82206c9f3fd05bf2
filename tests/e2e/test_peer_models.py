"""Models that have broken servers of this kind before, or were served wrongly without a word: each is served with a
warning, or refused in one line before anything listens for long.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.e2e.server_process import PLAIT, serving
from tests.e2e.test_peer_failures import CHAT, TEXT, asked, refused, text_of
from tests.e2e.tiny_checkpoint import write_tiny_checkpoint
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.api.byte_text import BEGIN, END

HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def fails(model: Path, *options: str) -> str:
    """What a start with this model says in its last line; it must be the only trouble told, and no trace."""
    command = [*PLAIT, "serve", str(model), "--port", "0", "--kv-cache-memory", "8MiB", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode not in (0, -9), done.stderr
    assert "Traceback" not in done.stderr
    assert "serving" not in done.stderr, "it never said that it served"
    *_, last = done.stderr.splitlines()
    assert last.startswith("plait: ")
    return last


def test_a_file_that_does_not_say_how_text_is_cut_is_served_with_a_warning(tmp_path: Path) -> None:
    with serving(write_tiny_model(tmp_path / "old.gguf", pre=None)) as server:
        assert any("tokenizer.ggml.pre is missing" in line for line in server.said), server.said
        assert len(text_of(asked(server, CHAT, HELLO))) > 0


def test_a_file_that_says_it_in_a_way_nobody_knows_is_refused(tmp_path: Path) -> None:
    said = fails(write_tiny_model(tmp_path / "new.gguf", pre="somebody-elses"))
    assert "tokenizer.ggml.pre is 'somebody-elses'" in said


def test_a_model_without_a_chat_template_continues_texts_and_refuses_chats(tmp_path: Path) -> None:
    with serving(write_tiny_model(tmp_path / "base.gguf", template=None)) as server:
        told = refused(server, CHAT, HELLO)
        assert "template" in str(told["message"])
        body = {"prompt": "hello", "max_tokens": 4, "ignore_eos": True, "temperature": 0}
        assert asked(server, TEXT, body)["usage"]["completion_tokens"] == 4
        assert server.become_idle()


@pytest.mark.parametrize("kept", [0, 1000, -1])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, kept: int) -> None:
    whole = write_tiny_model(tmp_path / "tiny.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:kept])
    assert str(cut) in fails(cut)


@pytest.mark.parametrize("architecture", ["jamba", "qwen3next", "nobody-knows-it"])
def test_a_file_of_an_architecture_that_is_not_served_is_refused_by_name(tmp_path: Path, architecture: str) -> None:
    """Layers with states among them: rather no answer than one whose prefixes are never found, or found wrongly."""
    said = fails(write_tiny_model(tmp_path / "other.gguf", architecture=architecture))
    assert architecture in said
    assert "llama" in said, "it says what is served"


@pytest.mark.parametrize("kind", ["qwen3_next", "mamba2"])
def test_a_directory_of_a_hybrid_model_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    directory = write_tiny_checkpoint(
        tmp_path / "hybrid", config={"model_type": kind, "architectures": ["SomethingForCausalLM"]}
    )
    assert kind in fails(directory)


@pytest.mark.parametrize("option", ["--speculative-config={}", "--reasoning-parser=qwen3"])
def test_guessing_ahead_and_reasoning_parsers_are_no_options_and_said_not_to_be(tmp_path: Path, option: str) -> None:
    said = fails(write_tiny_model(tmp_path / "tiny.gguf"), option)
    assert option.partition("=")[0] in said


def test_thinking_is_counted_within_the_answer_and_nowhere_twice(tmp_path: Path) -> None:
    opens = "{% for one in messages %}{{ one['content'] }}{% endfor %}<think>"
    with serving(write_tiny_model(tmp_path / "thinks.gguf", template=opens)) as server:
        for max_tokens in (1, 2, 3, 7, 16):
            usage = asked(server, CHAT, {**HELLO, "max_tokens": max_tokens})["usage"]
            thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0)
            assert 0 <= thought <= usage["completion_tokens"] == max_tokens
            assert usage["total_tokens"] == usage["prompt_tokens"] + max_tokens


def test_every_end_that_a_model_names_ends_an_answer_and_can_be_ignored(tmp_path: Path) -> None:
    ends = (END, ord("q"), BEGIN)
    directory = write_tiny_checkpoint(tmp_path / "ends")
    (directory / "generation_config.json").write_text(f'{{"eos_token_id": {list(ends)}}}')
    with serving(directory) as server:
        for end in ends:
            body = {"prompt": "x", "max_tokens": 6, "temperature": 0, "logit_bias": {str(end): 100}}
            told = asked(server, TEXT, body)
            assert (told["choices"][0]["finish_reason"], told["choices"][0]["text"]) == ("stop", "")
            told = asked(server, TEXT, {**body, "ignore_eos": True})
            assert (told["choices"][0]["finish_reason"], told["usage"]["completion_tokens"]) == ("length", 6)
        assert server.become_idle()
