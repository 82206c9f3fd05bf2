"""Fields: values out of a JSON object, each checked where it is read.

Owns the words with which a hardware file is refused: file, field, value, limit. Knows no field by name.
Invariant: what comes out has the type and lies within the limits that were asked for, or `UsageError` says why not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeGuard

from plait.core.errors import UsageError

MOST_BYTES = 64 << 20
"""Of a file; the largest tables that calibration makes take a hundredth of it."""


class Readable(Protocol):
    """A file on disk, or one inside the package."""

    def read_bytes(self) -> bytes: ...


class Fields:
    """An object of a file; `path` says where in it."""

    def __init__(self, source: str, path: str, values: Mapping[str, object]) -> None:
        self.source = source
        self.path = path
        self._values = values

    @classmethod
    def read(cls, file: Readable, source: str) -> Fields:
        """The object that the file is. `UsageError`: it is none."""
        try:
            text = file.read_bytes()
            if len(text) > MOST_BYTES:
                raise UsageError(f"{source} has {len(text):,} bytes; a hardware file has at most {MOST_BYTES:,}")
            found: object = json.loads(text)
        except OSError as error:
            raise UsageError(f"{source} cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{source} is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise UsageError(f"{source} holds no JSON object")
        return cls(source, "", found)

    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def fault(self, name: str, limit: str) -> UsageError:
        """What to raise: `limit` says what the field must be."""
        value = self._values.get(name)
        said = "missing" if name not in self._values else f"{json.dumps(value)[:60]}"
        return UsageError(f"{self.source}: {self._place(name)} is {said}; {limit}")

    def only(self, *names: str) -> None:
        """A field that nobody reads is a mistyped one."""
        for name in self._values:
            if name not in names:
                raise UsageError(f"{self.source}: {self._place(name)} is not known; there can be {', '.join(names)}")

    def part(self, name: str) -> Fields:
        found = self._values.get(name)
        if not isinstance(found, dict):
            raise self.fault(name, "it must be an object")
        return Fields(self.source, self._place(name), found)

    def parts(self, name: str) -> tuple[Fields, ...]:
        return tuple(
            self._element(name, place, value) for place, value in enumerate(self._list(name, "a list of objects"))
        )

    def text(self, name: str, choices: tuple[str, ...] = ()) -> str:
        found = self._values.get(name)
        if choices and found not in choices:
            raise self.fault(name, f"it must be one of {', '.join(choices)}")
        if not isinstance(found, str) or not found:
            raise self.fault(name, "it must be a text")
        return found

    def number(self, name: str, *, least: float = 0.0, above: bool = False, most: float = math.inf) -> float:
        """`above`: it must lie above `least`, not only reach it."""
        found = self._values.get(name)
        if not _is_number(found) or found < least or found > most or (above and found == least):
            raise self.fault(name, f"it must be a number {_range_text(least, above, most)}")
        return float(found)

    def whole(self, name: str, *, least: int, most: int = 1 << 40) -> int:
        found = self._values.get(name)
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise self.fault(name, f"it must be a whole number from {least} to {most:,}")
        return found

    def flag(self, name: str) -> bool:
        found = self._values.get(name)
        if not isinstance(found, bool):
            raise self.fault(name, "it must be true or false")
        return found

    def numbers(self, name: str, *, least: float = 0.0, count: int | None = None) -> tuple[float, ...]:
        form = f"it must be a list of {'' if count is None else f'{count} '}numbers, {least:g} or more"
        found = self._list(name, "a list of numbers")
        if count is not None and len(found) != count:
            raise UsageError(f"{self.source}: {self._place(name)} has {len(found)} entries; {form}")
        kept = [float(value) for value in found if _is_number(value) and value >= least]
        if len(kept) != len(found):
            raise UsageError(f"{self.source}: {self._place(name)} has an entry out of range; {form}")
        return tuple(kept)

    def _list(self, name: str, form: str) -> list[object]:
        found = self._values.get(name)
        if not isinstance(found, list):
            raise self.fault(name, f"it must be {form}")
        return found

    def _element(self, name: str, place: int, value: object) -> Fields:
        path = f"{self._place(name)}[{place}]"
        if not isinstance(value, dict):
            raise UsageError(f"{self.source}: {path} is {json.dumps(value)[:60]}; it must be an object")
        return Fields(self.source, path, value)

    def _place(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def write_json(path: Path, value: object) -> None:
    """Whole or not at all. `UsageError`: it cannot be written there."""
    scratch = path.with_name(f"{path.name}.part")
    try:
        scratch.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}; name another file") from error


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _range_text(least: float, above: bool, most: float) -> str:
    low = f"above {least:g}" if above else f"of {least:g} or more"
    return low if math.isinf(most) else f"{low}, at most {most:g}"
