"""Arguments: from argv to a command and its option sources.

Owns the parser's shape and its errors: one line, the nearest known name, exit code 2. Options themselves live in
`plait.config`, what --help prints in `help`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from plait.cli.help import command_help, group_help, plait_help
from plait.cli.table import Command, specs_of
from plait.config.option import OptionSources, nearest
from plait.core.errors import UsageError

_HELP = ("-h", "--help")
_FOR_PLAIT = ("--version", "--help")
"""Options that stand before any command."""
_NO_GROUPS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Invocation:
    command: str
    sources: OptionSources


class _OneLineParser(argparse.ArgumentParser):
    """argparse prints its usage and exits; here a mistake is one line like every other error."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(
            r"^argument (\S+): ignored explicit argument (.*)$", r"\1 takes no value, but \2 was given", message
        )
        raise UsageError(f"{message}; see {self.prog} --help")

    def told_of_dash(self, error: UsageError, argv: Sequence[str]) -> UsageError:
        """The error of an option whose value begins with a dash, and was taken for another option, says so."""
        if (missing := re.match(r"argument (\S+): expected one argument", str(error))) is None:
            return error
        names = missing[1].split("/")
        for option, word in pairwise(argv):
            if option in names and word.startswith("-") and word.split("=")[0] not in self._option_string_actions:
                return UsageError(
                    f"{option} is followed by {word!r}, which reads as an option; write {option}={word} if it is the "
                    f"value, or see {self.prog} --help"
                )
        return error


def parse_arguments(
    argv: Sequence[str], commands: Sequence[Command], version: str, groups: Mapping[str, str] = _NO_GROUPS
) -> Invocation:
    """Understand a command line; `UsageError` for a mistake. --help and --version print and exit as usual.

    `groups`: for the first word of commands of two words, what they are about.
    """
    if argv and argv[0].startswith("-"):
        _answer_for_plait(argv[0], commands, groups, version)
    command, rest = _choose(argv, commands, groups)
    if (wanted := _help_wanted(rest)) is not None:
        _print_and_exit(command_help(command, wanted))
    parser = _OneLineParser(prog=f"plait {command.name}", add_help=False, allow_abbrev=False)
    _add_options(parser, command)
    try:
        namespace, unknown = parser.parse_known_args(rest)
    except UsageError as error:
        raise parser.told_of_dash(error, rest) from None
    if unknown:
        raise UsageError(_unknown(unknown[0], command))
    given: dict[str, str | None] = vars(namespace)
    yaml_file = given.pop("config")
    bare = given.pop("bare", None)
    typed = {field: text for field, text in given.items() if text is not None}
    if bare is not None and command.positional is not None:
        if command.positional in typed:
            raise UsageError(f"{command.positional} was given twice, as {bare!r} and as {typed[command.positional]!r}")
        typed[command.positional] = bare
    specs = specs_of(command)
    return Invocation(command.name, OptionSources(specs, typed, None if yaml_file is None else Path(yaml_file)))


def _answer_for_plait(argument: str, commands: Sequence[Command], groups: Mapping[str, str], version: str) -> NoReturn:
    if argument in _HELP or argument.startswith("--help="):
        _print_and_exit(plait_help(commands, groups))
    if argument == "--version":
        _print_and_exit(f"plait {version}\n")
    close = nearest(argument.split("=")[0], _FOR_PLAIT)
    raise UsageError(f"{argument!r} is not an option of plait{close or '; see plait --help'}")


def _choose(
    argv: Sequence[str], commands: Sequence[Command], groups: Mapping[str, str]
) -> tuple[Command, Sequence[str]]:
    """The command of one or two words, the longer name first, and the arguments behind it."""
    by_name = {command.name: command for command in commands}
    firsts = list(dict.fromkeys(name.split()[0] for name in by_name))
    if not argv:
        raise UsageError(f"no command was given; choose one of {', '.join(firsts)}; see plait --help")
    first, *rest = argv
    if rest and f"{first} {rest[0]}" in by_name:
        return by_name[f"{first} {rest[0]}"], rest[1:]
    if first in by_name:
        return by_name[first], rest
    if first not in firsts:
        close = nearest(first, (*firsts, *_FOR_PLAIT))
        raise UsageError(
            f"{first!r} is not a command; choose one of {', '.join(firsts)}{close or '; see plait --help'}"
        )
    if rest and (rest[0] in _HELP or rest[0].startswith("--help=")):
        _print_and_exit(group_help(first, groups.get(first, ""), commands))
    seconds = [name.split()[1] for name in by_name if name.startswith(f"{first} ")]
    if not rest or rest[0].startswith("-"):
        raise UsageError(f"plait {first} needs one of {', '.join(seconds)}; see plait {first} --help")
    raise UsageError(
        f"{rest[0]!r} is none of plait {first}'s; choose one of {', '.join(seconds)}{nearest(rest[0], seconds)}"
    )


def _help_wanted(arguments: Sequence[str]) -> str | None:
    """None: no help; "": the usual options; else what --help=... says."""
    for argument in arguments:
        if argument == "--":
            return None
        if argument in _HELP:
            return ""
        if argument.startswith("--help="):
            return argument.partition("=")[2]
    return None


def _print_and_exit(text: str) -> NoReturn:
    print(text, end="")
    raise SystemExit(0)


def _joined(argv: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """The two words of a command that has two, as one."""
    return [" ".join(argv[:2]), *argv[2:]] if " ".join(argv[:2]) in names else argv


def _unknown(argument: str, command: Command) -> str:
    see = f"; see plait {command.name} --help"
    if not argument.startswith("-"):
        return f"{argument!r} is one argument too many for plait {command.name}{see}"
    specs = specs_of(command)
    flags = [
        "--config",
        "--help",
        *(f"--{spec.flag}" for spec in specs),
        *(f"--no-{spec.flag}" for spec in specs if spec.is_switch),
    ]
    return f"{argument!r} is not an option of plait {command.name}{nearest(argument.split('=')[0], flags) or see}"


def _add_options(parser: _OneLineParser, command: Command) -> None:
    if command.positional is not None:
        parser.add_argument("bare", nargs="?")
    parser.add_argument("--config")
    for spec in specs_of(command):
        names = [f"--{spec.flag}"] if spec.short is None else [spec.short, f"--{spec.flag}"]
        if spec.is_switch:
            parser.add_argument(*names, dest=spec.field, action="store_const", const="true")
            parser.add_argument(f"--no-{spec.flag}", dest=spec.field, action="store_const", const="false")
        else:
            parser.add_argument(*names, dest=spec.field)
