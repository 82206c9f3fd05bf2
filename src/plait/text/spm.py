"""SPM: the tokenizers of sentencepiece that merge by score, as GGUF files describe them.

Owns turning scores into merges and the spelling of such tokens (`▁` for a space, `<0x0A>` for a byte). Knows nothing
about files. Invariant: the ids are sentencepiece's own, and no control token can be reached by merging.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers

from plait.core.errors import ModelError
from plait.text.encoders import LiteralEncoder
from plait.text.merging import library_errors
from plait.text.tokenizer import Tokenizer
from plait.text.vocabulary import Vocabulary, flag, number_list, read_vocabulary

SPACE = "▁"
"""Stands for a space inside tokens."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# More than one character that nothing merges to: no text reaches it.
_UNREACHABLE = "\0unknown"
_DEFAULT_IDS = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
"""What files that do not name these tokens mean."""

_PHI_3_KEEPS = frozenset(["<unk>", "<s>", "<|endoftext|>"])
"""The special tokens of Phi-3 that do not swallow the white space behind them; GGUF files cannot say it."""


def spm_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer of a file whose `tokenizer.ggml.model` is `llama`."""
    prefixed = flag(metadata, "tokenizer.ggml.add_space_prefix", True)
    vocabulary = read_spm_vocabulary(metadata, prefixed)
    scores = number_list(metadata, "tokenizer.ggml.scores")
    if len(scores) != len(vocabulary.texts):
        raise ModelError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {len(vocabulary.texts)} tokens; "
            "the file is corrupt, get it again"
        )
    elsewhere = {*vocabulary.control, *vocabulary.user_defined, *vocabulary.unused}
    ids = {text: token for token, text in enumerate(vocabulary.texts) if text and text not in elsewhere}
    backend = spm_backend(ids, scores, vocabulary.control.get(vocabulary.named.get("unk_token", "")))
    # Every text between control tokens gets a space in front, as in the program that these files were made for.
    before = [normalizers.Prepend(SPACE)] if prefixed else []
    backend.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE)])
    whole = {**vocabulary.control, **vocabulary.user_defined}
    eats_after = whole.keys() - _PHI_3_KEEPS if _is_phi_3(metadata) else ()
    encoder = LiteralEncoder(backend, vocabulary.control, vocabulary.user_defined, eats_after)
    return Tokenizer(vocabulary, encoder, vocabulary.warnings)


def _is_phi_3(metadata: Mapping[str, object]) -> bool:
    """By the name of the model, as llama.cpp tells."""
    name = metadata.get("general.name")
    return isinstance(name, str) and re.search("phi-?3", name.lower()) is not None


def read_spm_vocabulary(metadata: Mapping[str, object], prefixed: bool) -> Vocabulary:
    """The vocabulary; `prefixed` says that a space goes in front of a text, which decoding then takes away."""
    defaults = {f"tokenizer.ggml.{name}": token for name, token in _DEFAULT_IDS.items()}
    vocabulary = read_vocabulary({**defaults, **metadata}, add_bos=True, spell=_spell)
    if not prefixed:
        return vocabulary
    return replace(vocabulary, first_pieces=tuple([piece.removeprefix(b" ") for piece in vocabulary.pieces]))


def spm_backend(ids: Mapping[str, int], scores: Sequence[float], unknown: int | None) -> Backend:
    """What merges text in which spaces are spelled `▁`.

    `ids` are the tokens that text is made of, those for single bytes included; `scores` are by id. `unknown` is for
    characters without a token where there are none for bytes.
    """
    mergeable = {text: token for text, token in ids.items() if not _BYTE.fullmatch(text)}
    names = {**ids, **({} if unknown is None else {_UNREACHABLE: unknown})}

    def refused(trouble: str) -> ModelError:
        return ModelError(f"the tokenizer cannot be built: {trouble}; get the file again")

    with library_errors(refused):
        return Backend(
            models.BPE(
                names,
                _merges(mergeable, scores),
                unk_token=None if unknown is None else _UNREACHABLE,
                fuse_unk=True,
                byte_fallback=True,
            )
        )


def _merges(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others; those of the token with the highest score come first."""
    best_first = sorted(ids, key=lambda text: (-scores[ids[text]], ids[text]))
    return [
        (text[:cut], text[cut:])
        for text in best_first
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    ]


def _spell(texts: Sequence[str]) -> list[bytes]:
    pieces = [text.replace(SPACE, " ").encode() for text in texts]
    for token, text in enumerate(texts):
        if text.startswith("<0x") and (found := _BYTE.fullmatch(text)):
            pieces[token] = bytes([int(found[1], 16)])
    return pieces
