"""The GGUF header's alphabet: a cursor over mapped bytes, and metadata values.

Owns the reading of numbers, strings and typed values at a moving position. Knows nothing about tensors.
Invariant: every length is checked against the bytes left and against a limit before anything is allocated for it; all
trouble is a `ModelError` of one line that names the file.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from plait.core.errors import ModelError

MetaValue: TypeAlias = "bool | int | float | str | list[MetaValue]"

MAX_ARRAY_DEPTH: Final = 4
MAX_STRING_BYTES: Final = 64 << 20
"""One metadata string; an embedded tokenizer description is the longest real one, tens of megabytes."""
MAX_ARRAY_VALUES: Final = 4 << 20
"""All metadata arrays of a file together; tokens, scores, types and merges for 262,144 tokens are about a million."""

# Value types by number: struct letter for scalars, NumPy type for arrays of them.
_SCALARS: Final = {
    0: ("<B", "<u1"),
    1: ("<b", "<i1"),
    2: ("<H", "<u2"),
    3: ("<h", "<i2"),
    4: ("<I", "<u4"),
    5: ("<i", "<i4"),
    6: ("<f", "<f4"),
    7: ("<B", "<u1"),
    10: ("<Q", "<u8"),
    11: ("<q", "<i8"),
    12: ("<d", "<f8"),
}
_BOOL: Final = 7
_STRING: Final = 8
_ARRAY: Final = 9
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
# Fewest bytes that one array element can take: a string is its length, an array is its element type and its length.
_LEAST_BYTES: Final = {_STRING: 8, _ARRAY: 12} | {
    kind: struct.calcsize(letter) for kind, (letter, _) in _SCALARS.items()
}


def shown(text: str) -> str:
    """A name from a file as it may stand in a message: quoted, escaped and never long."""
    return repr(text if len(text) <= 64 else text[:61] + "...")


class HeaderCursor:
    """A position in a mapped GGUF file that only moves forward."""

    __slots__ = ("_array_values", "_end", "_mapped", "_path", "position")

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self._path = path
        self._mapped = mapped
        self._end = len(mapped)
        self._array_values = 0
        self.position = 0

    @property
    def bytes_left(self) -> int:
        return self._end - self.position

    def damaged(self, what: str) -> ModelError:
        """The error for a file that breaks the format: `what` says where and with which value."""
        return ModelError(f"{self._path}: {what}; the file is damaged or cut short, fetch or convert it again")

    def need(self, num_bytes: int, what: str) -> None:
        if num_bytes > self.bytes_left:
            raise self.damaged(
                f"{what} at byte {self.position} needs {num_bytes:,} bytes but {self.bytes_left:,} are left"
            )

    def u32(self, what: str) -> int:
        self.need(4, what)
        (value,) = _U32.unpack_from(self._mapped, self.position)
        self.position += 4
        return int(value)

    def u64(self, what: str) -> int:
        self.need(8, what)
        (value,) = _U64.unpack_from(self._mapped, self.position)
        self.position += 8
        return int(value)

    def string(self, what: str) -> str:
        num_bytes = self.u64(what)
        if num_bytes > MAX_STRING_BYTES:
            raise self.damaged(f"{what} claims a string of {num_bytes:,} bytes; the limit is {MAX_STRING_BYTES:,}")
        self.need(num_bytes, what)
        start, self.position = self.position, self.position + num_bytes
        return self._decoded(start, num_bytes, what)

    def value(self, what: str) -> MetaValue:
        """One metadata value: its type, then its content."""
        return self._value_of(self.u32(f"type of {what}"), what, depth=0)

    def _value_of(self, kind: int, what: str, depth: int) -> MetaValue:
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(what, depth + 1)
        if kind not in _SCALARS:
            raise self.damaged(f"{what} has value type {kind}; GGUF knows types 0 to 12")
        letter, _ = _SCALARS[kind]
        self.need(_LEAST_BYTES[kind], what)
        (value,) = struct.unpack_from(letter, self._mapped, self.position)
        self.position += _LEAST_BYTES[kind]
        if kind != _BOOL:
            return float(value) if isinstance(value, float) else int(value)
        if value > 1:
            raise self.damaged(f"{what} is a boolean with value {value}; only 0 and 1 exist")
        return bool(value)

    def _array(self, what: str, depth: int) -> list[MetaValue]:
        if depth > MAX_ARRAY_DEPTH:
            raise self.damaged(f"{what} nests arrays deeper than {MAX_ARRAY_DEPTH}")
        kind = self.u32(f"element type of {what}")
        count = self.u64(f"length of {what}")
        if kind not in _LEAST_BYTES:
            raise self.damaged(f"{what} has element type {kind}; GGUF knows types 0 to 12")
        self._array_values += count
        if self._array_values > MAX_ARRAY_VALUES:
            raise self.damaged(f"{what} claims {count:,} values; the limit for a file is {MAX_ARRAY_VALUES:,}")
        self.need(count * _LEAST_BYTES[kind], what)
        if kind == _STRING:
            return self._strings(count, what)
        if kind == _ARRAY:
            return [self._array(what, depth + 1) for _ in range(count)]
        return self._numbers(kind, count, what)

    def _numbers(self, kind: int, count: int, what: str) -> list[MetaValue]:
        numbers = np.frombuffer(self._mapped, dtype=_SCALARS[kind][1], count=count, offset=self.position)
        self.position += numbers.nbytes
        if kind != _BOOL:
            values: list[MetaValue] = numbers.tolist()
            return values
        if count and int(numbers.max()) > 1:
            raise self.damaged(f"{what} holds a boolean with value {int(numbers.max())}; only 0 and 1 exist")
        return [bool(number) for number in numbers]

    def _strings(self, count: int, what: str) -> list[MetaValue]:
        """Vocabularies are hundreds of thousands of strings, so the loop is bare and trouble is explained outside."""
        mapped, end, length_at = self._mapped, self._end, _U64.unpack_from
        strings: list[MetaValue] = []
        position = self.position
        start = num_bytes = 0
        try:
            for _ in range(count):
                (num_bytes,) = length_at(mapped, position)
                start = position + 8
                position = start + num_bytes
                if position > end:
                    raise self.damaged(
                        f"string {len(strings)} of {what} claims {num_bytes:,} bytes at byte {start} of {end:,}"
                    )
                strings.append(mapped[start:position].decode())
        except struct.error:
            raise self.damaged(f"{what} ends after {len(strings):,} of {count:,} strings") from None
        except UnicodeDecodeError:
            self._decoded(start, num_bytes, f"string {len(strings)} of {what}")
        self.position = position
        return strings

    def _decoded(self, start: int, num_bytes: int, what: str) -> str:
        try:
            return self._mapped[start : start + num_bytes].decode()
        except UnicodeDecodeError as error:
            bad = error.object[error.start]
            raise self.damaged(f"{what} is not valid UTF-8: byte 0x{bad:02x} at byte {start + error.start}") from None
