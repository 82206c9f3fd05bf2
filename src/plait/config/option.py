"""Options: a frozen dataclass is a set of options, one field each.

Owns the reading of fields as options and the order in which sources win: command line, environment (PLAIT_<FIELD>),
YAML file, default. This is the only file that reads the environment.
Invariant: a value that reaches a config object has passed its field's parser, whatever source it came from. An unknown
name in a YAML file is an error with the nearest known one; in the environment it is none, because orchestrators set
variables of their own there (a service called plait gives PLAIT_PORT and others to its neighbours).
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from plait.config.places import home_dir
from plait.core.errors import UsageError

T = TypeVar("T")
C = TypeVar("C")

ENVIRONMENT_PREFIX = "PLAIT_"
_UNSAID = object()


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One user option. `flag` is its command-line name without dashes; `switch` options take no value there."""

    field: str
    flag: str
    parse: Callable[[str], object]
    default: object
    help: str
    metavar: str
    choices: tuple[str, ...]
    short: str | None
    rare: bool

    @property
    def shown_default(self) -> str:
        """As one would type it; a path in the home folder begins with ~."""
        text = ",".join(map(str, self.default)) if isinstance(self.default, tuple) else str(self.default)
        home = str(home_dir())
        return f"~{text[len(home) :]}" if isinstance(self.default, Path) and text.startswith(home + "/") else text

    @property
    def is_switch(self) -> bool:
        return isinstance(self.default, bool)


def option(
    default: T,
    parse: Callable[[str], T],
    help: str,  # noqa: A002 - the word everyone knows from argparse
    *,
    metavar: str = "",
    choices: tuple[str, ...] = (),
    short: str | None = None,
    rare: bool = False,
) -> T:
    """A dataclass field that is also a user option; a `rare` one is not shown by a plain --help."""
    metadata = {"parse": parse, "help": help, "metavar": metavar, "choices": choices, "short": short, "rare": rare}
    return dataclasses.field(default=default, metadata=metadata)


def options_of(config: type) -> list[OptionSpec]:
    """The options of a config class, in field order."""
    return [
        OptionSpec(
            field=field.name,
            flag=field.name.replace("_", "-"),
            parse=field.metadata["parse"],
            default=field.default,
            help=field.metadata["help"],
            metavar=field.metadata["metavar"] or field.name.upper(),
            choices=field.metadata["choices"],
            short=field.metadata["short"],
            rare=field.metadata["rare"],
        )
        for field in dataclasses.fields(config)
    ]


class OptionSources:
    """What the command line, the environment and a YAML file say, checked against every option of a command."""

    def __init__(
        self,
        specs: Sequence[OptionSpec],
        command_line: Mapping[str, str],
        yaml_file: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`command_line`: field name -> text of what was typed. `environment` None: the process's own."""
        self._command_line = command_line
        self._environment = os.environ if environment is None else environment
        self._yaml_file = yaml_file
        self._from_yaml = {} if yaml_file is None else _read_yaml(yaml_file, specs)

    def read(self, config: type[C]) -> C:
        """A config with every field from the strongest source that names it."""
        values = {spec.field: value for spec in options_of(config) if (value := self._value(spec)) is not _UNSAID}
        return config(**values)

    def names(self, field: str) -> bool:
        """Whether any source says something about it, be it the default."""
        return (
            field in self._command_line
            or field in self._from_yaml
            or ENVIRONMENT_PREFIX + field.upper() in self._environment
        )

    def _value(self, spec: OptionSpec) -> object:
        variable = ENVIRONMENT_PREFIX + spec.field.upper()
        if spec.field in self._command_line:
            return _parsed(spec, self._command_line[spec.field], f"--{spec.flag}")
        if variable in self._environment:
            return _parsed(spec, self._environment[variable], f"environment variable {variable}")
        if spec.field in self._from_yaml:
            return _parsed(spec, self._from_yaml[spec.field], f"--config {self._yaml_file}: {spec.flag}")
        return _UNSAID


def with_values(config: C, values: Mapping[str, object]) -> C:
    """The same config with other values, each of which came out of its field's parser."""
    kept = {field.name: getattr(config, field.name) for field in dataclasses.fields(type(config))}  # type: ignore[arg-type]  # a config is a dataclass
    return type(config)(**{**kept, **values})


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the closest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _parsed(spec: OptionSpec, text: str, source: str) -> object:
    if spec.choices and text not in spec.choices:
        raise UsageError(f"{source} is {text!r}; choose one of {', '.join(spec.choices)}{nearest(text, spec.choices)}")
    try:
        return spec.parse(text)
    except ValueError as error:
        raise UsageError(f"{source} is {text!r}; {error}") from None


def _read_yaml(path: Path, specs: Sequence[OptionSpec]) -> dict[str, str]:
    # A seventh of the time of `plait --help`, and few starts have such a file.
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}; give an existing YAML file") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: not UTF-8, or a date that does not exist. RecursionError: brackets in brackets without end.
        reason = " ".join(str(error).split())
        raise UsageError(f"--config {path} is not YAML: {reason}; write lines such as `max-model-len: 4096`") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UsageError(f"--config {path} holds no options; write lines such as `max-model-len: 4096`")
    known = {spec.flag: spec for spec in specs}
    values: dict[str, str] = {}
    for key, value in document.items():
        flag = str(key).replace("_", "-")
        if flag not in known:
            raise UsageError(f"--config {path} names the option {key!r}, which does not exist{nearest(flag, known)}")
        if not isinstance(value, str | int | float | bool):
            raise UsageError(f"--config {path}: {key} is {value!r}; one value is expected")
        values[known[flag].field] = _bare_word(value, known[flag].choices) if isinstance(value, bool) else str(value)
    return values


def _bare_word(value: bool, choices: Sequence[str]) -> str:
    """What somebody may have written: `off` without quotes is false in YAML, though a choice may have that name."""
    switch = "on" if value else "off"
    return switch if switch in choices else str(value).lower()
