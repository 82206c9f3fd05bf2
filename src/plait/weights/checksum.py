"""Checksums: what a model is, by its bytes.

Owns the one digest that names model files everywhere (catalogue, fingerprint, batch output), sha256 in lower-case hex,
and the notes that save computing it again for a file that did not change.
Invariant: never more than a buffer of each file in memory, and a note is believed only for exactly the file (place,
size, time of change) that it was written for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from plait.core.errors import ModelError

NOTES: Final = "checksums"
"""Folder of the notes in the model cache."""
NOTED_BYTES: Final = 256 << 20
"""Smaller files are read again, which takes a fraction of a second."""
READERS: Final = 4
"""Files read at a time: a core computes some 2 GB a second, disks give as much to one reader as to more."""


def file_sha256(path: Path) -> str:
    """The sha256 of the file's bytes; about a third of a second for 100 MB."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions"
        ) from error


def model_sha256(paths: Sequence[Path], cache_dir: Path, noted_bytes: int = NOTED_BYTES) -> str:
    """The sha256 of a model: its file's; of several files that of the lines which `sha256sum` prints for them."""
    with ThreadPoolExecutor(READERS) as readers:
        digests = list(readers.map(lambda path: noted_sha256(path, cache_dir, noted_bytes), paths))
    if len(digests) == 1:
        return digests[0]
    lines = "".join(f"{digest}  {path.name}\n" for digest, path in zip(digests, paths, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


def noted_sha256(path: Path, cache_dir: Path, noted_bytes: int = NOTED_BYTES) -> str:
    """As `file_sha256`; of `noted_bytes` or more as noted in `cache_dir`, if the note is of this very file."""
    if not path.is_file() or path.stat().st_size < noted_bytes:
        return file_sha256(path)
    note = cache_dir / NOTES / (hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32] + ".json")
    before = _facts(path)
    try:
        noted = json.loads(note.read_bytes())
    except (OSError, ValueError, RecursionError):
        noted = None
    if isinstance(noted, dict) and isinstance(known := noted.pop("sha256", None), str) and noted == before:
        return known
    digest = file_sha256(path)
    if _facts(path) == before:
        _write(note, {**before, "sha256": digest})
    return digest


def _facts(path: Path) -> dict[str, str | int]:
    try:
        status = path.stat()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error}); fetch the model again") from error
    times = {"mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns}
    return {"path": str(path.absolute()), "bytes": status.st_size, "inode": status.st_ino, **times}


def _write(note: Path, facts: dict[str, str | int]) -> None:
    fresh = note.with_name(f"{note.name}.{os.getpid()}")
    # A note only saves time: a cache that cannot be written works without.
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(facts), encoding="ascii")
        fresh.replace(note)
