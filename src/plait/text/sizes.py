"""Sizes: how big a result will be, asked before it is built.

Owns the limits on what one operation of a chat template may produce. Knows nothing about jinja's environment.
Invariant: an operation that passes its check allocates at most a few times `MAX_CHARS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from jinja2.exceptions import SecurityError

MAX_CHARS = 4_000_000
"""Longest string (and list) that a template may build: about a million tokens, beyond the contexts that we serve."""
MAX_COUNT = 100_000
"""Largest number that a template may hand to a filter or method as a width or count; jinja's own limit for `range`."""
_MAX_BITS = 10_000

# The fields of `%` and of `str.format`: with a number in them, with one of six digits or a variable one.
_PERCENT_WIDTH = re.compile(r"%(\([^)]*\))?[^A-Za-z%]*\d")
_PERCENT_WIDE = re.compile(r"%(\([^)]*\))?[^A-Za-z%]*(\d{6}|\*)")
_BRACES_WIDTH = re.compile(r":[^{}]*\d")
_BRACES_WIDE = re.compile(r"\{[^{}]*(\d{6}|\{)")
_COUNTED = frozenset({"batch", "center", "indent", "ljust", "rjust", "round", "slice", "tojson", "zfill"})


def checked(size: int) -> int:
    if size > MAX_CHARS:
        raise SecurityError(f"it builds something of more than {MAX_CHARS:,} characters")
    return size


def size_of(value: object, deep: bool = False) -> int:
    """Characters of a string, entries of a collection; `deep` adds what the entries hold. Everything else is small."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return len(value) + (_total([*value.keys(), *value.values()]) if deep else 0)
    if isinstance(value, list | tuple):
        return len(value) + (_total(value) if deep else 0)
    return 0


def size_of_operation(operator: str, left: object, right: object) -> int:
    """At most how big the result will be; refuses what is out of bounds."""
    if operator == "+":
        return checked(size_of(left) + size_of(right))
    if operator == "%" and isinstance(left, str):
        return _percent_size(left, [right])
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        return _checked_bits(left.bit_length() * abs(right))
    if operator == "*" and isinstance(left, int) and isinstance(right, int):
        return _checked_bits(left.bit_length() + right.bit_length())
    if operator == "*" and isinstance(left, int):
        return checked(size_of(right) * abs(left))
    if operator == "*" and isinstance(right, int):
        return checked(size_of(left) * abs(right))
    return 0


def size_of_filtering(name: str, subject: object, args: Sequence[object]) -> int:
    """The same for a filter that can multiply what it is given; 0 for others."""
    if name in _COUNTED:
        return _padded_size(name, subject, args)
    if name == "string":
        return size_of(subject, deep=True)
    if name == "join":
        return _joined_size(subject, args[0] if args else "")
    if name == "format" and isinstance(subject, str):
        return _percent_size(subject, args)
    if name == "replace" and len(args) >= 2:
        return _replaced_size(subject, args[0], args[1])
    return 0


def size_of_method(name: str, subject: str, args: Sequence[object]) -> int:
    """The same for a method of a string."""
    if name == "join" and args:
        return _joined_size(args[0], subject)
    if name in ("format", "format_map"):
        return _braces_size(subject, args)
    return size_of_filtering(name, subject, args)


def _padded_size(name: str, subject: object, args: Sequence[object]) -> int:
    """Widths and counts: none out of proportion, and not too many times the same one."""
    counts = [abs(value) for value in args if isinstance(value, int)]
    if max(counts, default=0) > MAX_COUNT:
        raise SecurityError(f"it passes a number above {MAX_COUNT:,} to {name}")
    width = max([*counts, *map(size_of, args)], default=0)
    if name == "tojson":
        return checked(size_of(subject, deep=True) * (1 + width))
    return checked(len(subject) + width * (1 + subject.count("\n"))) if isinstance(subject, str) else 0


def _joined_size(parts: object, between: object) -> int:
    return checked(size_of(parts, deep=True) + size_of(parts) * size_of(between))


def _replaced_size(subject: object, old: object, new: object) -> int:
    text = str(subject)
    return checked(len(text) + max(size_of(new) - size_of(old), 0) * text.count(str(old)))


def _percent_size(pattern: str, args: Sequence[object]) -> int:
    bare = pattern.replace("%%", "")
    if _PERCENT_WIDE.search(bare):
        raise SecurityError("it formats a field of a variable width or one of six digits")
    return _formatted_size(bare, bare.count("%"), args, _PERCENT_WIDTH)


def _braces_size(pattern: str, args: Sequence[object]) -> int:
    bare = pattern.replace("{{", "").replace("}}", "")
    if _BRACES_WIDE.search(bare):
        raise SecurityError("it formats a field of a variable width or one of six digits")
    return _formatted_size(bare, bare.count("{"), args, _BRACES_WIDTH)


def _formatted_size(pattern: str, num_fields: int, args: Sequence[object], width: re.Pattern[str]) -> int:
    per_field = size_of(args, deep=True) + (MAX_COUNT if width.search(pattern) else 0)
    return checked(len(pattern) + num_fields * per_field)


def _total(values: Sequence[object]) -> int:
    total = 0
    for value in values:
        total = checked(total + size_of(value, deep=True))
    return total


def _checked_bits(bits: int) -> int:
    if bits > _MAX_BITS:
        raise SecurityError(f"it computes a number of more than {_MAX_BITS:,} bits")
    return bits
