"""Trouble: whether what stopped a batch may pass by itself.

Owns the list of causes that a person can clear while the server runs: a full disk, a failing one, too many open files.
Everything else ends the batch.
"""

from __future__ import annotations

import errno
import sqlite3

_PASSING = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EROFS,
    errno.ESTALE,
)
_PASSING_IN_SQLITE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY)


def may_pass(trouble: BaseException) -> bool:
    """Judged by what raised it, however it was put into words since."""
    cause: BaseException | None = trouble
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _PASSING:
            return True
        if isinstance(cause, sqlite3.Error):
            return getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _PASSING_IN_SQLITE
        cause = cause.__cause__
    return False
