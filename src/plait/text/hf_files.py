"""HF files: the JSON files beside a model in the format of `transformers`, read within limits.

Owns reading them. Knows nothing about what they say. Invariant: only files of the names asked for are opened, none
larger than its limit, and what is not a JSON object of sound text is a `ModelError` naming the file.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path

import orjson

from plait.core.errors import ModelError
from plait.text.alphabet import lone_surrogate

MIB = 1024 * 1024
MAX_TOKENIZER_BYTES = 256 * MIB
"""The largest in use has 35 MB."""
MAX_CONFIG_BYTES = 16 * MIB
"""Those that list a few thousand added tokens have about 1 MB."""
MAX_TEMPLATE_BYTES = 4 * MIB

Json = Mapping[str, object]


def read_bytes(path: Path, limit: int) -> bytes | None:
    """The file's bytes, None where there is no such file."""
    try:
        # Reading a pipe or a device would wait for somebody to write.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelError(f"{path} is not a file; get the model again")
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}; make it readable") from error
    if len(raw) > limit:
        raise ModelError(f"{path} has more than {limit // MIB} MiB, too large for such a file; get the model again")
    return raw


def read_text(path: Path, limit: int) -> str | None:
    raw = read_bytes(path, limit)
    if raw is None:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8 text (byte {error.start}); get the file again") from error


def read_tokenizer_json(path: Path) -> Json | None:
    """A tokenizer.json, which may be large: by the faster reader."""
    raw = read_bytes(path, MAX_TOKENIZER_BYTES)
    if raw is None:
        return None
    try:
        return _object(orjson.loads(raw), path)
    except orjson.JSONDecodeError as error:
        raise ModelError(f"{path} is not valid JSON: {error}; get the file again") from error


def read_config(path: Path) -> Json:
    """One of the small files, empty where there is none. Numbers as Python's reader takes them: some hold 1e30."""
    text = read_text(path, MAX_CONFIG_BYTES)
    if text is None:
        return {}
    try:
        found = _object(json.loads(text), path)
        if lone_surrogate(json.dumps(found, ensure_ascii=False)):
            raise ModelError(f"{path} holds a string that is not valid Unicode; get the file again")
    except (ValueError, RecursionError) as error:
        shown = " ".join(str(error).split())[:100]
        raise ModelError(f"{path} is not valid JSON: {shown}; get the file again") from error
    return found


def _object(value: object, path: Path) -> Json:
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__} but must hold an object; get the file again")
    return value
