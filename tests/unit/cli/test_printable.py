"""Printable: nothing that a model writes can steer a terminal."""

from __future__ import annotations

import unicodedata

import pytest

from plait.cli.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, \u00e4\u4e2d\U0001f600", "plain, \u00e4\u4e2d\U0001f600"),
        ("line\n\tand tab", "line\n\tand tab"),
        ("\x1b[2J\x1b]0;title\x07", "\u241b[2J\u241b]0;title\u2407"),
        ("\x9b31m", "\\x9b31m"),
        ("over\rwritten\r\n", "overwritten\n"),
        ("back\x08\x7f", "back\u2408\u2421"),
        ("\u202eesrever", "\\u202eesrever"),
    ],
)
def test_what_steers_a_terminal_is_shown_as_a_sign(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_no_control_character_of_unicode_passes_but_line_end_and_tab() -> None:
    every = "".join(chr(code) for code in range(0x3000))
    left = {char for char in printable(every) if unicodedata.category(char) == "Cc"}
    assert left == {"\n", "\t"}
