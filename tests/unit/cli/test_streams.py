"""The streams: results on stdout, words on stderr, and no stream and no character makes printing fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plait.cli.streams import say, show, show_json

Capture = pytest.CaptureFixture[str]

SHOW = """
import sys
from plait.cli.streams import show
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


PRINT = """
import os, sys
from plait.cli.streams import prepare_streams, say, show, show_json
prepare_streams()
say("a word \u2192")
show("a result \u2192")
show_json({"name": os.fsdecode(b"\\xff") + "\u2192"})
"""


def printed(encoding: str) -> tuple[bytes, bytes]:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", PRINT], capture_output=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict"])
def test_a_character_that_a_stream_lacks_is_written_as_an_escape(encoding: str) -> None:
    out, err = printed(encoding)
    assert err == b"a word \\u2192\n"
    assert out.startswith(b"a result \\u2192\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "utf-16"])
def test_json_is_json_in_every_encoding_and_tells_names_that_are_not_utf_8(encoding: str) -> None:
    line = printed(encoding)[0].decode(encoding).splitlines()[-1]
    assert os.fsencode(json.loads(line)["name"]) == b"\xff" + "\u2192".encode()


def test_json_has_no_infinity() -> None:
    with pytest.raises(ValueError, match="JSON"):
        show_json({"difference": float("inf")})


def test_without_a_stderr_nothing_is_said_elsewhere(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    say("a word")
    assert capsys.readouterr().out == ""


WORDS = """
import sys
from tqdm import tqdm
from plait.cli.streams import prepare_streams, say, show
prepare_streams()
say("a word")
print("a word" * 10000, file=sys.stderr)
for _ in tqdm(range(3), mininterval=0):
    pass
show("a result")
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_words_that_cannot_be_written_end_nothing() -> None:
    with open("/dev/full", "w") as full, open(os.devnull) as read_only:
        for stderr in (full, read_only):
            command = [sys.executable, "-c", WORDS]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60)
            assert (done.returncode, done.stdout) == (0, "a result\n")


CLOSED = """
import os, sys
from plait.cli.streams import prepare_streams, say, show
prepare_streams()
with open(sys.argv[1], "w") as file:
    os.write(2, b"a library's words")
    os.write(1, b"a library's words")
    say("a word")
    print("a word", file=sys.stderr)
    show("a result")
    file.write(f"{file.fileno() > 2}")
"""


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_file_that_is_opened_never_takes_the_place_of_a_closed_stream(closed: str, tmp_path: Path) -> None:
    file = tmp_path / "answers"
    command = ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-c", CLOSED, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert file.read_text() == "True"
    if closed == "2>&-":
        assert done.stdout == "a library's wordsa result\n"
