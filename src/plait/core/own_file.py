"""Own file: whether a file may be replaced.

Owns the rule that Plait overwrites nothing but what it wrote itself, known by how it begins, and whether there is a
place for a result that is long in the making. Writes nothing.
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


def check_writable(path: Path, option: str) -> None:
    """`UsageError`, before any work, if the system would not let a file be written at `path` after it."""
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"{option} {path} cannot be written: there is no folder {folder}; choose another file")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{option} {path} cannot be written: it is protected; choose another file")
