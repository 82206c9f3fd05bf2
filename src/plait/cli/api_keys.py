"""API keys: what `--api-key` and `--api-key-file` say, limits of keys among it.

Owns the form of a key file. Invariant: no message repeats a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.cli.serve_parts import listed
from plait.config.option import nearest
from plait.config.serve_options import ServeOptions
from plait.config.values import parse_positive
from plait.core.errors import UsageError
from plait.server.quotas import Quota

MAX_KEY_FILE_BYTES = 1 << 20

# As it is written -> the field.
_LIMITS = {
    "requests": "requests",
    "tokens": "tokens",
    "requests/minute": "requests_per_minute",
    "tokens/minute": "tokens_per_minute",
    "batches": "batches",
    "batch-lines": "batch_lines",
    "batch-tokens": "batch_tokens",
}


@dataclass(frozen=True, slots=True)
class ApiKey:
    key: str
    quota: Quota | None = None


def api_keys(options: ServeOptions) -> tuple[ApiKey, ...]:
    """Of both options; `UsageError` where one is given and holds none."""
    keys = tuple(ApiKey(key) for key in listed(options.api_key))
    if options.api_key is not None and not keys:
        # As of an empty file: it was meant to close the server.
        raise UsageError(f"--api-key {options.api_key!r} holds no key; give one, or leave it out for an open server")
    path = options.api_key_file
    return keys if path is None else (*keys, *_keys_of_file(path))


def _keys_of_file(path: Path) -> tuple[ApiKey, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_KEY_FILE_BYTES + 1).decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"--api-key-file {path}: {error.strerror}; give a readable file") from None
    except UnicodeDecodeError:
        raise UsageError(f"--api-key-file {path} is not UTF-8 text; write one key a line") from None
    lines = enumerate(text.splitlines(), 1)
    found = tuple(_key(path, number, line) for number, line in lines if line.strip() and not line.startswith("#"))
    if not found or len(text) > MAX_KEY_FILE_BYTES:
        # An empty file must not open the server to everyone.
        raise UsageError(f"--api-key-file {path} holds no keys, or more than {MAX_KEY_FILE_BYTES:,} bytes of them")
    if len({one.key for one in found}) < len(found):
        raise UsageError(f"--api-key-file {path} has a key twice; write each once, with all its limits")
    return found


def _key(path: Path, number: int, line: str) -> ApiKey:
    key, *words = line.split()
    limits: dict[str, int] = {}
    for word in words:
        name, is_limit, value = word.partition("=")
        where = f"--api-key-file {path}, line {number}"
        if not is_limit:
            raise UsageError(f"{where}: words behind a key are limits such as requests=8; a key has no blanks")
        if name not in _LIMITS or _LIMITS[name] in limits:
            known = nearest(name, _LIMITS) if name not in _LIMITS else "; write it once"
            raise UsageError(f"{where}: {name[:40]!r} is no further limit of {', '.join(_LIMITS)}{known}")
        try:
            limits[_LIMITS[name]] = parse_positive(value)
        except ValueError as error:
            raise UsageError(f"{where}: {name}={value[:40]}; {error}") from None
    return ApiKey(key, Quota(**limits) if limits else None)
