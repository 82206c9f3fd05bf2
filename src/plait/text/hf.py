"""HF: the tokenizer of a model directory in the format of `transformers`.

Owns what of tokenizer.json goes to the `tokenizers` library and what is decided here: which tokens command the model,
what stands around a text, what tokens decode to. Invariant: plain text gets the ids that the library itself gives it,
and no text reaches a control token without `parse_special`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import orjson
from tokenizers import AddedToken as LibraryToken
from tokenizers import Tokenizer as Backend

from plait.core.errors import ModelError
from plait.text.encoders import AddedBackend, AddedTokenEncoder
from plait.text.hf_files import Json, read_tokenizer_json
from plait.text.hf_frame import read_frame
from plait.text.hf_sentencepiece import tokenizer_from_sentencepiece
from plait.text.hf_tokens import MAX_TOKENS, AddedToken, HfFiles, HfTokens, collect_tokens, read_hf_files
from plait.text.hf_vocabulary import hf_vocabulary
from plait.text.merging import build_backend, library_errors
from plait.text.sentencepiece_model import read_sentencepiece
from plait.text.tokenizer import Tokenizer

MODELS = ("BPE", "Unigram", "WordLevel", "WordPiece")
_MAX_PATTERN = 20_000
_MAX_REPLACEMENT = 64
_OTHERS = {
    "tekken.json": "a tokenizer of mistral-common",
    "tiktoken.model": "a tiktoken vocabulary",
    "qwen.tiktoken": "a tiktoken vocabulary",
    "vocab.json": "a vocabulary of the old format",
    "vocab.txt": "a vocabulary of the old format",
}


def tokenizer_from_hf(directory: Path) -> Tokenizer:
    """Build the tokenizer of a model directory, or say in one line why it cannot be built."""
    path = directory / "tokenizer.json"
    document = read_tokenizer_json(path)
    files = read_hf_files(directory)
    if document is None:
        return _without_json(directory, files)
    model = _model(document, path)
    ids = _vocabulary_ids(model, path)
    tokens = collect_tokens(ids, document.get("added_tokens"), files)
    _check_parts(document, path)
    encoder = _encoder(document, _guarded(model, ids, tokens), tokens, path)
    before, after = read_frame(document.get("post_processor"), files.tokenizer_config, tokens.named_ids, str(path))
    found_as = encoder.plain.found_as
    texts = [found_as.get(token, text) for token, text in enumerate(tokens.texts)]
    vocabulary = hf_vocabulary(document.get("decoder"), replace(tokens, texts=texts), before, after, str(path))
    return Tokenizer(vocabulary, encoder, tokens.warnings)


def _without_json(directory: Path, files: HfFiles) -> Tokenizer:
    path = directory / "tokenizer.model"
    model = read_sentencepiece(path)
    if model is not None:
        return tokenizer_from_sentencepiece(model, files, path)
    found = next((name for name in _OTHERS if (directory / name).exists()), None)
    has = f"has {found}, {_OTHERS[found]}, but" if found else "has"
    raise ModelError(
        f"{directory} {has} no tokenizer.json; have transformers write one there with "
        "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY), or use a GGUF file of the model"
    )


def _model(document: Json, path: Path) -> dict[str, object]:
    model = document.get("model")
    if not isinstance(model, dict):
        raise ModelError(f"{path}: model is missing; get the file again")
    kind = model.get("type") or _guessed_kind(model)
    if kind not in MODELS:
        raise ModelError(
            f"{path}: model is of type {str(kind)[:40]!r}; supported: {', '.join(MODELS)}; use another model"
        )
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


def _vocabulary_ids(model: Json, path: Path) -> Mapping[str, int]:
    vocab = model.get("vocab")
    if model["type"] == "Unigram":
        entries = vocab if isinstance(vocab, list) else []
        texts = [entry[0] if isinstance(entry, list) and entry else None for entry in entries]
        vocab = {text: token for token, text in enumerate(texts)}
        if len(vocab) != len(texts):
            raise ModelError(f"{path}: model.vocab spells some token twice; get the file again")
    if not isinstance(vocab, dict) or not vocab:
        raise ModelError(f"{path}: model.vocab is missing or empty; get the file again")
    ids = vocab.values()
    if not all(type(token) is int for token in ids) or not all(isinstance(text, str) for text in vocab):
        raise ModelError(f"{path}: model.vocab is not a table of texts and ids; get the file again")
    if min(ids) < 0 or max(ids) >= MAX_TOKENS:
        raise ModelError(f"{path}: model.vocab has an id outside 0 to {MAX_TOKENS - 1:,}; get the file again")
    return vocab


def _check_parts(document: Json, path: Path) -> None:
    """The library checks the parts itself, but not what they can multiply."""
    todo: list[object] = [document.get("normalizer"), document.get("pre_tokenizer")]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            for key, value in part.items():
                limit = _MAX_REPLACEMENT if key in ("content", "prepend") else _MAX_PATTERN
                if isinstance(value, str) and len(value) > limit and key != "precompiled_charsmap":
                    raise ModelError(
                        f"{path}: {part.get('type')!s:.40} has a {key!s:.40} of {len(value):,} characters, above "
                        f"{limit:,}; use a model with a shorter one"
                    )
                todo.append(value)
        elif isinstance(part, list):
            todo += part


def _guarded(model: dict[str, object], ids: Mapping[str, int], tokens: HfTokens) -> Json:
    """The model with every control token under a name that no text can spell, because nobody can guess it."""
    hidden = {text: f"\0{secrets.token_hex(16)}{text}" for text in tokens.control if text in ids}
    if not hidden:
        return model
    guarded = dict(model)
    vocab = model["vocab"]
    if isinstance(vocab, list):
        guarded["vocab"] = [[hidden.get(entry[0], entry[0]), *entry[1:]] for entry in vocab]
    else:
        guarded["vocab"] = {hidden.get(text, text): token for text, token in ids.items()}
    unknown = model.get("unk_token")
    if isinstance(unknown, str):
        guarded["unk_token"] = hidden.get(unknown, unknown)
    merges = model.get("merges")
    if isinstance(merges, list):
        guarded["merges"] = [merge for merge in merges if not _leads_through(merge, hidden)]
    return guarded


def _leads_through(merge: object, hidden: Mapping[str, str]) -> bool:
    if isinstance(merge, str):
        left, _, right = merge.partition(" ")
    elif isinstance(merge, list) and len(merge) == 2:
        left, right = str(merge[0]), str(merge[1])
    else:
        return False
    return left in hidden or right in hidden or left + right in hidden


def _encoder(document: Json, model: Json, tokens: HfTokens, path: Path) -> AddedTokenEncoder:
    parts = {"normalizer": document.get("normalizer"), "pre_tokenizer": document.get("pre_tokenizer")}
    backend = _backend(parts, model, path)
    user_defined = [token for token in tokens.added.values() if token.text not in tokens.control]
    plain = _with_added(backend, user_defined, path)
    following = plain
    inner = _never_first(parts["pre_tokenizer"])
    if inner != parts["pre_tokenizer"]:
        other = _backend({**parts, "pre_tokenizer": inner}, {"type": "BPE", "vocab": {}, "merges": []}, path)
        other.model = backend.model
        following = _with_added(other, user_defined, path)
    flagged = [token for token in tokens.added.values() if token.special]
    return AddedTokenEncoder(
        plain,
        _with_added(backend, tokens.added.values(), path),
        following,
        tokens.control,
        frozenset(token.text for token in flagged if token.lstrip),
        frozenset(token.text for token in flagged if token.rstrip),
    )


def _backend(parts: Json, model: Json, path: Path) -> Backend:
    try:
        described = orjson.dumps({"version": "1.0", "added_tokens": [], **parts, "model": model})
    except orjson.JSONEncodeError as error:
        raise ModelError(f"{path}: the tokenizer is nested too deeply; get the file again") from error
    return build_backend(described, str(path))


def _never_first(part: object) -> object:
    """The pre-tokenizer for text that other text precedes: without the space in front of the first word only."""
    if isinstance(part, list):
        return [_never_first(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    changed = {key: _never_first(value) for key, value in part.items()}
    if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
        changed["prepend_scheme"] = "never"
    return changed


def _with_added(shared: Backend, added: Iterable[AddedToken], path: Path) -> AddedBackend:
    """A backend of its own that shares the model; the library hands out new ids for what it does not find there."""
    tokens = list(added)

    def refused(trouble: str) -> ModelError:
        return ModelError(f"{path}: the added tokens cannot be used: {trouble}; get the file again")

    with library_errors(refused):
        backend = Backend(shared.model)
        if shared.normalizer is not None:
            backend.normalizer = shared.normalizer
        if shared.pre_tokenizer is not None:
            backend.pre_tokenizer = shared.pre_tokenizer
        backend.add_tokens([_for_library(token) for token in tokens])
    given = [(own, token) for token in tokens if (own := backend.token_to_id(token.text)) is not None]
    return AddedBackend(
        backend,
        ids={own: token.id for own, token in given if own != token.id},
        found_as={token.id: backend.id_to_token(own) or token.text for own, token in given},
    )


def _for_library(token: AddedToken) -> LibraryToken:
    return LibraryToken(
        token.text,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
    )
