"""Mutations: how sound inputs become strange ones.

Owns the changes to bytes and to trees of plain values that every reader's inputs share. Knows no file format.
Invariant: the same `Random` gives the same input, on every machine.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeAlias

Tree: TypeAlias = "bool | int | float | str | list[Tree] | dict[str, Tree] | None"

EXTREMES: Final = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 33, 64, 127, 128, 255, 256, 257, 1023, 4096, 65_535, 65_536, 1 << 20),
    *(1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 48, (1 << 62) + 1, (1 << 63) - 1, 1 << 63),
    *((1 << 64) - 32, (1 << 64) - 1),
)
STRANGE_TEXTS: Final = (
    *("", " ", "\0", "\n", "a", "é", "e\u0301", "\ufeff", "\uffff", "🦁", "<|end|>", "<s>", "\u202e", "a" * 1000),
    *("../../etc/passwd", "%s%n", "{{ 1 }}", "\\", '"', "ÿ" * 300, "Ġ", "ĠĠ", " a", "a b c", "1e400", "nan"),
)
INVALID_UTF8: Final = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\x80")
STRANGE_FLOATS: Final = (float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1e308, -1.0, 1e-45, 3.4e38)
MOST_DEEP: Final = 3000


@dataclass(slots=True)
class Marked:
    """Bytes with the places of their numbers and the borders of their sections."""

    contents: bytearray = field(default_factory=bytearray)
    numbers: list[tuple[int, int]] = field(default_factory=list)
    """(offset, bytes) of lengths, counts, types and offsets."""
    borders: list[int] = field(default_factory=list)

    def number(self, value: int, num_bytes: int) -> None:
        self.numbers.append((len(self.contents), num_bytes))
        self.contents += (value % (1 << 8 * num_bytes)).to_bytes(num_bytes, "little")

    def border(self) -> None:
        self.borders.append(len(self.contents))


def _flip_bits(random: Random, marked: Marked) -> None:
    for _ in range(random.choice((1, 1, 2, 8))):
        marked.contents[random.randrange(len(marked.contents))] ^= 1 << random.randrange(8)


def _set_bytes(random: Random, marked: Marked) -> None:
    for _ in range(random.choice((1, 2, 4))):
        marked.contents[random.randrange(len(marked.contents))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x7B))


def _cut_short(random: Random, marked: Marked) -> None:
    del marked.contents[random.randrange(len(marked.contents)) :]


def _extreme_number(random: Random, marked: Marked) -> None:
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if not marked.numbers:
            return
        at, num_bytes = random.choice(marked.numbers)
        old = int.from_bytes(marked.contents[at : at + num_bytes], "little")
        new = random.choice((*EXTREMES, old + 1, old - 1, old * 2, old + 32, -old))
        marked.contents[at : at + num_bytes] = (new % (1 << 8 * num_bytes)).to_bytes(num_bytes, "little")


def _section(random: Random, marked: Marked) -> tuple[int, int]:
    borders = sorted({0, *marked.borders, len(marked.contents)})
    first = random.randrange(len(borders) - 1)
    return borders[first], borders[min(len(borders) - 1, first + random.choice((1, 1, 2, 3)))]


def _cut_section(random: Random, marked: Marked) -> None:
    first, end = _section(random, marked)
    del marked.contents[first:end]


def _repeat_section(random: Random, marked: Marked) -> None:
    first, end = _section(random, marked)
    marked.contents[end:end] = marked.contents[first:end] * random.choice((1, 1, 2, 20))


def _move_section(random: Random, marked: Marked) -> None:
    first, end = _section(random, marked)
    moved = marked.contents[first:end]
    del marked.contents[first:end]
    to = random.choice([0, *marked.borders])
    marked.contents[to:to] = moved


def _insert_bytes(random: Random, marked: Marked) -> None:
    at = random.randrange(len(marked.contents) + 1)
    marked.contents[at:at] = random.choice((random.randbytes(random.choice((1, 4, 8, 64))), *INVALID_UTF8))


def _strange_floats(random: Random, marked: Marked) -> None:
    for _ in range(random.choice((1, 4))):
        if len(marked.contents) > 8:
            at = random.randrange(len(marked.contents) - 8) & ~3
            marked.contents[at : at + 4] = struct.pack("<f", random.choice(STRANGE_FLOATS[:4]))


_CHANGES: Final[Sequence[Callable[[Random, Marked], None]]] = (
    *(_extreme_number, _extreme_number, _extreme_number, _flip_bits, _set_bytes, _cut_short),
    *(_cut_section, _repeat_section, _move_section, _insert_bytes, _strange_floats),
)


def changed(random: Random, marked: Marked) -> bytes:
    """One to four changes. Places of numbers move with none of them: later ones hit what lies there then."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if marked.contents:
            random.choice(_CHANGES)(random, marked)
            length = len(marked.contents)
            marked.numbers = [(at, size) for at, size in marked.numbers if at + size <= length]
            marked.borders = [at for at in marked.borders if at <= length]
    return bytes(marked.contents)


def strange_value(random: Random) -> Tree:
    """Anything but what is expected."""
    match random.randrange(9):
        case 0:
            return random.choice((None, True, False))
        case 1 | 2:
            return random.choice((1, -1)) * random.choice(EXTREMES)
        case 3:
            return random.choice(STRANGE_FLOATS)
        case 4:
            return random.choice(STRANGE_TEXTS)
        case 5:
            return random.choice(([], {}, [[]], [None], [0] * 100, {"": None}))
        case 6:
            return [strange_value(random) for _ in range(random.randrange(4))]
        case 7:
            return {random.choice(STRANGE_TEXTS): strange_value(random) for _ in range(random.randrange(4))}
        case _:
            nested: Tree = random.choice((0, "x", None))
            for _ in range(random.choice((2, 10, 60, 200))):
                nested = [nested] if random.randrange(2) else {"a": nested}
            return nested


def changed_tree(random: Random, tree: Tree) -> Tree:
    """A copy with one node replaced, dropped, repeated or renamed. Most likely near the root."""
    if isinstance(tree, dict) and tree and random.random() < 0.85:
        return _changed_table(random, tree)
    if isinstance(tree, list) and tree and random.random() < 0.85:
        copy = list(tree)
        at = random.randrange(len(copy))
        match random.randrange(6):
            case 0:
                del copy[at]
            case 1:
                copy[at:at] = [copy[at]] * random.choice((1, 1, 3, 100))
            case 2:
                other = random.randrange(len(copy))
                copy[at], copy[other] = copy[other], copy[at]
            case _:
                copy[at] = changed_tree(random, copy[at])
        return copy
    if isinstance(tree, str) and random.random() < 0.4:
        return changed_text(random, tree)
    if isinstance(tree, int) and not isinstance(tree, bool) and random.random() < 0.4:
        return random.choice((tree + 1, tree - 1, -tree, tree * 2, tree * 1000, float(tree), str(tree)))
    return strange_value(random)


def _changed_table(random: Random, tree: dict[str, Tree]) -> Tree:
    copy = dict(tree)
    key = random.choice(list(copy))
    match random.randrange(10):
        case 0:
            del copy[key]
        case 1:
            copy[changed_text(random, key)] = copy.pop(key)
        case 2:
            copy[random.choice(STRANGE_TEXTS)] = strange_value(random)
        case 3:
            copy[key] = copy[random.choice(list(copy))]
        case _:
            copy[key] = changed_tree(random, copy[key])
    return copy


def changed_text(random: Random, text: str) -> str:
    at = random.randrange(len(text) + 1)
    match random.randrange(5):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + random.choice(STRANGE_TEXTS) + text[at:]
        case 2:
            return text[:at] + text[at + 1 :]
        case 3:
            return text * random.choice((2, 3, 50)) if len(text) < 10_000 else text[at:]
        case _:
            return text[:at] + chr(random.choice((0, 9, 32, 0x7F, 0x301, 0xE9, 0xFFFD, 0x1F981, 0x10FFFF))) + text[at:]


def changed_json(random: Random, tree: Tree) -> bytes:
    """The tree changed, as text; sometimes the text is changed as well."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        tree = changed_tree(random, tree)
    text = json.dumps(tree, ensure_ascii=bool(random.randrange(2)))
    if random.random() < 0.15:
        text = _strange_json(random, text)
    contents = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.15:
        marked = Marked(bytearray(contents), borders=[at for at, byte in enumerate(contents) if byte in b",{}[]"][:500])
        return changed(random, marked)
    return contents


def _strange_json(random: Random, text: str) -> str:
    depth = random.choice((100, 1000, 100_000))
    match random.randrange(8):
        case 0:
            return "[" * depth + "]" * depth
        case 1:
            return text.replace(":", ':{"a":' * min(depth, MOST_DEEP), 1)
        case 2:
            return text.replace('"', '"\\ud800', 3)
        case 3:
            return "\ufeff" + text
        case 4:
            return text[:-1] + "," + text[1:] if text[:1] == "{" else text  # every key twice
        case 5:
            return text.replace(": ", ": " + "9" * random.choice((20, 400, 5000)), 2)
        case 6:
            return text.replace(": ", ": -NaN", 1)
        case _:
            return text + random.choice(("\0", "{}", "x", " " * 1000))
