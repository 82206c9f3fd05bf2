"""GGUF: which kind of tokenizer a GGUF file describes.

Owns the choice only; each kind is a module of its own. Invariant: a kind that we do not have is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plait.core.errors import ModelError
from plait.text.bpe import bpe_from_gguf
from plait.text.rwkv_world import world_from_gguf
from plait.text.spm import spm_from_gguf
from plait.text.tokenizer import Tokenizer

KINDS: Mapping[str, Callable[[Mapping[str, object]], Tokenizer]] = {
    "gpt2": bpe_from_gguf,
    "llama": spm_from_gguf,
    "rwkv": world_from_gguf,
}
_WORDS = {
    "gpt2": "byte-level BPE",
    "llama": "sentencepiece, merging by score",
    "rwkv": "RWKV's, the longest token that fits",
}


def tokenizer_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes, or say in one line why it cannot be built."""
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in KINDS:
        shown = "missing" if kind is None else repr(kind)[:60]
        known = ", ".join(f"{name!r} ({words})" for name, words in _WORDS.items())
        raise ModelError(f"tokenizer.ggml.model is {shown}; supported: {known}; use a model with such a tokenizer")
    return KINDS[kind](metadata)
