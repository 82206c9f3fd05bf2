"""Own file: whether a file may be replaced.

Owns the rule that Plait overwrites nothing but what it wrote itself, known by how it begins. Writes nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from plait.core.errors import UsageError


def check_replaceable(path: Path, beginning: bytes, option: str, kind: str) -> None:
    """`UsageError` unless nothing is at `path`, or an empty file, or one that starts with `beginning`.

    `option` is where the user named it, `kind` what it would have to be: "trace of Plait".
    """
    if not os.path.lexists(path):
        return
    if not path.is_file():
        raise UsageError(f"{option} {path} is no regular file; name a file that may be written")
    try:
        with path.open("rb") as file:
            start = file.read(len(beginning))
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be read: {error.strerror}; choose another file") from None
    if start not in (b"", beginning):
        raise UsageError(f"{option} {path} exists and is no {kind}; remove it, or choose another file")
