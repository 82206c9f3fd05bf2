"""Facts: typed reading of a model file's key-value header.

Owns the checks that a key is there, has the right type and lies in its range. Knows no key by itself.
Invariant: every complaint is a `ModelError` that names the source, the key, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from plait.core.errors import ModelError

SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Facts:
    """Values by key, and where they come from, for messages. A key whose value is None counts as missing."""

    source: str
    values: Mapping[str, object]

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def error(self, what: str) -> ModelError:
        return ModelError(f"{self.source}: {what}")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in [low, high]."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(f"{key} is {_shown(value)}; it must be a whole number from {low} to {high}")
        return value

    def number(self, key: str, above: float, high: float, default: float | None = None) -> float:
        """A number in (above, high]; NaN and infinity lie in no range."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= high:
            raise self.error(f"{key} is {_shown(value)}; it must be a number above {above:g} and at most {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} is {_shown(value)}; it must be true or false")
        return value

    def word(self, key: str, allowed: Collection[str], what: str, default: str | None = None) -> str:
        """One of `allowed`; `what` names it in the complaint."""
        value = self._value(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise self.error(f"{key} is {_shown(value)}; this {what} is not supported; supported: {', '.join(allowed)}")
        return value

    def table(self, key: str) -> Facts | None:
        """Facts of a nested table, or None if it is missing."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(f"{key} is {_shown(value)}; it must be a table of keys and values")
        return Facts(f"{self.source}, {key}", value)

    def refuse(self, key: str, harmless: Collection[object], why: str) -> None:
        """Complain unless `key` is missing or has one of the values that change nothing."""
        if self.has(key) and self.values[key] not in harmless:
            raise self.error(f"{key} is {_shown(self.values[key])}; {why}")

    def _value(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"{key} is missing")
        return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
