"""`plait` with streams that are missing, full or too narrow, and interrupted at any moment.

The engine is the real one, the model tiny.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model

PLAIT = [sys.executable, "-c", "import sys; from plait.cli.main import main; sys.exit(main())"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def batch(folder: Path, model: Path, output: bytes, *extra: str) -> list[str | bytes]:
    """A command for one line of input."""
    body = {"prompt": "x", "max_tokens": 3, "temperature": 0}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    (folder / "in.jsonl").write_text(json.dumps(line) + "\n")
    names: list[str | bytes] = ["-i", str(folder / "in.jsonl"), "-o", os.fsencode(folder) + b"/" + output]
    return [*PLAIT, "batch", *names, "-m", str(model), *extra]


def is_answered(folder: Path, output: bytes) -> bool:
    with open(os.fsencode(folder) + b"/" + output) as file:
        return bool(json.loads(file.read())["response"]["status_code"] == 200)


@pytest.mark.parametrize("closed", ["2>&-", "2</dev/null", "2>/dev/full"])
def test_without_a_stderr_the_result_stands_alone(closed: str, tmp_path: Path, tiny: Path) -> None:
    command = ["sh", "-c", f'"$@" {closed}', "sh", *batch(tmp_path, tiny, b"out.jsonl", "--json")]
    done = subprocess.run(command, capture_output=True, timeout=100)
    assert done.returncode == 0
    assert json.loads(done.stdout)["lines"]["completed"] == 1
    assert is_answered(tmp_path, b"out.jsonl")


def test_without_any_stream_the_work_is_done(tmp_path: Path, tiny: Path) -> None:
    command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *batch(tmp_path, tiny, b"out.jsonl")]
    assert subprocess.run(command, timeout=100).returncode == 0
    assert is_answered(tmp_path, b"out.jsonl")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_name_that_the_terminal_cannot_show_is_shown_in_part(encoding: str, tmp_path: Path, tiny: Path) -> None:
    output = "na\u00efve \u2192.jsonl".encode()
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(batch(tmp_path, tiny, output), capture_output=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    assert b" \\u2192.jsonl" in done.stdout
    assert is_answered(tmp_path, output)


def test_a_name_that_is_no_utf_8_is_json_too(tmp_path: Path, tiny: Path) -> None:
    output = b"\xff\xe9.jsonl"
    done = subprocess.run(batch(tmp_path, tiny, output, "--json", "--quiet"), capture_output=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["output"].endswith(".jsonl")
    assert is_answered(tmp_path, output)


SOON = [(0.0, 1), (0.2, 1), (0.4, 1), (0.7, 1), (0.0, 2), (0.3, 2)]
ALL = [(moment_s, interrupts) for interrupts in (1, 2) for moment_s in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)]


@pytest.mark.parametrize(
    ("moment_s", "interrupts"),
    [*SOON, *(pytest.param(*one, marks=pytest.mark.slow) for one in ALL if one not in SOON)],
)
def test_an_interrupt_at_any_moment_leaves_no_trace(
    moment_s: float, interrupts: int, tmp_path: Path, tiny: Path
) -> None:
    command = [sys.executable, "-X", "importtime", *PLAIT[1:], "verify", str(tiny), "--quiet"]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "x"}\n{"prompt": "y"}\n')
    command += ["--prompts", str(prompts), "--mixes", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split("|")[-1].strip() == "importlib.metadata":
                break  # Python is up, and our own code runs
        time.sleep(moment_s)
        for _ in range(interrupts):
            process.send_signal(signal.SIGINT)
            time.sleep(0.002)
        printed, words = process.communicate(timeout=60)
    told = [line for line in words.splitlines() if not line.startswith("import time:")]
    assert printed == ""
    if interrupts == 1:
        assert (process.returncode, told) == (130, ["plait: interrupted"])
    else:
        assert process.returncode in (130, -signal.SIGINT)
        assert told in ([], ["plait: interrupted"])
