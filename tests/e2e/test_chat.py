"""`plait chat` in a terminal, with the default model: a person types, interrupts, goes on, looks back and leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.terminal import Terminal

PLAIT = [sys.executable, "-c", "import sys; from plait.cli.main import main; sys.exit(main())"]
PROMPT = "\n> "
LONG = "Write a very long story about a ship, with every detail."


def environment(folder: Path) -> dict[str, str]:
    """A home of its own for the history, but the models that are here."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PLAIT_")}
    return {**plain, "XDG_STATE_HOME": str(folder / "state"), "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}


def chat(folder: Path, model: Path, *more: str) -> Terminal:
    return Terminal([*PLAIT, "chat", str(model), *more], environment(folder), folder)


@pytest.mark.model
def test_an_interrupted_answer_is_kept_and_the_next_question_is_answered(model_path: Path, tmp_path: Path) -> None:
    with chat(tmp_path, model_path, "--stats", "--temperature", "0") as terminal:
        greeting = terminal.wait_for(PROMPT)
        assert "M parameters" in greeting
        terminal.type(f"{LONG}\n")
        terminal.wait_for(" the ")
        terminal.type("\x03")
        terminal.wait_for("stopped; what came is part of the conversation")
        terminal.wait_for(PROMPT)
        terminal.type("What is the capital of France?\n")
        answered = terminal.wait_for(PROMPT)
        assert "output tokens" in answered
        terminal.type("/save talk.json\n")
        terminal.wait_for("4 messages are in talk.json")
        terminal.wait_for(PROMPT)  # typed before the editor reads, an end of input is no end of input
        terminal.type("\x04")
        assert terminal.wait_end() == 0
    messages = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "user", "assistant"]
    assert messages[0]["content"] == LONG
    assert " the " in messages[1]["content"], "the part that was seen"
    # What the first exchange left in the cache is not computed again.
    cached = int(answered.split(" prompt tokens, ")[1].split()[0].replace(",", ""))
    assert cached > 20


@pytest.mark.model
def test_an_interrupt_at_the_prompt_ends_well_and_the_history_is_there_next_time(
    model_path: Path, tmp_path: Path
) -> None:
    with chat(tmp_path, model_path, "--max-tokens", "4") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Name a colour, please.\n")
        terminal.wait_for(PROMPT)
        time.sleep(0.6)  # sooner it would be taken for one that came late for the answer
        terminal.type("\x03")
        assert terminal.wait_end() == 0
        assert "Traceback" not in terminal.seen
    history = tmp_path / "state" / "plait" / "chat_history"
    assert history.read_text().splitlines()[-1] == "Name a colour, please."
    assert history.stat().st_mode & 0o077 == 0
    with chat(tmp_path, model_path, "--max-tokens", "4") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("\x1b[A")  # the arrow key upwards
        terminal.wait_for("Name a colour, please.")
        terminal.type("\x15/exit\n")  # Ctrl-U empties the line
        assert terminal.wait_end() == 0


@pytest.mark.model
def test_a_file_that_does_not_fit_is_told_with_its_tokens(model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("many words " * 6000)
    with chat(tmp_path, model_path, "--file", "long.txt", "--no-history") as terminal:
        assert terminal.wait_end() == 2
        told = " ".join(terminal.seen.split())
    assert "plait: --file long.txt does not fit: with this message the conversation has 12,0" in told
    assert "and the model holds 8,192 together with the answer; send less" in told
    assert not (tmp_path / "state").exists()


@pytest.mark.model
def test_a_pipe_gets_the_answer_and_nothing_else(model_path: Path, tmp_path: Path) -> None:
    command = [*PLAIT, "chat", str(model_path), "--temperature", "0", "--max-tokens", "12"]
    done = subprocess.run(
        command,
        input="What is the capital of France?\n",
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(tmp_path),
    )
    assert (done.returncode, done.stderr) == (0, "the answer was cut after --max-tokens, 12\n")
    assert done.stdout.strip()
    assert done.stdout.endswith("\n")
