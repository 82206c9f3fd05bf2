"""GGUF under fire: whatever the bytes, a file is read or refused in one line, at once and in little memory."""

from __future__ import annotations

import math
import resource
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.unit.weights.gguf_bytes import (
    ARRAY,
    BOOL,
    F16_TENSOR,
    F32,
    F32_TENSOR,
    F64,
    I64,
    STRING,
    U8,
    U32,
    GgufBytes,
    array,
    key,
    string,
    tensor,
    u32,
    u64,
)

from plait.core.errors import ModelError
from plait.weights.gguf import read_gguf

MOST_BYTES_ALLOCATED = 8 << 20


def every_kind_of_value() -> bytes:
    parts = GgufBytes()
    parts.keys += [
        key("general.alignment", U32, u32(32)),
        key("u8", U8, b"\7"),
        key("bool", BOOL, b"\1"),
        key("i64", I64, u64(2**64 - 1)),
        key("f32", F32, u32(0x3F800000)),
        key("f64", F64, u64(0x3FF0000000000000)),
        key("tokens", ARRAY, array(STRING, [string(text) for text in ("a", "löwe", "", "<|end|>") * 25])),
        key("types", ARRAY, array(U32, [u32(number) for number in range(100)])),
        key("flags", ARRAY, array(BOOL, [b"\0", b"\1"] * 10)),
        key("nested", ARRAY, array(ARRAY, [array(U8, [b"\1", b"\2"]), array(STRING, [string("x")])])),
    ]
    parts.tensors.append(tensor("c", [2, 2, 2, 2], F16_TENSOR, 160))
    parts.tensors.append(tensor("d", [8], F32_TENSOR, 192))
    parts.contents = bytes(range(224))
    return parts.build()


def rewrite(path: Path, contents: bytes) -> None:
    """Into a new file each time: writing over an old one makes some file systems wait for the disk."""
    path.unlink(missing_ok=True)
    path.write_bytes(contents)


def is_read(path: Path) -> bool:
    """Whether the file is read. Anything but success or a one-line `ModelError` escapes and fails the test."""
    try:
        file = read_gguf(path)
    except ModelError as error:
        return not is_one_line_about(path, error)
    for entry in file.tensors.values():
        row_bytes = entry.format.bytes_of(entry.shape[-1])
        assert entry.raw().size == entry.num_bytes == math.prod(entry.shape[:-1]) * row_bytes
    return True


def is_one_line_about(path: Path, error: ModelError) -> bool:
    assert str(error).startswith(f"{path}: ")
    assert "\n" not in str(error)
    return True


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = every_kind_of_value()
    path = tmp_path / "cut.gguf"
    rewrite(path, whole)
    assert is_read(path)
    for num_bytes in range(len(whole)):
        rewrite(path, whole[:num_bytes])
        assert not is_read(path), num_bytes


def test_flipped_bytes_are_read_or_refused(tmp_path: Path) -> None:
    whole = np.frombuffer(every_kind_of_value(), dtype=np.uint8)
    path = tmp_path / "flipped.gguf"
    rng = np.random.default_rng(20)
    outcomes = []
    tracemalloc.start()
    for _ in range(1000):
        flipped = whole.copy()
        places = rng.integers(0, len(whole) - 224, size=rng.integers(1, 4))
        flipped[places] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256))], size=len(places))
        rewrite(path, flipped.tobytes())
        outcomes.append(is_read(path))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < MOST_BYTES_ALLOCATED
    assert 0.1 < np.mean(outcomes) < 0.9


@pytest.mark.parametrize("count", [2**16, 2**31, 2**32 - 1, 2**48, 2**63, 2**64 - 1])
@pytest.mark.parametrize("field", ["string", "array", "strings", "arrays", "dimension", "offset", "tensors", "keys"])
def test_a_small_file_with_a_huge_number_costs_nothing(tmp_path: Path, field: str, count: int) -> None:
    parts = GgufBytes()
    match field:
        case "string":
            parts.keys.append(key("k", STRING, u64(count)))
        case "array" | "strings" | "arrays":
            kind = {"array": U8, "strings": STRING, "arrays": ARRAY}[field]
            parts.keys.append(key("k", ARRAY, u32(kind) + u64(count)))
        case "dimension":
            parts.tensors[1] = tensor("b", [32, count], F32_TENSOR, 32)
        case "offset":
            parts.tensors[1] = tensor("b", [4], F32_TENSOR, count)
        case "tensors":
            parts.num_tensors = count
        case "keys":
            parts.num_keys = count
    path = tmp_path / "huge.gguf"
    path.write_bytes(parts.build())
    tracemalloc.start()
    assert not is_read(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


@pytest.mark.model
def test_the_default_model_cut_in_its_header_is_refused(tmp_path: Path, model_path: Path) -> None:
    with model_path.open("rb") as file:
        head = file.read(1_785_664)  # up to the first tensor
    path = tmp_path / "cut.gguf"
    rng = np.random.default_rng(21)
    before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for num_bytes in [0, 3, 4, 8, 23, 24, 25, *rng.integers(26, len(head), size=40).tolist(), len(head)]:
        rewrite(path, head[:num_bytes])
        assert not is_read(path), num_bytes
    after_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert after_bytes - before_bytes < 256 << 20


@pytest.mark.model
def test_the_default_model_with_flipped_bytes_is_read_or_refused(tmp_path: Path, model_path: Path) -> None:
    path = tmp_path / "flipped.gguf"
    with model_path.open("rb") as file:
        head = np.frombuffer(file.read(1_785_664), dtype=np.uint8)
    with path.open("wb") as file:
        file.truncate(model_path.stat().st_size)  # sparse: the weights are never read here
    rng = np.random.default_rng(22)
    outcomes = []
    for _ in range(30):
        flipped = head.copy()
        # Half of the hits among counts, keys and the tensor table, which are a small part of the header's bytes.
        near = rng.integers(0, 2000, size=2) if rng.integers(2) else len(head) - rng.integers(1, 20_000, size=2)
        flipped[near] = rng.integers(0, 256, size=2)
        with path.open("r+b") as file:
            file.write(flipped.tobytes())
        outcomes.append(is_read(path))
    assert True in outcomes
    assert False in outcomes
