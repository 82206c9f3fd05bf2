"""Sizes asked before results are built."""

from __future__ import annotations

import pytest
from jinja2.exceptions import SecurityError

from plait.text.sizes import (
    MAX_CHARS,
    MAX_COUNT,
    checked,
    size_of,
    size_of_filtering,
    size_of_method,
    size_of_operation,
)

BIG = "x" * (MAX_CHARS // 2 + 1)


def test_sizes_are_characters_and_entries() -> None:
    assert (size_of("abc"), size_of([1, 2]), size_of({"a": 1}), size_of(5), size_of(None)) == (3, 2, 1, 0, 0)
    assert size_of(["abc", ("de", {"f": "ghi"})], deep=True) == 2 + 3 + (2 + 2 + (1 + 1 + 3))


def test_a_shared_string_counts_each_time_it_is_written() -> None:
    assert checked(size_of([BIG], deep=True)) == 1 + len(BIG)
    with pytest.raises(SecurityError, match="more than 4,000,000 characters"):
        size_of([BIG, BIG], deep=True)


@pytest.mark.parametrize(
    ("operator", "left", "right"),
    [
        ("+", BIG, BIG),
        ("*", "ab", MAX_CHARS),
        ("*", MAX_CHARS, "ab"),
        ("*", [1], 10**12),
        ("*", 10**2_000, 10**2_000),
        ("**", 10, 10**6),
        ("**", 2, 10**12),
        ("%", "%1000000d", 1),
        ("%", "%*d", (10**9, 1)),
        ("%", "%s%s", (BIG, BIG)),
        ("%", "%s", ([BIG],) * 2),
    ],
)
def test_an_operator_that_would_build_too_much_is_refused(operator: str, left: object, right: object) -> None:
    with pytest.raises(SecurityError):
        size_of_operation(operator, left, right)


@pytest.mark.parametrize(
    ("operator", "left", "right"),
    [
        ("+", "a", "b"),
        ("+", 10**18, 10**18),
        ("*", "=", 80),
        ("*", 3.5, 10**9),
        ("**", 2, 64),
        ("**", 2, -1),
        ("**", 2.5, 10),
        ("%", 17, 5),
        ("%", "%s: %5.2f%%", ("a", 1.5)),
        ("%", "%(name)s", {"name": "a"}),
    ],
)
def test_ordinary_operators_pass(operator: str, left: object, right: object) -> None:
    size_of_operation(operator, left, right)


FILTERINGS: list[tuple[str, object, list[object]]] = [
    ("replace", "a" * 3_000, ["a", "b" * 3_000]),
    ("replace", "a" * 3_000, ["", "b" * 3_000]),
    ("replace", 10**3_000, ["0", "b" * 3_000]),
    ("join", ["a"] * 3_000, ["-" * 3_000]),
    ("join", [BIG, BIG], []),
    ("center", "a", [MAX_COUNT + 1]),
    ("indent", "\n" * 3_000, [3_000]),
    ("indent", "\n" * 3_000, ["-" * 3_000]),
    ("batch", [1], [10**9, "x"]),
    ("round", 1.5, [10**9]),
    ("tojson", [BIG, BIG], []),
    ("tojson", [["a"] * 1_000] * 100, [100]),
    ("string", [BIG, BIG], []),
    ("format", "%1000000d", [1]),
]


@pytest.mark.parametrize(("name", "subject", "args"), FILTERINGS)
def test_a_filter_that_would_build_too_much_is_refused(name: str, subject: object, args: list[object]) -> None:
    with pytest.raises(SecurityError):
        size_of_filtering(name, subject, args)


@pytest.mark.parametrize(
    ("name", "subject", "args"),
    [
        ("replace", BIG, ["x", "y"]),
        ("replace", BIG, ["y", BIG]),
        ("replace", BIG, []),
        ("join", ["a", "b"], [", "]),
        ("join", [], []),
        ("indent", "a\nb", [4]),
        ("tojson", {"a": [1, "b"]}, [4]),
        ("format", "%s of 100%% *", ["a"]),
        ("default", None, [10**9]),
        ("upper", BIG, []),
    ],
)
def test_ordinary_filters_pass(name: str, subject: object, args: list[object]) -> None:
    assert size_of_filtering(name, subject, args) <= MAX_CHARS


@pytest.mark.parametrize(
    ("name", "subject", "args"),
    [
        ("join", "-" * 3_000, [["a"] * 3_000]),
        ("ljust", "a", [-MAX_COUNT - 1]),
        ("replace", "a" * 3_000, ["a", "b" * 3_000]),
        ("format", "{:1000000}", ["a"]),
        ("format", "{:{w}}", ["a", 10**9]),
        ("format", "{0}{0}{0}", [BIG]),
        ("format", "{:99999}" * 50, ["a"]),
        ("format_map", "{a:1000000}", [{"a": 1}]),
    ],
)
def test_a_method_that_would_build_too_much_is_refused(name: str, subject: str, args: list[object]) -> None:
    with pytest.raises(SecurityError):
        size_of_method(name, subject, args)


@pytest.mark.parametrize(
    ("name", "subject", "args"),
    [
        ("join", ", ", [["a", "b"]]),
        ("format", "{:>20} {name!r:.3} **{}** {{1234567}}", ["a"]),
        ("format", '{{"name": "{}"}}', ["a"]),
        ("split", BIG, [" "]),
        ("zfill", "7", [3]),
    ],
)
def test_ordinary_methods_pass(name: str, subject: str, args: list[object]) -> None:
    assert size_of_method(name, subject, args) <= MAX_CHARS


def test_what_is_estimated_is_at_least_what_is_built() -> None:
    assert size_of_operation("+", "ab", "cde") == 5
    assert size_of_operation("*", 3, "ab") == 6
    assert size_of_operation("%", "%s-%s", ("ab", "c")) >= len("ab-c")
    assert size_of_filtering("replace", "banana", ["a", "xyz"]) == len("bxyznxyznxyz")
    assert size_of_filtering("join", ["ab", "c"], [", "]) >= len("ab, c")
    assert size_of_filtering("indent", "a\nb", [4]) >= len("a\n    b")
    assert size_of_method("format", "{0}{0}", ["abc"]) >= len("abcabc")
