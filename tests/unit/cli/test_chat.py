"""`plait chat` on a tiny model: commands, limits, files, pipes, and what an interrupt takes out of the engine."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import gguf
import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait.build import LocalEngine, load_model, start_engine
from plait.cli.chat import Chat
from plait.cli.conversation import Answering, Conversation, Turn
from plait.cli.keyboard import Keyboard
from plait.cli.main import main
from plait.config.engine_options import EngineOptions
from plait.core.errors import RequestError
from plait.core.sampling import SamplingParams
from plait.metrics.totals import Totals
from plait.weights.sources import ignore_progress

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@contextmanager
def running(model: Path) -> Iterator[LocalEngine]:
    options = EngineOptions(model=str(model), executor="reference", max_num_seqs=2)
    started = start_engine(options, load_model(options, ignore_progress, datetime.now), Totals(), print)
    yield started
    started.close()


@pytest.fixture
def engine(tiny: Path) -> Iterator[LocalEngine]:
    with running(tiny) as started:
        yield started


@pytest.fixture
def roomy_engine(tmp_path: Path) -> Iterator[LocalEngine]:
    """Its answers take longer than anybody needs to interrupt one."""
    with running(write_tiny_model(tmp_path / "tiny.gguf", context=16_384)) as started:
        yield started


class Typed(Keyboard):
    """A keyboard that types what it is told; an exception is raised in its place."""

    def __init__(self, *lines: str | BaseException) -> None:
        super().__init__(None)
        self._lines = list(lines)

    def line(self, prompt: str) -> str:
        if not self._lines:
            raise EOFError
        typed = self._lines.pop(0)
        if isinstance(typed, BaseException):
            raise typed
        return typed


def sampling(max_tokens: int | None = 6, **more: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **more)  # type: ignore[arg-type]


def chat_on(engine: LocalEngine, *, max_tokens: int | None = 6, file_text: str = "", stats: bool = False) -> Chat:
    return Chat(Conversation(engine, sampling(max_tokens), None, file_text), stats=stats)


def test_answers_become_turns_and_the_next_prompt_holds_them(engine: LocalEngine, capsys: Capture) -> None:
    chat = chat_on(engine, stats=True)
    assert chat.converse(Typed("Hello", "  ", "Again")) == 0
    turns = chat.conversation.turns
    assert [turn.message for turn in turns] == ["Hello", "Again"]
    assert all(turn.answer for turn in turns)
    told = capsys.readouterr().err
    assert "of them from the cache, first token after" in told
    assert "the answer was cut after --max-tokens, 6" in told


def test_a_later_turn_finds_the_earlier_ones_in_the_cache(engine: LocalEngine) -> None:
    conversation = Conversation(engine, sampling(), None)
    loop = asyncio.new_event_loop()
    first, second = Answering(0.0), Answering(0.0)
    loop.run_until_complete(conversation.answer(conversation.tokens("Hello " * 4), first, lambda text: None))
    conversation.turns.append(Turn("Hello " * 4, first.text))
    loop.run_until_complete(conversation.answer(conversation.tokens("and?"), second, lambda text: None))
    loop.close()
    assert first.num_cached == 0
    # All of the first prompt but the sign that an answer begins here, which stands before the answer then.
    assert second.num_cached >= first.num_prompt - 1
    assert second.num_prompt > first.num_prompt


def test_an_interrupt_stops_the_answer_and_the_engines_work_and_keeps_what_came(
    roomy_engine: LocalEngine, capsys: Capture
) -> None:
    engine = roomy_engine
    written: list[str] = []

    def write(text: str) -> None:
        written.append(text)
        if len(written) == 3:
            signal.raise_signal(signal.SIGINT)

    chat = Chat(Conversation(engine, sampling(None), None), stats=False, write=write)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert chat.converse(Typed("tell me all", "/save nowhere/x")) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    (turn,) = chat.conversation.turns
    assert turn.answer == "".join(written)
    assert 0 < len(turn.answer) < chat.conversation.limit - 40
    assert "stopped; what came is part of the conversation" in capsys.readouterr().err
    until_s = time.monotonic() + 10.0
    while engine.client.health().num_running and time.monotonic() < until_s:
        time.sleep(0.005)
    assert engine.client.health().num_running == 0, "the request left the engine"


def test_an_interrupt_at_the_prompt_ends_but_one_just_after_an_answer_does_not(engine: LocalEngine) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.3
        return now[0]

    chat = Chat(Conversation(engine, sampling(), None), stats=False, now=clock)
    # After the first question 0.3 s have passed at the first interrupt, 0.6 s at the second.
    keyboard = Typed("one", KeyboardInterrupt(), KeyboardInterrupt(), "never read")
    assert chat.converse(keyboard) == 0
    assert len(chat.conversation.turns) == 1
    assert keyboard._lines == ["never read"]


def test_a_conversation_that_grows_too_long_says_so_and_is_not_cut(engine: LocalEngine, capsys: Capture) -> None:
    chat = chat_on(engine)
    chat.converse(Typed("x" * 100, "y" * 100, "z" * 100, "/forget", "w" * 100))
    assert [turn.message[0] for turn in chat.conversation.turns] == ["y", "w"]
    told = capsys.readouterr().err
    assert "and the model holds 256 together with the answer; shorten it, let /forget drop the oldest exchange" in told


def test_an_answer_that_fills_the_context_says_so(engine: LocalEngine, capsys: Capture) -> None:
    chat_on(engine, max_tokens=None).converse(Typed("x" * 200))
    assert "the answer was cut: the context of 256 tokens is full; /forget drops" in capsys.readouterr().err


def test_the_first_message_that_is_too_long_is_told_what_it_has(engine: LocalEngine) -> None:
    with pytest.raises(RequestError, match=r"has 30[0-9] tokens, and the model holds 256 .*; send less"):
        Conversation(engine, sampling(), None).tokens("x" * 300)


def test_a_file_goes_into_the_first_message_and_after_clear_again(engine: LocalEngine) -> None:
    chat = chat_on(engine, file_text="The file.")
    chat.converse(Typed("What?", "/clear", "Once more?", "And?"))
    assert [turn.message for turn in chat.conversation.turns] == ["The file.\n\nOnce more?", "And?"]


def test_commands_change_the_conversation(engine: LocalEngine, capsys: Capture, tmp_path: Path) -> None:
    chat = chat_on(engine)
    saved = tmp_path / "talk.json"
    text = tmp_path / "talk.txt"
    commands = ["/system Be brief.", "Hi", f"/save {saved}", f"/save {saved}", "/stats", "/again", f"/save {text}"]
    chat.converse(Typed(*commands, "/exit", "never read"))
    assert chat.conversation.messages()[0] == {"role": "system", "content": "Be brief."}
    assert [turn.message for turn in chat.conversation.turns] == ["Hi"]
    messages = json.loads(saved.read_text())["messages"]
    assert [one["role"] for one in messages] == ["system", "user", "assistant"]
    told = capsys.readouterr().err
    assert f"3 messages are in {saved}" in told
    assert f"{saved} exists; choose another name" in told
    assert "figures after each answer are on" in told
    assert text.read_text().startswith("system:\nBe brief.\n\nuser:\nHi\n")


def test_clear_forgets_all_but_the_system_prompt(engine: LocalEngine) -> None:
    chat = Chat(Conversation(engine, sampling(), "Be kind."), stats=False)
    chat.converse(Typed("Hi", "/clear"))
    assert chat.conversation.messages() == [{"role": "system", "content": "Be kind."}]
    chat = Chat(chat.conversation, stats=False)
    chat.converse(Typed("/system"))
    assert chat.conversation.messages() == []


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("/hlep", "there is no command /hlep; did you mean /help?"),
        ("/zzzzzz", "there is no command /zzzzzz; /help lists them"),
        ("/forget", "there is nothing to forget yet"),
        ("/again", "there is nothing to answer again yet"),
        ("/save", "name a file: /save FILE"),
        ("/save x.json", "there is nothing to save yet"),
        ("/help", "a blank stands before it"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), "what was typed is not text in this terminal's encoding"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_a_mistake_is_told_and_the_conversation_goes_on(
    typed: str | BaseException, told: str, engine: LocalEngine, capsys: Capture
) -> None:
    chat = chat_on(engine)
    assert chat.converse(Typed(typed, " /go on")) == 0
    assert told in capsys.readouterr().err
    assert [turn.message for turn in chat.conversation.turns] == ["/go on"]


# The whole command


def piped(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))


def command(tiny: Path, *more: str) -> int:
    return main(["chat", str(tiny), "--executor", "reference", "--temperature", "0", "--max-tokens", "5", *more])


def test_what_is_piped_in_is_answered_as_plain_text(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    piped(monkeypatch, b"Hello\nthere\n")
    assert command(tiny) == 0
    printed = capsys.readouterr()
    assert printed.out.endswith("\n")
    assert printed.out.strip()
    assert "\x1b" not in printed.out
    assert printed.err.strip().endswith("cut after --max-tokens, 5")


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "standard input is no terminal and brings no message; pipe one in"),
        (b"caf\xe9", "standard input is not UTF-8: byte 3 is 0xe9; convert it"),
        (b"a\0b", "standard input holds the character NUL"),
        (b"x" * (4 << 20) + b"x", "standard input is larger than 4,194,304 bytes; give a part of it"),
    ],
)
def test_what_cannot_be_a_message_is_refused(
    raw: bytes, told: str, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    piped(monkeypatch, raw)
    assert command(tiny) == 2
    assert told in capsys.readouterr().err


def test_a_message_that_is_too_long_ends_with_one(tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    piped(monkeypatch, b"x" * 400)
    assert command(tiny) == 1
    assert "tokens, and the model holds 256" in capsys.readouterr().err


def test_a_file_alone_is_a_message(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "note.txt").write_text("\ufeffSome note.\n")
    piped(monkeypatch, b"")
    assert command(tiny, "--file", str(tmp_path / "note.txt")) == 0
    assert capsys.readouterr().out.strip()


def test_a_file_that_is_no_text_is_refused(tiny: Path, capsys: Capture, tmp_path: Path) -> None:
    for name, raw, told in (
        ("none", None, "cannot be read: No such file or directory; give an existing text file"),
        ("empty", b" \n", "is empty; give a file with a text"),
        ("latin", b"\xe4", "is not UTF-8: byte 0 is 0xe4; convert it"),
    ):
        path = tmp_path / name
        if raw is not None:
            path.write_bytes(raw)
        assert command(tiny, "--file", str(path)) == 2
        assert f"--file {path} {told}" in capsys.readouterr().err
    assert command(tiny, "--file", str(tmp_path)) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_a_model_without_a_template_cannot_chat(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "add_chat_template", lambda self, value: None)
    base = write_tiny_model(tmp_path / "base.gguf")
    piped(monkeypatch, b"Hello")
    assert command(base) == 1
    assert "base has no chat template, so it cannot chat; take a model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--temperature", "3"], "--temperature is '3'; a number from 0 to 2 is expected"),
        (["--top-p", "0"], "--top-p is '0'; a number above 0 up to 1 is expected"),
        (["--tempreature", "1"], "did you mean --temperature?"),
    ],
)
def test_wrong_options_are_told_before_a_model_is_loaded(argv: list[str], told: str, capsys: Capture) -> None:
    assert main(["chat", "nowhere.gguf", *argv]) == 2
    assert told in capsys.readouterr().err
