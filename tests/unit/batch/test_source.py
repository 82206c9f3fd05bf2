"""The bytes of an input: numbering, digest, limits, pipes, changes under way."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.batch import source as source_module
from plait.batch.source import RawLine, check_input, num_lines_at, open_source
from plait.core.errors import PlaitError, UsageError


def lines_of(path: Path) -> list[RawLine]:
    with open_source(str(path)) as source:
        lines = list(source.lines())
        assert source.num_lines == len(lines)
        return lines


def test_lines_are_numbered_from_one_and_blank_ones_count_but_are_not_given(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\n\n  \t\r\nb\r\nc")
    assert lines_of(path) == [RawLine(1, b"a\n"), RawLine(4, b"b\r\n", 8), RawLine(5, b"c", 11)]


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.touch()
    assert lines_of(path) == []


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}\n")
    assert lines_of(path) == [RawLine(1, b"{}\n")]


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbfa\n\nb")
    with open_source(str(path)) as source:
        assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_line_beyond_the_limit_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "MAX_LINE_BYTES", 10)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"123456789\n1234567890\n" + b"x" * 1000 + b"\nshort\n" + b"y" * 11)
    assert lines_of(path) == [
        RawLine(1, b"123456789\n"),
        RawLine(2, None, 10),
        RawLine(3, None, 21),
        RawLine(4, b"short\n", 1022),
        RawLine(5, None, 1028),
    ]


@given(st.lists(st.binary(max_size=20)))
def test_any_bytes_give_the_lines_that_were_counted(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(b"x" + b"\n".join(parts))
    filled = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    assert [line.raw.rstrip(b"\n") for line in lines_of(path) if line.raw is not None] == filled


def test_a_pipe_is_copied_so_that_it_can_be_read_twice(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"a\nb\n",))
    writer.start()
    assert lines_of(path) == [RawLine(1, b"a\n"), RawLine(2, b"b\n", 2)]
    writer.join()


def test_nobody_counts_the_lines_of_a_pipe_so_that_its_writer_keeps_his_reader(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"a\nb\n",))
    writer.start()
    assert num_lines_at(str(path)) is None
    assert [line.raw for line in lines_of(path)] == [b"a\n", b"b\n"]
    writer.join()
    plain = tmp_path / "plain"
    plain.write_bytes(b"a\n\nb")
    assert num_lines_at(str(plain)) == 2


def test_standard_input_is_read_and_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\n")
    with path.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with open_source("-") as source:
            assert [line.raw for line in source.lines()] == [b"a\n"]
        assert os.fstat(stdin.fileno()).st_size == 2


def test_a_file_that_changes_while_it_is_read_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\n")
    with open_source(str(path)) as source:
        source.check_unchanged()
        with path.open("ab") as more:
            more.write(b"b\n")
        with pytest.raises(PlaitError, match="changed while it was being read"):
            source.check_unchanged()


def test_what_cannot_be_opened_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"), open_source(str(tmp_path / "none.jsonl")):
        pass
    with pytest.raises(UsageError, match="is a directory"), open_source(str(tmp_path)):
        pass
    with pytest.raises(UsageError, match="cannot be read: Not a directory"), open_source("/etc/hostname/x"):
        pass


def test_a_closed_standard_input_is_found_out_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        check_input("-")
    with pytest.raises(UsageError, match="standard input is closed"), open_source("-"):
        pass


def test_a_read_error_is_one_clear_line() -> None:
    # Nothing is mapped at address 0, so that reading it is an error of the device.
    match = "/proc/self/mem cannot be read to its end: Input/output error"
    with pytest.raises(PlaitError, match=match), open_source("/proc/self/mem"):
        pass


@pytest.fixture
def filled_pipe() -> Iterator[str]:
    """A pipe that has all its content already, so that reading it needs no second thread."""
    reading, writing = os.pipe()
    os.write(writing, b"a\n")
    os.close(writing)
    yield f"/dev/fd/{reading}"
    os.close(reading)


def test_no_room_for_the_copy_of_a_pipe_is_one_line_that_names_the_folder(
    filled_pipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full = open("/dev/full", "w+b", buffering=0)  # noqa: SIM115 - closed by the source
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda mode, buffering: full)
    match = f"is copied to {tmp_path} first, which fails: No space left on device; .*set TMPDIR"
    with pytest.raises(PlaitError, match=match), open_source(filled_pipe):
        pass
    assert full.closed


def test_no_folder_for_temporary_files_is_one_clear_line(
    filled_pipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    match = r"a temporary file cannot be made: .*; set TMPDIR"
    with pytest.raises(PlaitError, match=match), open_source(filled_pipe):
        pass


def test_an_input_can_be_checked_without_taking_anything_from_it(
    filled_pipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(filled_pipe) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        check_input("-")
        assert stdin.read() == "a\n"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (str(pipe), __file__):
        check_input(path)
    for path in (str(tmp_path), str(tmp_path / "none.jsonl")):
        with pytest.raises(UsageError):
            check_input(path)
