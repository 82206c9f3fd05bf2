"""HF model: the part of a tokenizer.json that holds the vocabulary and the merges.

Owns the checks on it before the `tokenizers` library reads it, and the change that keeps text from reaching control
tokens. Knows nothing about added tokens. Invariant: what leaves here has the library's own form.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from plait.core.errors import ModelError
from plait.text.hf_files import Json
from plait.text.hf_tokens import MAX_TOKENS

MODELS = ("BPE", "Unigram", "WordLevel", "WordPiece")


def read_model(document: Json, path: Path) -> Json:
    """The model of a tokenizer.json, its type named and without what is random."""
    model = document.get("model")
    if not isinstance(model, dict):
        raise ModelError(f"{path}: model is missing; get the file again")
    kind = model.get("type") or _guessed_kind(model)
    if kind not in MODELS:
        raise ModelError(
            f"{path}: model is of type {repr(kind)[:40]}; supported: {', '.join(MODELS)}; use another model"
        )
    # The library cuts merges by the prefix's number of bytes: one of two bytes can end the process.
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if kind == "BPE" and model.get(key):
            raise ModelError(f"{path}: model has a {key}, which is not supported for BPE; use another model")
    # Random merges and samples are for training; a server gives the same ids for the same text.
    dropped = ("dropout", "alpha", "nbest_size")
    return {**{key: value for key, value in model.items() if key not in dropped}, "type": kind}


def _guessed_kind(model: Json) -> str:
    """Files from before 2020 do not name the type."""
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"


def vocabulary_ids(model: Json, path: Path) -> Mapping[str, int]:
    """The model's own tokens with their ids."""
    vocab = model.get("vocab")
    if model["type"] == "Unigram":
        entries = vocab if isinstance(vocab, list) else []
        texts = [entry[0] if isinstance(entry, list) and entry else None for entry in entries]
        vocab = {text: token for token, text in enumerate(texts) if isinstance(text, str)}
        if len(vocab) != len(texts):
            raise ModelError(f"{path}: model.vocab has a token without a text of its own; get the file again")
    if not isinstance(vocab, dict) or not vocab:
        raise ModelError(f"{path}: model.vocab is missing or empty; get the file again")
    ids = vocab.values()
    if set(map(type, ids)) != {int}:
        raise ModelError(f"{path}: model.vocab is not a table of texts and ids; get the file again")
    if min(ids) < 0 or max(ids) >= MAX_TOKENS:
        raise ModelError(f"{path}: model.vocab has an id outside 0 to {MAX_TOKENS - 1:,}; get the file again")
    return vocab


def guarded(model: Json, ids: Mapping[str, int], control: Iterable[str], path: Path) -> Json:
    """The model with every control token under a name that no text can spell, because nobody can guess it."""
    hidden = {text: f"\0{secrets.token_hex(16)}{text}" for text in control if text in ids}
    changed = dict(model)
    vocab = model["vocab"]
    if isinstance(vocab, list):
        changed["vocab"] = [[hidden.get(entry[0], entry[0]), *entry[1:]] for entry in vocab]
    elif hidden:
        changed["vocab"] = {hidden.get(text, text): token for text, token in ids.items()}
    unknown = model.get("unk_token")
    if isinstance(unknown, str):
        changed["unk_token"] = hidden.get(unknown, unknown)
    if model["type"] == "BPE":
        changed["merges"] = _merges_around(hidden, _pairs(model, path))
    return changed


def _pairs(model: Json, path: Path) -> list[list[str]]:
    """The merges, in the older form of files too: one string with a space between the parts."""
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise ModelError(f"{path}: model.merges is missing; get the file again")
    pairs = [merge.split(" ", 1) for merge in merges] if set(map(type, merges)) == {str} else merges
    if pairs and (set(map(type, pairs)) != {list} or set(map(len, pairs)) != {2}):
        raise ModelError(f"{path}: model.merges is not a list of pairs; get the file again")
    if pairs and set(map(type, chain.from_iterable(pairs))) != {str}:
        raise ModelError(f"{path}: model.merges holds something other than texts; get the file again")
    return pairs


def _merges_around(hidden: Mapping[str, str], pairs: list[list[str]]) -> list[list[str]]:
    """The merges without those that lead through a hidden token; usually there are none."""
    if hidden.keys().isdisjoint(chain.from_iterable(pairs)) and hidden.keys().isdisjoint(map("".join, pairs)):
        return pairs
    return [pair for pair in pairs if hidden.keys().isdisjoint((*pair, "".join(pair)))]
