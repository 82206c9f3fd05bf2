"""Help of the real commands: it fits a screen, and every option can be found."""

from __future__ import annotations

import pytest

from plait.cli.commands import COMMANDS, GROUPS
from plait.cli.help import command_help, group_help, plait_help
from plait.cli.table import Command, specs_of

SCREEN_LINES, SCREEN_COLUMNS = 24, 80
LONG_SCREEN = 44
"""Of one command's usual options: a terminal window that was pulled a little larger."""


@pytest.fixture(autouse=True)
def a_usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(SCREEN_COLUMNS))


def fits(text: str, most_lines: int) -> bool:
    lines = text.splitlines()
    return len(lines) <= most_lines and all(len(line) < SCREEN_COLUMNS for line in lines)


def test_what_plait_can_do_fits_a_small_terminal() -> None:
    text = plait_help(COMMANDS, GROUPS)
    assert fits(text, SCREEN_LINES), text
    for first in {command.name.split()[0] for command in COMMANDS}:
        assert f"\n  {first} " in text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_commands_usual_options_fit_a_screen(command: Command) -> None:
    text = command_help(command, "")
    assert fits(text, LONG_SCREEN), f"{len(text.splitlines())} lines\n{text}"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_all_of_a_commands_options_can_be_shown(command: Command) -> None:
    text = command_help(command, "all")
    for spec in specs_of(command):
        assert f"--{spec.flag}" in text


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_tells_its_commands(group: str) -> None:
    text = group_help(group, GROUPS[group], COMMANDS)
    assert fits(text, SCREEN_LINES), text
    for command in COMMANDS:
        assert not command.name.startswith(f"{group} ") or command.help in text
