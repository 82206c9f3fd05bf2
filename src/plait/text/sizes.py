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

_WIDE_FIELD = re.compile(r"\d{6}|\*|\{[^{}]*\{")
_WIDTH = re.compile(r"[%:]\D?\d")
_COUNTED = frozenset({"batch", "center", "indent", "ljust", "rjust", "round", "slice", "tojson", "zfill"})


def check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise SecurityError(f"it builds something of more than {MAX_CHARS:,} characters")


def size_of(value: object, deep: bool = False) -> int:
    """Characters of a string, entries of a collection; `deep` adds what the entries hold. Everything else is small."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return len(value) + (_total([*value.keys(), *value.values()]) if deep else 0)
    if isinstance(value, list | tuple):
        return len(value) + (_total(value) if deep else 0)
    return 0


def check_operands(operator: str, left: object, right: object) -> None:
    if operator == "+":
        check_size(size_of(left) + size_of(right))
    elif operator == "%" and isinstance(left, str):
        _check_format(left, left.count("%"), [right])
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(times, int):
                check_size(size_of(many) * abs(times))
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())


def check_method(name: str, subject: object, args: Sequence[object]) -> None:
    """A filter or string method, where it can multiply its subject."""
    if name in _COUNTED:
        _check_padding(name, subject, args)
    elif name == "string":
        check_size(size_of(subject, deep=True))
    elif name == "join":
        # As a method the parts are the argument and the subject stands between them; as a filter the other way round.
        parts, between = (args[0], subject) if isinstance(subject, str) and args else (subject, args[0] if args else "")
        check_size(size_of(parts, deep=True) + size_of(parts) * size_of(between))
    elif name == "replace" and isinstance(subject, str) and len(args) >= 2:
        check_size(len(subject) + subject.count(str(args[0])) * size_of(args[1]))
    elif name == "format" and isinstance(subject, str):
        _check_format(subject, subject.count("{") + subject.count("%"), args)


def _check_padding(name: str, subject: object, args: Sequence[object]) -> None:
    """Widths and counts: none out of proportion, and not too many times the same one."""
    counts = [abs(value) for value in args if isinstance(value, int)]
    if max(counts, default=0) > MAX_COUNT:
        raise SecurityError(f"it passes a number above {MAX_COUNT:,} to {name}")
    width = max([*counts, *map(size_of, args)], default=0)
    if name == "tojson":
        check_size(size_of(subject, deep=True) * (1 + width))
    elif isinstance(subject, str):
        check_size(len(subject) + width * (1 + subject.count("\n")))


def _total(values: Sequence[object]) -> int:
    total = 0
    for value in values:
        total += size_of(value, deep=True)
        check_size(total)
    return total


def _check_format(pattern: str, fields: int, args: Sequence[object]) -> None:
    if _WIDE_FIELD.search(pattern):
        raise SecurityError("it formats a field of six digits' or a variable width")
    check_size(len(pattern) + fields * (size_of(args, deep=True) + (99_999 if _WIDTH.search(pattern) else 0)))


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise SecurityError(f"it computes a number of more than {_MAX_BITS:,} bits")
