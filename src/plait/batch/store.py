"""Store: the files and batches of a server, on the disk.

Owns one directory: uploaded and made files, a folder for every batch, and a database of what they are. Runs nothing.
Invariants: an object that a client was told of is on the disk; a file is whole before it has a row; tenants see their
own only; one process has the store open.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import orjson

from plait.api.calls import Endpoint
from plait.batch.output import sync_directory
from plait.batch.records import BatchFault, BatchRecord, BatchState, StoredFile
from plait.core.errors import PlaitError, RequestError

_FORMAT = 1
_SCHEMA = (
    "CREATE TABLE files (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL, "
    "bytes INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER, place INTEGER NOT NULL) STRICT",
    "CREATE TABLE batches (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, is_final INTEGER NOT NULL, record BLOB NOT NULL, "
    "place INTEGER NOT NULL) STRICT",
    f"PRAGMA user_version = {_FORMAT}",
)
MAX_LISTED = 10_000


class Store:
    """An open store. May be used by several threads."""

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self._connection = connection
        self._lock = threading.RLock()

    @classmethod
    def open(cls, folder: Path) -> Store:
        """Open or create. `PlaitError` if another server has it, or if it is none."""
        with _trouble_in_words(folder):
            for name in ("files", "batches"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(folder / "store.sqlite", isolation_level=None, check_same_thread=False)
            connection.text_factory = _as_far_as_it_is_text
            try:
                _prepare(connection, folder)
            except BaseException:
                connection.close()
                raise
        store = cls(folder, connection)
        store._remove_strays()
        return store

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def path(self, file: StoredFile) -> Path:
        return self.folder / "files" / file.id

    def incoming(self, file_id: str) -> Path:
        """Where the content of a file is written before the file exists."""
        return self.folder / "files" / f"{file_id}.incoming"

    def batch_folder(self, batch_id: str) -> Path:
        return self.folder / "batches" / batch_id

    def add_file(self, file: StoredFile) -> None:
        """The content lies whole at `incoming`; from now on the file exists."""
        row = (file.id, file.tenant, file.filename, file.purpose, file.num_bytes, file.created_at, file.expires_at)
        with self._use():
            os.replace(self.incoming(file.id), self.path(file))
            try:
                sync_directory(self.folder / "files")
                self._connection.execute(
                    "INSERT OR REPLACE INTO files VALUES "
                    "(?, ?, ?, ?, ?, ?, ?, (SELECT coalesce(max(place), 0) + 1 FROM files))",
                    row,
                )
            except BaseException:
                # Whoever brought it clears it away, so that a full disk is not kept full by what nobody was told of.
                os.replace(self.path(file), self.incoming(file.id))
                raise

    def write_file(self, file: StoredFile, lines: Iterable[str]) -> StoredFile:
        """Make a file of lines; returns it with its size."""
        path, num_bytes = self.incoming(file.id), 0
        try:
            with _trouble_in_words(self.folder), path.open("wb") as out:
                for line in lines:
                    num_bytes += out.write(line.encode() + b"\n")
                out.flush()
                os.fsync(out.fileno())
            made = replace(file, num_bytes=num_bytes)
            self.add_file(made)
        finally:
            path.unlink(missing_ok=True)
        return made

    def file(self, file_id: str, tenant: str, now: int) -> StoredFile:
        """`RequestError` 404 if this tenant has none of this name."""
        with self._use():
            row = self._connection.execute(
                f"{_FILES} WHERE id = ? AND tenant = ? AND (expires_at IS NULL OR expires_at > ?)",
                (file_id, tenant, now),
            ).fetchone()
        if row is None:
            raise not_found("file", file_id)
        return _file(row)

    def files(self, tenant: str, purpose: str | None, now: int) -> list[StoredFile]:
        """The newest first."""
        with self._use():
            rows = self._connection.execute(
                f"{_FILES} WHERE tenant = ?1 AND (?2 IS NULL OR purpose = ?2) "
                "AND (expires_at IS NULL OR expires_at > ?3) ORDER BY place DESC LIMIT ?4",
                (tenant, purpose, now, MAX_LISTED),
            ).fetchall()
        return [_file(row) for row in rows]

    def delete_file(self, file: StoredFile) -> None:
        with self._use():
            self._connection.execute("DELETE FROM files WHERE id = ?", (file.id,))
            self.path(file).unlink(missing_ok=True)

    def expired_files(self, now: int) -> list[StoredFile]:
        with self._use():
            rows = self._connection.execute(f"{_FILES} WHERE expires_at <= ?", (now,)).fetchall()
        return [_file(row) for row in rows]

    def add_batch(self, record: BatchRecord) -> None:
        with self._use():
            self.batch_folder(record.id).mkdir(exist_ok=True)
            try:
                self._connection.execute(
                    "INSERT INTO batches VALUES (?, ?, ?, ?, (SELECT coalesce(max(place), 0) + 1 FROM batches))",
                    (record.id, record.tenant, record.state.is_final, _bytes(record)),
                )
            except BaseException:
                with suppress(OSError):  # somebody else's content
                    self.batch_folder(record.id).rmdir()
                raise

    def update_batch(self, record: BatchRecord) -> None:
        with self._use():
            self._connection.execute(
                "UPDATE batches SET is_final = ?, record = ? WHERE id = ?",
                (record.state.is_final, _bytes(record), record.id),
            )

    def batch(self, batch_id: str, tenant: str) -> BatchRecord:
        with self._use():
            row = self._connection.execute(
                "SELECT record FROM batches WHERE id = ? AND tenant = ?", (batch_id, tenant)
            ).fetchone()
        if row is None:
            raise not_found("batch", batch_id)
        return _record(row[0])

    def batches(self, tenant: str) -> list[BatchRecord]:
        """The newest first."""
        return self._records("WHERE tenant = ? ORDER BY place DESC LIMIT ?", (tenant, MAX_LISTED))

    def unfinished_batches(self) -> list[BatchRecord]:
        """Everyone's, the oldest first."""
        return self._records("WHERE NOT is_final ORDER BY place", ())

    def _records(self, where: str, given: Iterable[object]) -> list[BatchRecord]:
        with self._use():
            rows = self._connection.execute(f"SELECT record FROM batches {where}", tuple(given)).fetchall()
        return [_record(row[0]) for row in rows]

    @contextmanager
    def _use(self) -> Iterator[None]:
        with self._lock, _trouble_in_words(self.folder):
            yield

    def _remove_strays(self) -> None:
        """Content of which nobody was told: its server was stopped before it was whole, or before its row was made.
        And what a batch worked with whose server was stopped before it had cleared away.
        """
        with self._use():
            known = {row[0] for row in self._connection.execute("SELECT id FROM files")}
            for path in (self.folder / "files").iterdir():
                if path.name not in known:
                    path.unlink(missing_ok=True)
            ended = self._connection.execute("SELECT id, record FROM batches WHERE is_final").fetchall()
            for batch_id, raw in ended:
                if self.batch_folder(batch_id).is_dir() and _record(raw).state is not BatchState.FAILED:
                    shutil.rmtree(self.batch_folder(batch_id), ignore_errors=True)


def not_found(what: str, name: str) -> RequestError:
    return RequestError(
        f"there is no {what} {name[:80]!r}", param="id", code="not_found", status=404, kind="not_found_error"
    )


_FILES = "SELECT id, tenant, filename, purpose, bytes, created_at, expires_at FROM files"


def _file(row: tuple[str, str, str, str, int, int, int | None]) -> StoredFile:
    return StoredFile(*row)


def _bytes(record: BatchRecord) -> bytes:
    return orjson.dumps(asdict(record))


def _record(raw: bytes) -> BatchRecord:
    try:
        fields = orjson.loads(raw)
        fields["endpoint"] = Endpoint(fields["endpoint"])
        fields["state"] = BatchState(fields["state"])
        fields["faults"] = tuple(BatchFault(**fault) for fault in fields["faults"])
        return BatchRecord(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise PlaitError(
            f"a batch in store.sqlite cannot be read ({error}); move the folder away, or choose another one with "
            "--batch-dir"
        ) from error


def _as_far_as_it_is_text(raw: bytes) -> str:
    """Damaged text becomes other text, instead of an error that quotes it."""
    return raw.decode(errors="replace")


def _check_whole(connection: sqlite3.Connection, folder: Path) -> None:
    """`PlaitError` for a database in which something was lost: content without a row would be taken for a stray."""
    found = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    if found != "ok":
        raise PlaitError(
            f"{folder}/store.sqlite is damaged ({' '.join(found.split())}); put a copy of it back that is whole, or "
            "choose another folder with --batch-dir"
        )


def _prepare(connection: sqlite3.Connection, folder: Path) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN IMMEDIATE")
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    is_empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    connection.execute("COMMIT")
    if not is_empty and found != _FORMAT:
        raise PlaitError(f"{folder}/store.sqlite is no store of this version; move it away, or choose another folder")
    if not is_empty:
        _check_whole(connection, folder)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    if is_empty:
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("COMMIT")


@contextmanager
def _trouble_in_words(folder: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            raise PlaitError(f"another server has {folder} open; choose another folder with --batch-dir") from error
        raise PlaitError(
            f"{folder} cannot be used: {error}; mend it, or choose another folder with --batch-dir"
        ) from error
    except UnicodeDecodeError as error:
        # SQLite quotes what it found, and damaged text is no text.
        raise PlaitError(f"{folder}/store.sqlite is damaged; choose another folder with --batch-dir") from error
    except OSError as error:
        raise PlaitError(
            f"{folder} cannot be used: {error.strerror or error}; make room or mend permissions, or choose another "
            "folder with --batch-dir"
        ) from error
