"""Facts: every kind of wrong value in a model header gets one line that names it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from plait.core.errors import ModelError
from plait.model.facts import Facts


def facts(**values: object) -> Facts:
    return Facts("header", values)


def complaint(read: Callable[[], object]) -> str:
    with pytest.raises(ModelError) as caught:
        read()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_values_in_range_are_returned() -> None:
    found = facts(layers=3, eps=1e-5, whole=2, tied=True, kind="linear", nested={"a": 1})
    assert found.integer("layers", 1, 3) == 3
    assert found.number("eps", 0.0, 1.0) == 1e-5
    assert found.number("whole", 0.0, 2.0) == 2.0
    assert found.flag("tied", False) is True
    assert found.word("kind", ("none", "linear"), "scaling") == "linear"
    nested = found.table("nested")
    assert nested is not None
    assert nested.integer("a", 0, 9) == 1


def test_a_missing_or_null_value_has_its_default() -> None:
    for found in (facts(), facts(layers=None, eps=None, tied=None, kind=None, nested=None)):
        assert not found.has("layers")
        assert found.integer("layers", 1, 3, default=2) == 2
        assert found.number("eps", 0.0, 1.0, default=0.5) == 0.5
        assert found.flag("tied", True) is True
        assert found.word("kind", ("none",), "scaling", "none") == "none"
        assert found.table("nested") is None


def test_a_missing_value_without_default_is_named() -> None:
    assert complaint(lambda: facts().integer("layers", 1, 3)) == "header: layers is missing"
    assert complaint(lambda: facts().word("kind", ("none",), "scaling")) == "header: kind is missing"


@pytest.mark.parametrize("value", [0, 4, -1, 10**30, 2.0, "3", True, [3], {"a": 3}])
def test_whole_numbers_out_of_range_or_of_another_type(value: object) -> None:
    text = complaint(lambda: facts(layers=value).integer("layers", 1, 3))
    assert text.startswith(f"header: layers is {value!r}")
    assert text.endswith("it must be a whole number from 1 to 3")


@pytest.mark.parametrize("value", [0, 0.0, -0.5, 1.5, math.nan, math.inf, -math.inf, 10**400, "0.5", True, [0.5]])
def test_numbers_out_of_range_or_of_another_type(value: object) -> None:
    text = complaint(lambda: facts(eps=value).number("eps", 0.0, 1.0))
    assert text.startswith("header: eps is ")
    assert text.endswith("it must be a number above 0 and at most 1")


@pytest.mark.parametrize("value", [0, 1, "true", [True]])
def test_flags_are_true_or_false(value: object) -> None:
    assert (
        complaint(lambda: facts(tied=value).flag("tied", False))
        == f"header: tied is {value!r}; it must be true or false"
    )


@pytest.mark.parametrize("value", ["yarn", "", 3, ["none"]])
def test_words_are_among_those_supported(value: object) -> None:
    text = complaint(lambda: facts(kind=value).word("kind", ("none", "linear"), "scaling"))
    assert text == f"header: kind is {value!r}; this scaling is not supported; supported: none, linear"


@pytest.mark.parametrize("value", [3, "a", ["a"]])
def test_tables_are_tables(value: object) -> None:
    text = complaint(lambda: facts(nested=value).table("nested"))
    assert text == f"header: nested is {value!r}; it must be a table of keys and values"


def test_complaints_about_a_nested_table_name_it() -> None:
    nested = facts(rope={"factor": -1.0}).table("rope")
    assert nested is not None
    assert complaint(lambda: nested.number("factor", 0.0, 9.0)).startswith("header, rope: factor is -1.0")


def test_what_would_change_the_model_is_refused() -> None:
    facts().refuse("experts", (0,), "not supported")
    facts(experts=0).refuse("experts", (0,), "not supported")
    assert complaint(lambda: facts(experts=8).refuse("experts", (0,), "not supported")) == (
        "header: experts is 8; not supported"
    )
    assert "experts is [0]" in complaint(lambda: facts(experts=[0]).refuse("experts", (0,), "not supported"))


def test_a_long_value_is_cut_in_the_message() -> None:
    text = complaint(lambda: facts(layers=list(range(10_000))).integer("layers", 1, 3))
    assert len(text) < 200
    assert "..." in text
