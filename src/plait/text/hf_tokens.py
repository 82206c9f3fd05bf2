"""HF tokens: which tokens a model in the format of `transformers` has, from all the files that say so.

Owns the order in which the files overrule each other. Knows nothing about encoding. Invariant: every text has one id
and every id one text, and no id is outside the model's table of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plait.core.errors import ModelError
from plait.text.hf_files import Json, read_config

MAX_TOKENS = 4_000_000
"""The largest vocabularies in use have about a million."""
MOST_UNUSED = 65_536
"""Ids without a token, where there are few tokens; models in use leave out some thousands."""

NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is recognised whole."""

    id: int
    text: str
    special: bool = False
    """It commands the model: never read from what a client wrote."""
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True)
class HfFiles:
    """What the small files beside a tokenizer say; an empty mapping for one that is not there."""

    directory: Path
    tokenizer_config: Json
    special_tokens_map: Json
    added_tokens: Json
    generation_config: Json
    config: Json


def read_hf_files(directory: Path) -> HfFiles:
    return HfFiles(
        directory,
        read_config(directory / "tokenizer_config.json"),
        read_config(directory / "special_tokens_map.json"),
        read_config(directory / "added_tokens.json"),
        read_config(directory / "generation_config.json"),
        read_config(directory / "config.json"),
    )


@dataclass(frozen=True, slots=True)
class HfTokens:
    """All tokens of a model."""

    texts: Sequence[str]
    """By id; empty for an id without a token."""
    added: Mapping[str, AddedToken]
    control: Mapping[str, int]
    named: Mapping[str, str]
    """What a chat template may name."""
    named_ids: Mapping[str, int]
    end_ids: Sequence[int]
    """What the files call an end of generation, the tokenizer's own first."""
    warnings: tuple[str, ...]


def collect_tokens(vocabulary: Mapping[str, int], listed: object, files: HfFiles) -> HfTokens:
    """Put together `vocabulary`, the `added_tokens` listed in tokenizer.json and what the other files say."""
    warnings: list[str] = []
    rows = _rows(files.config)
    added = {token.text: token for token in _added(vocabulary, listed, files)}
    named = dict(_named(files))
    for text, flags, by_name in _special(files):
        if text in added:
            # Its own flags stay, and a list does not make it special: `transformers` shows such tokens.
            added[text] = replace(added[text], special=added[text].special or by_name)
        elif text in vocabulary:
            added[text] = replace(
                _token({"content": text, **flags}, 0, files.directory, ""), id=vocabulary[text], special=True
            )
    last = max([*vocabulary.values(), -1])
    if rows is not None and last < rows:
        beyond = [text for text, token in added.items() if token.id >= rows]
        if beyond:
            warnings.append(f"the model has no row for the tokens {' '.join(beyond)[:80]}: they are left out")
        added = {text: token for text, token in added.items() if token.id < rows}
    texts = _by_id(vocabulary, added, rows or 0, files.directory)
    control = {text: token.id for text, token in added.items() if token.special and len(text) > 1}
    named_ids = {
        name: added[text].id if text in added else vocabulary[text]
        for name, text in named.items()
        if text in added or text in vocabulary
    }
    ends = [*([named_ids["eos_token"]] if "eos_token" in named_ids else []), *_ends(files, len(texts))]
    if not ends:
        warnings.append("no file names a token that ends an answer: answers end only by their length or a stop string")
    return HfTokens(texts, added, control, named, named_ids, ends, tuple(warnings))


def _added(vocabulary: Mapping[str, int], listed: object, files: HfFiles) -> Iterator[AddedToken]:
    """Every added token in the order in which one entry overrules another with the same text."""
    source = files.directory / "tokenizer.json"
    if listed is not None and not isinstance(listed, list):
        raise ModelError(f"{source}: added_tokens is a {type(listed).__name__} but must be a list; get the file again")
    known = set(vocabulary)
    for entry in listed or []:
        token = _token(entry, entry.get("id") if isinstance(entry, dict) else None, source, "added_tokens")
        known.add(token.text)
        yield replace(token, id=vocabulary.get(token.text, token.id))
    source = files.directory / "tokenizer_config.json"
    decoder = files.tokenizer_config.get("added_tokens_decoder")
    for key, entry in decoder.items() if isinstance(decoder, dict) else ():
        token = _token(entry, int(key) if key.isdecimal() and len(key) < 10 else None, source, "added_tokens_decoder")
        known.add(token.text)
        yield replace(token, id=vocabulary.get(token.text, token.id))
    source = files.directory / "added_tokens.json"
    for text, number in files.added_tokens.items():
        if text not in known:
            yield _token({"content": text}, number, source, "it")


def _token(entry: object, number: object, source: Path, place: str) -> AddedToken:
    text = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(text, str) or not text:
        raise ModelError(f"{source}: {place} holds {repr(entry)[:60]}, not a token; get the file again")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MAX_TOKENS:
        raise ModelError(
            f"{source}: {place} gives {text[:40]!r} the id {repr(number)[:20]}; ids are from 0 to {MAX_TOKENS - 1:,}; "
            "get the file again"
        )
    return AddedToken(number, text, **{flag: entry.get(flag) is True for flag in _FLAGS})


def _named(files: HfFiles) -> Iterator[tuple[str, str]]:
    for name in NAMES:
        value = files.tokenizer_config.get(name)
        text = _text_of(files.special_tokens_map.get(name) if value is None else value)
        if text is not None:
            yield name, text


def _special(files: HfFiles) -> Iterator[tuple[str, Json, bool]]:
    """The texts that the files call special, with the flags that they give them; whether by a name or in a list."""
    for source in (files.special_tokens_map, files.tokenizer_config):
        values = [(source.get(name), True) for name in NAMES]
        for name in _LISTS:
            several = source.get(name)
            texts = several if isinstance(several, list) else several.values() if isinstance(several, dict) else ()
            values += [(value, False) for value in texts]
        for value, by_name in values:
            text = _text_of(value)
            if text is not None:
                yield text, value if isinstance(value, dict) else {}, by_name


def _text_of(value: object) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _rows(config: Json) -> int | None:
    inner = config.get("text_config")
    rows = config.get("vocab_size", inner.get("vocab_size") if isinstance(inner, dict) else None)
    return rows if isinstance(rows, int) and 0 < rows <= MAX_TOKENS else None


def _by_id(vocabulary: Mapping[str, int], added: Mapping[str, AddedToken], rows: int, directory: Path) -> Sequence[str]:
    every = {**vocabulary, **{text: token.id for text, token in added.items()}}
    size = max([rows, *(token + 1 for token in every.values())])
    most = MOST_UNUSED + 4 * len(every)
    if size > most:
        # A small file must not take the memory of a large vocabulary.
        raise ModelError(
            f"{directory}: {len(every):,} tokens have ids up to {size - 1:,} (with the rows that config.json says); "
            f"the limit for so many is {most - 1:,}, get the model again"
        )
    texts = [""] * size
    for text, token in every.items():
        if texts[token]:
            raise ModelError(
                f"{directory}: tokens {texts[token][:40]!r} and {text[:40]!r} both have the id {token}; get it again"
            )
        texts[token] = text
    return texts


def _ends(files: HfFiles, num_tokens: int) -> Iterator[int]:
    for name, source in (("generation_config.json", files.generation_config), ("config.json", files.config)):
        value = source.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if token is None:
                continue
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < num_tokens:
                raise ModelError(
                    f"{files.directory / name}: eos_token_id is {repr(value)[:60]} but the vocabulary has tokens 0 to "
                    f"{num_tokens - 1}; get the file again"
                )
            yield token
