"""Mapping: a file of weights becomes bytes in memory, paged in when touched.

Owns the refusal of what is no regular file and the wording of what the operating system says.
Invariant: opening never waits, whatever the path leads to.
"""

from __future__ import annotations

import mmap
import stat
from pathlib import Path

from plait.core.errors import ModelError


def map_file(path: Path, wanted: str) -> mmap.mmap:
    """The whole file, read-only. `wanted` says in messages what should have been given."""
    try:
        status = path.stat()
        # Opening a pipe would wait for a writer for ever.
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path}: not a regular file; give the path of {wanted}")
        if status.st_size == 0:
            raise ModelError(f"{path}: the file is empty; fetch or convert it again")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions"
        ) from error
    except ValueError as error:  # A path with a NUL, or a file that was emptied between the two calls.
        raise ModelError(f"{str(path)!r}: cannot be read ({error}); check the path") from error
