"""Lengths: the small language of --lengths and the files it may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.core.errors import UsageError
from plait.inspect.lengths import MAX_KINDS, read_lengths, read_trace


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("500", {(500, 0): 1}),
        ("2k,2K", {(2000, 0): 1, (2048, 0): 1}),
        ("10x2k, 3x16k", {(2000, 0): 10, (16000, 0): 3}),
        ("43+6193", {(43, 6193): 1}),
        ("2x43+6193,43+6193", {(43, 6193): 3}),
        ("1.5k", {(1500, 0): 1}),
    ],
)
def test_a_list_of_sequences(text: str, sizes: dict[tuple[int, int], int]) -> None:
    assert read_lengths(text) == sizes


@pytest.mark.parametrize("text", ["", "x", "2kk", "0", "0x5", "-3", "1e9", "5T", "99999999999999", "1.0001", "3,,4"])
def test_what_is_no_length_is_one_line_with_the_value(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_lengths(text)
    message = str(caught.value)
    assert message.startswith(f"--lengths is {text!r}; ")
    assert message.endswith(", or give an existing file")
    assert "\n" not in message


def test_a_file_has_an_entry_or_a_request_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(
        "# two kinds of lines\n\n2k\n3x16k\n"
        '{"prompt_tokens": 100, "output_tokens": 20}\n'
        '{"timestamp": 0, "input_length": 100, "output_length": 20, "hash_ids": [1]}\n',
        encoding="utf-8",
    )
    assert read_lengths(str(path)) == {(120, 0): 2, (2000, 0): 1, (16000, 0): 3}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x", "'x' is no length"),
        ('{"prompt": 3}', "a request needs prompt_tokens and output_tokens"),
        ('{"prompt_tokens": "3"}', "a request needs prompt_tokens"),
        ('{"prompt_tokens": -3}', "a request needs prompt_tokens"),
        ('{"prompt_tokens": 3', "line 2: "),
    ],
)
def test_a_wrong_line_is_named_by_its_number(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "trace"
    path.write_text(f"5\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_trace(path)
    assert "line 2: " in str(caught.value)
    assert words in str(caught.value)


def test_an_empty_file_and_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="holds no length"):
        read_trace(path)
    path.write_bytes(b"\xff\xfe5\n")
    with pytest.raises(UsageError, match="cannot be read"):
        read_trace(path)


def test_a_trace_of_very_many_lengths_is_rounded_up_by_less_than_one_percent(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    lengths = [1000 + 7 * number for number in range(MAX_KINDS + 1)]
    path.write_text("\n".join(map(str, lengths)), encoding="utf-8")
    sizes = read_trace(path)
    assert sum(sizes.values()) == len(lengths)
    total = sum(tokens * count for (tokens, _), count in sizes.items())
    assert sum(lengths) <= total < 1.01 * sum(lengths)
