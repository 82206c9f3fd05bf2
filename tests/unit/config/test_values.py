"""Values: what a user may type for a number, a size, a flag or a path, and what is said when it is none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.config.values import (
    bytes_from,
    count_between,
    count_from,
    parse_bytes,
    parse_count,
    parse_flag,
    parse_path,
    parse_path_or,
    parse_percent,
    parse_positive,
    parse_report,
    parse_seed,
    parse_target,
    parse_text,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096b", 4096),
        ("1KiB", 1024),
        ("1kb", 1000),
        ("1k", 1000),
        ("1K", 1000),
        ("1ki", 1024),
        ("512 MiB", 512 * 2**20),
        ("4G", 4 * 10**9),
        ("4GB", 4 * 10**9),
        ("1GiB", 2**30),
        ("2tib", 2 * 2**40),
        ("1.5GiB", 3 * 2**29),
        (" 1GiB ", 2**30),
        ("0.3kB", 300),
        ("0.5", 0),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


def test_a_limit_of_no_bytes_is_none() -> None:
    assert bytes_from(1024)("1KiB") == 1024
    with pytest.raises(ValueError, match="1,023 bytes are too few; give at least 1,024"):
        bytes_from(1024)("1023")


@pytest.mark.parametrize(
    "text", ["", "GiB", "1 GiBs", "-1", "+1", "1e9", "1,5GiB", "1_000", "٣", "1.", ".5", "9" * 400, "1PiB"]
)
def test_what_is_no_size_is_answered_with_one(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as 1GiB, 512MiB or 2000000000 is expected"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4096", 4096),
        ("32k", 32_000),
        ("32K", 32_768),
        ("1.5k", 1500),
        ("1m", 10**6),
        ("1M", 2**20),
        ("2.0", 2),
    ],
)
def test_counts(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "k", "1g", "-1", "1e3", "9" * 400, "4.0e2", "ten"])
def test_what_is_no_count_is_answered_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"a whole number such as 4096, 32k \(32,000\) or 32K \(32,768\) is expected"):
        parse_count(text)


@pytest.mark.parametrize("text", ["1.5", "0.0001k", "1.0005K"])
def test_a_count_that_is_not_whole_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a whole number is expected"):
        parse_count(text)


def test_positive_numbers_begin_at_one() -> None:
    assert parse_positive("1") == 1
    with pytest.raises(ValueError, match="at least 1"):
        parse_positive("0")


def test_limits_of_counts_are_included_and_named() -> None:
    assert [count_between(2, 2000)(text) for text in ("2", "2k")] == [2, 2000]
    for text in ("1", "2001"):
        with pytest.raises(ValueError, match="a number from 2 to 2000 is expected"):
            count_between(2, 2000)(text)
    assert count_from(2)("2") == 2
    with pytest.raises(ValueError, match="a number of at least 2 is expected"):
        count_from(2)("1")


@pytest.mark.parametrize(
    ("text", "value"), [("0.5", 0.5), ("30", 30.0), (" 2 ", 2.0), ("300s", 300.0), ("300ms", 0.3), ("5m", 300.0)]
)
def test_targets(text: str, value: float) -> None:
    assert parse_target(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("300", "a number alone is seconds; write 300s if that is meant, or 300ms"),
        (" 31 ", "write 31s if that is meant, or 31ms"),
        ("2000m", "a time of at most 24 hours"),
        ("0", "a time above 0"),
    ],
)
def test_what_is_no_target_is_answered_with_one(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_target(text)


@pytest.mark.parametrize(("text", "value"), [("0.5", 0.5), ("0.5%", 0.5), (" 12 % ", 12.0), ("0", 0.0)])
def test_percent(text: str, value: float) -> None:
    assert parse_percent(text) == value


@pytest.mark.parametrize("text", ["-1", "half", "", "%", "1e3", "nan", "0,5"])
def test_what_is_no_percent_is_answered_with_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"a number of percent such as 0\.5 is expected"):
        parse_percent(text)


@pytest.mark.parametrize("seed", [-5, 0, 2**63 - 1, -(2**63)])
def test_seeds_have_64_bits_and_may_be_negative(seed: int) -> None:
    assert parse_seed(str(seed)) == seed


@pytest.mark.parametrize(
    "text", ["", "1.5", "five", "1_000", "٣", "9" * 5000, "99999999999999999999", str(2**63), str(-(2**63) - 1)]
)
def test_what_is_no_seed_is_answered_with_the_limits(text: str) -> None:
    with pytest.raises(ValueError, match="a whole number from -9223372036854775808 to 9223372036854775807 is expected"):
        parse_seed(text)


@pytest.mark.parametrize("text", ["1", "true", "True", "YES", " on "])
def test_flags_that_are_on(text: str) -> None:
    assert parse_flag(text) is True


@pytest.mark.parametrize("text", ["0", "false", "No", "off"])
def test_flags_that_are_off(text: str) -> None:
    assert parse_flag(text) is False


@pytest.mark.parametrize("text", ["", "2", "y", "maybe"])
def test_flags_that_are_neither(text: str) -> None:
    with pytest.raises(ValueError, match="true or false is expected"):
        parse_flag(text)


def test_text_and_paths_are_not_empty() -> None:
    assert parse_text(" a ") == " a "
    for parse in (parse_text, parse_path):
        with pytest.raises(ValueError, match="it is empty"):
            parse("")


def test_a_path_may_begin_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_path("~/models/a.gguf") == tmp_path / "models/a.gguf"
    assert parse_path("-") == Path("-")


def test_a_report_goes_to_a_file_or_where_the_flag_of_that_name_says() -> None:
    assert [parse_report(text) for text in ("1", "True", "on", "-")] == [Path("-")] * 4
    assert [parse_report(text) for text in ("0", "no", "OFF")] == [None] * 3
    assert [parse_report(text) for text in ("./1", "2", "report.json")] == [Path("1"), Path("2"), Path("report.json")]


def test_a_word_that_stands_for_no_path_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    parse = parse_path_or("auto", "none")
    assert [parse("auto"), parse("none"), parse("~/auto")] == ["auto", "none", str(tmp_path / "auto")]
    with pytest.raises(ValueError, match="there is no such user"):
        parse("~nobody-of-this-name/x")


def test_a_path_that_cannot_be_is_refused_and_not_a_traceback() -> None:
    with pytest.raises(ValueError, match="there is no such user"):
        parse_path("~nobody-of-this-name/x")
    with pytest.raises(ValueError, match="NUL"):
        parse_path("a\0b")


@pytest.mark.parametrize(
    "parse",
    [
        parse_bytes,
        parse_count,
        parse_positive,
        parse_seed,
        parse_flag,
        parse_text,
        parse_path,
        parse_report,
        parse_path_or("auto"),
        parse_percent,
    ],
)
def test_no_text_breaks_a_parser(parse: Callable[[str], object]) -> None:
    @given(st.one_of(st.text(), st.from_regex(r"[0-9]{1,400}\.?[0-9]{0,400} ?[kKmMgGtT]?i?[bB]?", fullmatch=True)))
    def understood_or_refused(text: str) -> None:
        with suppress(ValueError):
            parse(text)

    understood_or_refused()
