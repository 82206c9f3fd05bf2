"""Checksums: a model's name by its bytes, computed again only for a file that is another one."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from plait.core.errors import ModelError
from plait.weights import checksum
from plait.weights.checksum import model_sha256, noted_sha256


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose bytes were read, in order."""
    seen: list[str] = []
    real = checksum.file_sha256

    def noting(path: Path) -> str:
        seen.append(path.name)
        return real(path)

    monkeypatch.setattr(checksum, "file_sha256", noting)
    return seen


def test_one_file_is_its_checksum_and_several_are_what_sha256sum_prints(tmp_path: Path) -> None:
    paths = tuple(tmp_path / name for name in ("a.json", "b.safetensors"))
    for path in paths:
        path.write_bytes(path.name.encode())
    assert model_sha256(paths[:1], tmp_path) == hashlib.sha256(b"a.json").hexdigest()
    printed = subprocess.run(
        ["sha256sum", *(path.name for path in paths)], cwd=tmp_path, capture_output=True, check=True
    )
    assert model_sha256(paths, tmp_path) == hashlib.sha256(printed.stdout).hexdigest()
    assert model_sha256(paths[::-1], tmp_path) != model_sha256(paths, tmp_path)


def test_an_unchanged_large_file_is_read_once(tmp_path: Path, reads: list[str]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(1000))
    first = noted_sha256(path, tmp_path / "cache", 1000)
    assert noted_sha256(path, tmp_path / "cache", 1000) == first
    assert reads == ["weights"]
    path.write_bytes(bytes(999) + b"\1")
    changed = noted_sha256(path, tmp_path / "cache", 1000)
    assert changed == hashlib.sha256(bytes(999) + b"\1").hexdigest()
    # Another file in its place, with the same size and time of change.
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    (tmp_path / "other").write_bytes(bytes(1000))
    os.utime(tmp_path / "other", ns=times)
    (tmp_path / "other").replace(path)
    assert noted_sha256(path, tmp_path / "cache", 1000) == first
    assert len(reads) == 3


def test_small_files_leave_no_notes(tmp_path: Path, reads: list[str]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(1000))
    for _ in range(2):
        noted_sha256(path, tmp_path / "cache")
    assert reads == ["weights"] * 2
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"sha256": 7}', b"[" * 5000, b'{"sha256": "0"}'])
def test_a_damaged_note_is_not_believed(tmp_path: Path, note: bytes) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(1000))
    expected = noted_sha256(path, tmp_path / "cache", 1)
    (only,) = (tmp_path / "cache" / "checksums").iterdir()
    only.write_bytes(note)
    assert noted_sha256(path, tmp_path / "cache", 1) == expected


def test_a_cache_that_cannot_be_written_hinders_nobody(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(10))
    (tmp_path / "cache").touch()
    assert noted_sha256(path, tmp_path / "cache", 1) == hashlib.sha256(bytes(10)).hexdigest()


def test_a_file_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone: cannot be read \(No such file or directory\)"):
        model_sha256((tmp_path / "gone",), tmp_path)
