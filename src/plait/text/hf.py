"""HF: the tokenizer of a model directory in the format of `transformers`.

Owns what of tokenizer.json goes to the `tokenizers` library and what is decided here: which tokens command the model,
what stands around a text, what tokens decode to. Invariant: plain text gets the ids that the library itself gives it,
and no text reaches a control token without `parse_special`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import orjson
from tokenizers import AddedToken as LibraryToken
from tokenizers import Tokenizer as Backend

from plait.core.errors import ModelError
from plait.text.encoders import AddedBackend, AddedTokenEncoder
from plait.text.hf_charsmap import charsmap_fault
from plait.text.hf_files import Json, read_tokenizer_json
from plait.text.hf_frame import read_frame
from plait.text.hf_model import guarded, read_model, vocabulary_ids
from plait.text.hf_sentencepiece import tokenizer_from_sentencepiece
from plait.text.hf_tokens import AddedToken, HfFiles, HfTokens, collect_tokens, read_hf_files
from plait.text.hf_vocabulary import hf_vocabulary
from plait.text.merging import build_backend, library_errors
from plait.text.rwkv_world import tokenizer_from_world
from plait.text.sentencepiece_model import read_sentencepiece
from plait.text.tokenizer import Tokenizer

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
    model = read_model(document, path)
    ids = vocabulary_ids(model, path)
    tokens = collect_tokens(ids, document.get("added_tokens"), files)
    _check_parts(document, path)
    encoder = _encoder(document, guarded(model, ids, tokens.control, path), tokens, path)
    before, after = read_frame(document.get("post_processor"), str(path))
    found_as = encoder.plain.found_as
    texts = [found_as.get(token, text) for token, text in enumerate(tokens.texts)]
    vocabulary = hf_vocabulary(document.get("decoder"), replace(tokens, texts=texts), before, after, str(path))
    return Tokenizer(vocabulary, encoder, tokens.warnings)


def _without_json(directory: Path, files: HfFiles) -> Tokenizer:
    path = directory / "tokenizer.model"
    model = read_sentencepiece(path)
    if model is not None:
        return tokenizer_from_sentencepiece(model, files, path)
    world = tokenizer_from_world(directory, files)
    if world is not None:
        return world
    found = next((name for name in _OTHERS if (directory / name).exists()), None)
    has = f"has {found}, {_OTHERS[found]}, but" if found else "has"
    raise ModelError(
        f"{directory} {has} no tokenizer.json; have transformers write one there with "
        "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY), or use a GGUF file of the model"
    )


def _check_parts(document: Json, path: Path) -> None:
    """The library checks the parts itself, but not what they can multiply."""
    todo: list[object] = [document.get("normalizer"), document.get("pre_tokenizer")]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            if part.get("type") == "Precompiled":
                _check_charsmap(part.get("precompiled_charsmap"), path)
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


def _check_charsmap(value: object, path: Path) -> None:
    """The library panics at one that is wrong, and says so on the standard error before anybody can stop it."""
    fault = charsmap_fault(value) if isinstance(value, str) else "it is no text"
    if fault is not None:
        raise ModelError(f"{path}: precompiled_charsmap cannot be used: {fault}; get the file again")


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
