"""Names on a model hub: what a user may write for a repository, a quantisation or a file in it.

Owns the grammar ORG/NAME, ORG/NAME:QUANTISATION and ORG/NAME/FILE, and what of a repository's files to fetch. Fetches
nothing.
Invariant: no part of a name leads out of a folder, and no file is chosen that could run anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from plait.core.errors import ModelError
from plait.weights.gguf_choice import GGUF, GgufChoice, choose_gguf, parts_of
from plait.weights.gguf_header import shown
from plait.weights.hf_layout import CONFIG, ENDING, INDEX, TEXT_FILES, is_plain_name, single_weights

PREFIX: Final = "hf:"
_PART: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}")
COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubName:
    repository: str
    quantisation: str | None = None
    file: str | None = None

    @property
    def text(self) -> str:
        """As a user writes it."""
        tail = f":{self.quantisation}" if self.quantisation else f"/{self.file}" if self.file else ""
        return self.repository + tail


def parse_hub_name(name: str) -> HubName | None:
    """None for what no repository can be called."""
    whole, colon, quantisation = name.removeprefix(PREFIX).partition(":")
    parts = whole.split("/")
    if len(parts) < 2 or not all(map(_is_part, parts[:2])) or not all(map(is_plain_name, parts[2:])):
        return None
    repository, file = "/".join(parts[:2]), "/".join(parts[2:])
    if (colon and not _is_part(quantisation)) or (colon and file) or (file and not file.endswith((GGUF, ENDING))):
        return None
    return HubName(repository, quantisation or None, file or None)


def check_revision(revision: str) -> str:
    if _REVISION.fullmatch(revision) is None or ".." in revision:
        raise ModelError(f"--revision is {shown(revision)}; give a branch, a tag or a commit of the repository")
    return revision


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Which files of a repository a model is read from."""

    opened: str
    """What to open: a GGUF or safetensors file, or an empty text for the directory."""
    texts: tuple[str, ...]
    weights: tuple[str, ...]
    """Empty where the texts have an index that says which."""


def model_files_of(name: HubName, listed: Iterable[str], place: str) -> HubFiles:
    """What the named model is read from among the files `listed`; `place` is what they are in, for messages."""
    there = [file for file in listed if all(map(is_plain_name, file.split("/")))]
    if name.file is not None:
        parts = parts_of(name.file)
        missing = [file for file in parts if file not in there]
        if missing:
            raise ModelError(f"{place}: no file {missing[0]} in it; {_held(there)}")
        return HubFiles(parts[0], () if name.file.endswith(GGUF) else _texts(there), parts)
    has_ggufs = any(file.endswith(GGUF) for file in there)
    has_tensors = any(file.endswith(ENDING) and "/" not in file for file in there)
    if name.quantisation is not None or (has_ggufs and not has_tensors):
        if not has_ggufs:
            raise ModelError(
                f"{place}: no {GGUF} files, so none in {name.quantisation}; leave that out; --quantize int8 or "
                "int4 saves memory too"
            )
        chosen = choose_gguf(there, name.quantisation, place, lambda choice: _written(name, choice))
        return HubFiles(chosen.first, (), chosen.files)
    weights = single_weights(there, place)
    if CONFIG not in there:
        raise ModelError(f"{place}: no {CONFIG} in it; give a model that transformers can load")
    if weights is None:
        return HubFiles("", (*_texts(there), INDEX), ())
    return HubFiles("", _texts(there), (weights,))


def _written(name: HubName, choice: GgufChoice) -> str:
    """How a user writes one of several."""
    if name.quantisation is None and choice.quantisation:
        return f"{name.repository}:{choice.quantisation}"
    return f"{name.repository}/{choice.first}"


def _held(there: Collection[str]) -> str:
    weights = sorted(file for file in there if file.endswith((GGUF, ENDING)))
    more = f" and {len(weights) - 8} more" if len(weights) > 8 else ""
    return f"there are {', '.join(weights[:8])}{more}" if weights else f"there are no {GGUF} or {ENDING} files"


def _texts(there: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in TEXT_FILES if name in there)


def _is_part(part: str) -> bool:
    return _PART.fullmatch(part) is not None and "--" not in part and ".." not in part
