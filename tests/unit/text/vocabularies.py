"""A small byte-level vocabulary as a GGUF file would describe it: all 256 bytes, some merges, control tokens.

Everything that a real vocabulary can do to text happens here too, and every expected id can be looked up by its text.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.text.alphabet import ALPHABET
from plait.text.gguf import tokenizer_from_gguf
from plait.text.tokenizer import Tokenizer

MERGES = (
    *("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "l d", "or ld", "Ġw orld", "u s", "e r", "us er", "Ġ Ġ", "ĠĠ ĠĠ"),
    *("1 2", "12 3", "3 4", "i m", "e n", "en d", "< |", "| >", "Ċ Ċ", "Ċ h"),
    # 🙂 is F0 9F 99 82 and 你 is E4 BD A0: tokens that end inside a character.
    *("ð Ł", "ðŁ Ļ", "ä ½"),
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_end|>x", "<file>")
USER_DEFINED = ("<think>", "</think>", "  \n")


def spell(raw: bytes) -> str:
    """The bytes as a byte-level vocabulary writes them."""
    return "".join([ALPHABET[byte] for byte in raw])


def metadata(**changes: object) -> dict[str, object]:
    """The metadata; `changes` replaces `tokenizer.ggml.<name>`, and None leaves it out."""
    words = ["".join(merge.split(" ")) for merge in MERGES]
    tokens = [*CONTROL, *ALPHABET, *words, *USER_DEFINED, "[PAD0]"]
    kinds = [3] * len(CONTROL) + [1] * (256 + len(words)) + [4] * len(USER_DEFINED) + [5]
    described: dict[str, object] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": kinds,
        "merges": list(MERGES),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": False,
    }
    described |= changes
    return {f"tokenizer.ggml.{name}": value for name, value in described.items() if value is not None}


def small_tokenizer(**changes: object) -> Tokenizer:
    return tokenizer_from_gguf(metadata(**changes))


def ids_of(*texts: str, described: Mapping[str, object] | None = None) -> list[int]:
    """The ids of tokens by the spelling in the file."""
    tokens = (described or metadata())["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    return [tokens.index(text) for text in texts]
