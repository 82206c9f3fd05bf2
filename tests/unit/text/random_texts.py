"""Random texts that are hard for tokenizers, the same ones for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from tests.unit.text.goldens import FOLDER

_WHOLE = (
    *(
        "hello",
        " world",
        "'ll",
        "DON'T",
        "1234",
        " 12",
        "  ",
        "   \n",
        "\n\n",
        "\r\n",
        "\t",
        "\0",
        "<",
        "|>",
        "e\u0301",
    ),
    *(
        "🙂",
        "👩\u200d👩\u200d👧",
        "🏳️\u200d🌈",
        "你好",
        "こんにちは",
        "한국어",
        "שלום",
        "مرحبا",
        "नमस्ते",
        "ไทย",
        "ﬁ",
        "Ⅳ",
        "▁",
    ),
    *("<0x0A>", "##ing", "Ġ", "<unk", "\u00a0", "\u2028", "\ufeff", "a" * 70),
)


def random_text(rng: random.Random) -> str:
    return "".join([_part(rng) for _ in range(rng.randrange(0, 24))])


def random_texts(count: int, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(count):
        yield random_text(rng)


def awkward_texts() -> list[str]:
    found: list[str] = json.loads((FOLDER / "awkward.json").read_text())
    return found


def _part(rng: random.Random) -> str:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(_WHOLE)
    if kind == 1:
        return chr(rng.randrange(0x80))
    if kind == 2:
        return chr(
            rng.choice((rng.randrange(0x80, 0x3000), rng.randrange(0x3000, 0xD800), rng.randrange(0xE000, 0x110000)))
        )
    return "".join(rng.choices("abcdehlow ", k=rng.randrange(1, 8)))
