"""Help: what --help prints: everything that there is to do on one screen, then the usual options of one command.

Owns the layout. Invariant: every option can be reached: the rare ones are shown by --help=all, and those about one
thing by --help=WORD.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence

from plait.cli.table import Command, specs_of
from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSpec, options_of
from plait.core.errors import UsageError

_NAMES_WIDTH = 26
_WIDEST = 110
_COLUMNS = 80
"""Of a usual terminal."""
_ALL = "all"
_ENDING = (
    "plait COMMAND --help explains a command, and --help=all each of its options. "
    "plait --version says which Plait this is."
)


def plait_help(commands: Sequence[Command], groups: Mapping[str, str]) -> str:
    """Commands of two words are shown as their group, in one line."""
    rows: dict[str, str] = {}
    names = [command.name for command in commands]
    for command in commands:
        first = command.name.split()[0]
        rows.setdefault(first, command.help if first in names else groups.get(first, ""))
    table = [line for name, text in rows.items() for line in _row(name, text, 14)]
    head = ["usage: plait COMMAND [options]", "", "Serve language models, online and offline.", ""]
    return "\n".join([*head, *table, "", *_wrapped(_ENDING)]) + "\n"


def group_help(group: str, about: str, commands: Sequence[Command]) -> str:
    ours = [command for command in commands if command.name.startswith(f"{group} ")]
    table = [line for command in ours for line in _row(command.name.split()[1], command.help, 14)]
    names = "|".join(command.name.split()[1] for command in ours)
    usage = f"usage: plait {group} {{{names}}} [options]"
    if len(usage) >= _COLUMNS:  # the table below names them
        usage = f"usage: plait {group} COMMAND [options]"
    ending = f"plait {group} {ours[0].name.split()[1]} --help explains one of them."
    return "\n".join([usage, "", about, "", *table, "", ending]) + "\n"


def command_help(command: Command, wanted: str) -> str:
    """`wanted`: "" for the usual options, "all", or a word that an option's name or text must hold."""
    bare = "" if command.positional is None else f" [{command.positional.upper()}]"
    found = [f"usage: plait {command.name}{bare} [options]", "", command.help]
    shown = 0
    for config in command.configs:
        specs = [spec for spec in options_of(config) if _is_shown(spec, wanted)]
        shown += len(specs)
        if specs:
            title = "model and engine" if config is EngineOptions and len(command.configs) > 1 else "options"
            found += ["", f"{title}:", *(line for spec in specs for line in _row(_names(spec), _text(spec)))]
    hidden = len(specs_of(command)) - shown
    if wanted not in ("", _ALL) and not shown:
        raise UsageError(f"no option of plait {command.name} is about {wanted!r}; --help=all shows all of them")
    more = f"--help=all shows {hidden} more options. " if hidden else ""
    file = "Each can also be set as PLAIT_<OPTION> in the environment or as a line of --config FILE (YAML)."
    return "\n".join([*found, "", *_wrapped(more + file)]) + "\n"


def _is_shown(spec: OptionSpec, wanted: str) -> bool:
    if wanted in ("", _ALL):
        return wanted == _ALL or not spec.rare
    return wanted.strip("-") in spec.flag or wanted.lower() in spec.help.lower()


def _names(spec: OptionSpec) -> str:
    flag = f"--{spec.flag}" if spec.is_switch else f"--{spec.flag} {'WORD' if spec.choices else spec.metavar}"
    return flag if spec.short is None else f"{spec.short}, {flag}"


def _text(spec: OptionSpec) -> str:
    text = spec.help
    if spec.choices:
        text += f" ({', '.join(spec.choices)})"
    if spec.is_switch:
        return text + (f" (on; --no-{spec.flag} turns it off)" if spec.default else "")
    return text if spec.default is None else f"{text} [{spec.shown_default}]"


def _row(name: str, text: str, width: int = _NAMES_WIDTH) -> list[str]:
    indent = " " * (width + 2)
    lines = textwrap.wrap(text, _width() - len(indent), break_long_words=False, break_on_hyphens=False) or [""]
    head = f"  {name}"
    if len(head) > width:
        return [head, *(indent + line for line in lines)]
    return [head.ljust(len(indent)) + lines[0], *(indent + line for line in lines[1:])]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _width(), break_long_words=False, break_on_hyphens=False)


def _width() -> int:
    return max(60, min(shutil.get_terminal_size().columns, _WIDEST)) - 1
