"""BPE: a byte-level tokenizer from GGUF metadata.

Owns the check of the merges and which tokens they can reach. The merging itself is `tokenizers`', and how text is cut
before is `pre_tokenizers`'. Invariant: no control token can be reached by merging, so ordinary text never becomes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers

from plait.core.errors import ModelError
from plait.text.alphabet import ALPHABET
from plait.text.encoders import LiteralEncoder
from plait.text.pre_tokenizers import FALLBACK, NEEDS_MORE, PRE_TOKENIZERS, PreTokenizer
from plait.text.tokenizer import Tokenizer
from plait.text.vocabulary import Vocabulary, read_vocabulary, string_list

# Not a letter of the byte alphabet: a name with it in front can be stored but never spelled by text.
_UNREACHABLE = "\0"

# Bytes that no text has which a person would miss: never in UTF-8; first bytes of planes without a character; control
# characters other than tab and the ends of lines.
_NOT_IN_TEXT = frozenset([0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100), *range(9), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F])
_MOST_BYTES_SHOWN = 10


def bpe_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer of a file whose `tokenizer.ggml.model` is `gpt2`."""
    pre, warnings = _pre_tokenizer(metadata)
    vocabulary = read_vocabulary(metadata, add_bos=pre.add_bos)
    backend = _backend(vocabulary, string_list(metadata, "tokenizer.ggml.merges"), pre)
    encoder = LiteralEncoder(backend, vocabulary.control, vocabulary.user_defined)
    return Tokenizer(vocabulary, encoder, (*warnings, *vocabulary.warnings, *_lost_bytes(vocabulary)))


def _lost_bytes(vocabulary: Vocabulary) -> tuple[str, ...]:
    """A warning if some byte of ordinary text has no token to fall back to."""
    nowhere = {*vocabulary.control, *vocabulary.unused}
    letters = {text for text in vocabulary.texts if len(text) == 1} - nowhere
    lost = [byte for byte, letter in enumerate(ALPHABET) if letter not in letters and byte not in _NOT_IN_TEXT]
    if not lost:
        return ()
    shown = " ".join(f"{byte:02X}" for byte in lost[:_MOST_BYTES_SHOWN])
    more = f" and {len(lost) - _MOST_BYTES_SHOWN} more" if len(lost) > _MOST_BYTES_SHOWN else ""
    return (f"no token stands for the byte values {shown}{more}: text loses them where no larger token holds them",)


def _pre_tokenizer(metadata: Mapping[str, object]) -> tuple[PreTokenizer, tuple[str, ...]]:
    key = "tokenizer.ggml.pre"
    name = metadata.get(key)
    if name is None:
        warning = (
            f"{key} is missing: text is cut as {FALLBACK!r}, which may not be how the model was trained; "
            "convert the model again"
        )
        return PRE_TOKENIZERS[FALLBACK], (warning,)
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        why = f" ({NEEDS_MORE[name]})" if isinstance(name, str) and name in NEEDS_MORE else ""
        raise ModelError(
            f"{key} is {name!r:.60}{why}, none of the {len(PRE_TOKENIZERS)} supported, which are listed in "
            "docs/reference/tokenizers.md; use the model's directory with its tokenizer.json instead"
        )
    return PRE_TOKENIZERS[name], ()


def _backend(vocabulary: Vocabulary, merges: tuple[str, ...], pre: PreTokenizer) -> Backend:
    names = {text: token for token, text in enumerate(vocabulary.texts)}
    for text in (*vocabulary.control, *vocabulary.unused):
        names[_UNREACHABLE + text] = names.pop(text)
    backend = Backend(models.BPE(names, _pairs(merges, names), ignore_merges=pre.whole_words))
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre.cuts()
    return backend


def _pairs(merges: Sequence[str], names: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges as pairs, without those that lead through a control token; one that makes no sense is named."""
    pairs = [(left, right) for left, _, right in [merge.partition(" ") for merge in merges]]
    if names.keys() >= {*chain.from_iterable(pairs), *map("".join, pairs)} and "" not in names:
        return pairs
    return [pair for rank, pair in enumerate(pairs) if _is_reachable(rank, merges[rank], names)]


def _is_reachable(rank: int, merge: str, names: Mapping[str, int]) -> bool:
    left, _, right = merge.partition(" ")
    if not left or not right or " " in right:
        raise ModelError(
            f"tokenizer.ggml.merges entry {rank} is {merge!r:.60}, not two parts; the file is corrupt, get it again"
        )
    texts = (left, right, left + right)
    for text in texts:
        if text not in names and _UNREACHABLE + text not in names:
            raise ModelError(
                f"tokenizer.ggml.merges entry {rank} needs {text!r:.60}, which is not a token; "
                "the file is corrupt, get it again"
            )
    return all(text in names for text in texts)
