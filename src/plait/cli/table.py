"""Table: what a line of the table of commands is.

Owns `Command`. Knows no command (`commands` has them), parses nothing and prints nothing.
Invariant: a name is one word, or two of which the first is a group.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.config.option import OptionSpec, options_of


@dataclass(frozen=True, slots=True)
class Command:
    """A command: which config classes its options come from, and which field a bare argument fills."""

    name: str
    help: str
    configs: tuple[type, ...]
    positional: str | None = None


def specs_of(command: Command) -> list[OptionSpec]:
    return [spec for config in command.configs for spec in options_of(config)]
