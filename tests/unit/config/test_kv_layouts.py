"""The words of --kv-layout."""

from __future__ import annotations

from fractions import Fraction

import pytest

from plait.config.kv_layouts import SERVED_LAYOUTS, manual_shares, parse_served_layout


@pytest.mark.parametrize("text", [*SERVED_LAYOUTS, "manual:full=3:window=1", "manual:window 512=1/2:full=0.5"])
def test_names_of_layouts_are_kept(text: str) -> None:
    assert parse_served_layout(f" {text} ") == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("vlm", "did you mean vllm"),
        ("", "choose one of paged, uniform"),
        ("jenga", "choose one of"),
        ("paged:full=1", "choose one of"),
        ("manual", "'' is no share"),
        ("manual:full", "'full' is no share"),
        ("manual:full=0", "'full=0' is no share"),
        ("manual:full=-1", "is no share"),
        ("manual:full=1e9", "is no share"),
        ("manual:full=1/0", "is no share"),
        ("manual:full=1:full=2", "'full' has two shares"),
        ("manual:=1", "is no share"),
    ],
)
def test_what_is_no_layout_is_said(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_served_layout(text)


def test_shares_are_exact() -> None:
    assert manual_shares("full=2/3:window 512=0.1") == {"full": Fraction(2, 3), "window 512": Fraction(1, 10)}
