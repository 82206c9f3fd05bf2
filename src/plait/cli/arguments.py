"""Arguments: from argv to a command and its option sources.

Owns the parser's shape and its errors: one line, the nearest known name, exit code 2. Options themselves live in
`plait.config`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from plait.config.option import OptionSources, OptionSpec, nearest, options_of
from plait.core.errors import UsageError

_FOR_PLAIT = ("--version", "--help")
"""Options that stand before any command."""


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: which config classes its options come from, and which field a bare argument fills."""

    name: str
    help: str
    configs: tuple[type, ...]
    positional: str | None = None


@dataclass(frozen=True, slots=True)
class Invocation:
    command: str
    sources: OptionSources


class _OneLineParser(argparse.ArgumentParser):
    """argparse prints its usage and exits; here a mistake is one line like every other error."""

    known: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        message = re.sub(
            r"^argument (\S+): ignored explicit argument (.*)$", r"\1 takes no value, but \2 was given", message
        )
        unknown = re.search(r"invalid choice: '([\w-]+)'", message)
        close = nearest(unknown.group(1), self.known) if unknown else ""
        raise UsageError(f"{message}{close or f'; see {self.prog} --help'}")


def parse_arguments(argv: Sequence[str], commands: Sequence[Command], version: str) -> Invocation:
    """Understand a command line; `UsageError` for a mistake. --help and --version print and exit as usual."""
    parser = _OneLineParser(prog="plait", description="Serve language models, online and offline.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"plait {version}")
    names = [command.name for command in commands]
    parser.known = (*names, *_FOR_PLAIT)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_OneLineParser)
    for command in commands:
        _add_command(subparsers.add_parser(command.name, help=command.help, description=command.help), command)
    argv = _joined(argv, names)
    namespace, unknown = parser.parse_known_args(list(argv))
    given = vars(namespace)
    name = given.pop("command")
    before = list(argv) if name is None else list(argv)[: list(argv).index(name)]
    if unknown and unknown[0] in before:
        close = nearest(unknown[0].split("=")[0], _FOR_PLAIT)
        raise UsageError(f"{unknown[0]!r} is not an option of plait{close or '; see plait --help'}")
    if name is None:
        raise UsageError(f"no command was given; choose one of {', '.join(names)}")
    command = next(one for one in commands if one.name == name)
    if unknown:
        raise UsageError(_unknown(unknown[0], command))
    yaml_file = given.pop("config")
    bare = given.pop("bare", None)
    typed = {field: text for field, text in given.items() if text is not None}
    if bare is not None and command.positional is not None:
        if command.positional in typed:
            raise UsageError(f"{command.positional} was given twice, as {bare!r} and as {typed[command.positional]!r}")
        typed[command.positional] = bare
    specs = _specs_of(command)
    return Invocation(name, OptionSources(specs, typed, None if yaml_file is None else Path(yaml_file)))


def _joined(argv: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """The two words of a command that has two, as one."""
    return [" ".join(argv[:2]), *argv[2:]] if " ".join(argv[:2]) in names else argv


def _unknown(argument: str, command: Command) -> str:
    see = f"; see plait {command.name} --help"
    if not argument.startswith("-"):
        return f"{argument!r} is one argument too many for plait {command.name}{see}"
    specs = _specs_of(command)
    flags = [
        "--config",
        *(f"--{spec.flag}" for spec in specs),
        *(f"--no-{spec.flag}" for spec in specs if spec.is_switch),
    ]
    return f"{argument!r} is not an option of plait {command.name}{nearest(argument.split('=')[0], flags) or see}"


def _specs_of(command: Command) -> list[OptionSpec]:
    return [spec for config in command.configs for spec in options_of(config)]


def _add_command(parser: _OneLineParser, command: Command) -> None:
    parser.allow_abbrev = False
    specs = _specs_of(command)
    if command.positional is not None:
        parser.add_argument("bare", nargs="?", metavar=command.positional.upper(), help="the same as its option")
    parser.add_argument("--config", metavar="FILE", help="YAML file with options, e.g. `max-num-seqs: 16`")
    for spec in specs:
        _add_option(parser, spec)


def _add_option(parser: argparse.ArgumentParser, spec: OptionSpec) -> None:
    names = [f"--{spec.flag}"] if spec.short is None else [spec.short, f"--{spec.flag}"]
    if spec.is_switch:
        parser.add_argument(*names, dest=spec.field, action="store_const", const="true", help=_help(spec))
        no = f"--no-{spec.flag}"
        parser.add_argument(no, dest=spec.field, action="store_const", const="false", help=argparse.SUPPRESS)
        return
    parser.add_argument(*names, dest=spec.field, metavar=spec.metavar, help=_help(spec))


def _help(spec: OptionSpec) -> str:
    text = spec.help.replace("%", "%%")
    if spec.choices:
        text += f" ({', '.join(spec.choices)})"
    if spec.is_switch:
        return text + (f" (on; --no-{spec.flag} turns it off)" if spec.default else "")
    return text if spec.default is None else f"{text} [{spec.default}]"
