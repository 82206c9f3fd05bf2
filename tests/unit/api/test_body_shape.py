"""The bound on a body's values: counted outside strings, wherever pieces end, and never much beyond the limit."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from plait.api import body_shape
from plait.api.bodies import read_object
from plait.api.body_shape import LARGE_BYTES, MAX_WORK, work_of
from plait.core.errors import RequestError

TRICKY = ("", '"', "\\", '\\"', "[[,:{", "a,b", "é,日", "\\\\", '",:[{"', "\x01", "x" * 30)


def made(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(6 if depth < 4 else 4)
    if kind == 4:
        return [made(chance, depth + 1) for _ in range(chance.randrange(5))]
    if kind == 5:
        return {chance.choice(TRICKY) + str(key): made(chance, depth + 1) for key in range(chance.randrange(5))}
    return (chance.choice(TRICKY), chance.randrange(1000), None, True)[kind]


def counted(value: Any) -> int:
    """Commas, openings and colons of its JSON text, by the value itself."""
    if isinstance(value, list):
        return 4 + max(0, len(value) - 1) + sum(map(counted, value))
    if isinstance(value, dict):
        return 4 + max(0, len(value) - 1) + 6 * len(value) + sum(map(counted, value.values()))
    return 0


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 64, 1 << 16])
def test_values_are_counted_wherever_pieces_end(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_shape, "_PIECE_BYTES", piece)
    chance = random.Random(piece)
    for _ in range(150):
        value = [made(chance) for _ in range(4)]
        for ascii_only in (True, False):
            raw = json.dumps(value, ensure_ascii=ascii_only).encode()
            assert work_of(raw) == counted(value), raw


def test_a_long_text_is_no_work_and_many_values_are() -> None:
    text = "punctuation, [brackets], {braces}: none of it counts. " * 40_000
    assert read_object(json.dumps({"prompt": text}).encode()) == {"prompt": text}
    ids = json.dumps({"prompt": [1] * (MAX_WORK - 20)}).encode()
    assert len(read_object(ids)) == 1
    for raw in (
        json.dumps({"prompt": [1] * (MAX_WORK + 20)}),
        '{"a": [' + "[]," * (MAX_WORK // 4) + "1]}",
        "{" + ",".join(f'"{key}":1' for key in range(MAX_WORK // 6)) + "}",
        "[" * (MAX_WORK // 4 + 2),
    ):
        with pytest.raises(RequestError, match="more than 1,000,000 values") as caught:
            read_object(raw.encode())
        assert (caught.value.status, caught.value.code) == (400, "too_many_values")


def test_counting_ends_soon_behind_the_limit() -> None:
    most = 100
    endless = b"," * (LARGE_BYTES * 64)
    assert most < work_of(endless, most) <= most + LARGE_BYTES
