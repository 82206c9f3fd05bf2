"""The terminal: results on stdout, words on stderr, and a bar only for a model that is really fetched."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from plait.cli.terminal import download_progress, say, show

Capture = pytest.CaptureFixture[str]

SHOW = """
import sys
from plait.cli.terminal import show
from plait.core.errors import PlaitError
try:
    show("result " * 1000)
except PlaitError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
except BrokenPipeError:
    sys.exit(141)
"""


def test_results_and_words_do_not_mix(capsys: Capture) -> None:
    show("result")
    say("a word")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("result\n", "a word\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_one_line(unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", SHOW]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "standard output cannot be written: No space left on device; send it to another place\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_is_no_fault(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with os.fdopen(writing, "w") as pipe:
        command = [sys.executable, "-c", SHOW]
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_download_shows_its_bar_and_a_model_that_is_there_shows_none(capsys: Capture) -> None:
    with download_progress("smollm2", quiet=False) as progress:
        pass
    assert capsys.readouterr().err == ""
    with download_progress("smollm2", quiet=False) as progress:
        progress(50, 100)
        progress(100, 100)
    shown = capsys.readouterr().err
    assert "fetching smollm2" in shown
    assert "100%" in shown


def test_a_quiet_download_shows_nothing(capsys: Capture) -> None:
    with download_progress("smollm2", quiet=True) as progress:
        progress(50, 100)
    assert capsys.readouterr().err == ""


def test_a_bar_is_closed_when_the_download_fails(capsys: Capture) -> None:
    def fail() -> None:
        with download_progress("smollm2", quiet=False) as progress:
            progress(50, 100)
            raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        fail()
    assert capsys.readouterr().err.endswith("\n"), "what follows begins on a line of its own"
