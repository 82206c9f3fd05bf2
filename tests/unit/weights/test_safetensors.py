"""Safetensors checkpoints: whole ones are read as the `safetensors` package wrote them, damaged ones are one line."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.e2e.tiny_checkpoint import (
    as_bytes,
    framed,
    safetensors_bytes,
    tiny_tensors,
    write_json,
    write_tiny_checkpoint,
)

from plait.core.errors import ModelError
from plait.weights.formats import BF16, F16, F32
from plait.weights.safetensors import Checkpoint, read_checkpoint, read_safetensors

TENSORS = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.array([0.1, -2], np.float32)}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path / "model")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path / "model", shards=3)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refused_file(tmp_path: Path, raw: bytes) -> str:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ModelError) as caught:
        read_safetensors(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


def file_of(entries: Mapping[str, object], num_bytes: int) -> bytes:
    return framed(json.dumps(entries).encode(), bytes(num_bytes))


def entry(dtype: object, shape: object, start: object, stop: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def values(checkpoint: Checkpoint) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {
        name: tensor.format.dequantize(tensor.raw()).reshape(tensor.shape)
        for name, tensor in checkpoint.tensors.items()
    }


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_file_of_the_package_is_read_to_the_bit(tmp_path: Path, dtype: str) -> None:
    written = {name: array.astype(dtype) for name, array in tiny_tensors().items()}
    save_file(written, tmp_path / "model.safetensors", metadata={"format": "pt"})
    held, others = read_safetensors(tmp_path / "model.safetensors")
    assert (held.keys(), others) == (written.keys(), {})
    for name, tensor in held.items():
        assert tensor.format is (F32 if dtype == "float32" else F16)
        assert tensor.shape == written[name].shape
        assert tensor.raw().tobytes() == written[name].tobytes()


def test_bfloat16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(safetensors_bytes(TENSORS, "BF16"))
    held, _ = read_safetensors(tmp_path / "x.safetensors")
    assert held["a"].format is BF16
    assert held["a"].format.dequantize(held["a"].raw()).tolist() == list(range(12))
    assert held["b"].raw().tobytes() == as_bytes(TENSORS["b"], "BF16")


def test_bytes_may_begin_anywhere(tmp_path: Path) -> None:
    for length in range(8):
        raw = safetensors_bytes(TENSORS, align=1)
        header = int.from_bytes(raw[:8], "little")
        (tmp_path / "x.safetensors").write_bytes(
            framed(raw[8 : 8 + header] + b" " * length, raw[8 + header :], align=1)
        )
        held, _ = read_safetensors(tmp_path / "x.safetensors")
        assert held["a"].format.dequantize(held["a"].raw()).tolist() == list(range(12))


def test_shards_are_one_checkpoint(directory: Path, tmp_path: Path) -> None:
    whole = values(read_checkpoint(directory))
    shards = read_checkpoint(write_tiny_checkpoint(tmp_path / "sharded", shards=3))
    assert [file.name for file in shards.files] == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert whole.keys() == shards.tensors.keys()
    for name, found in values(shards).items():
        np.testing.assert_array_equal(found, whole[name])


def test_a_file_stands_for_its_directory(sharded: Path, tmp_path: Path) -> None:
    alone = write_tiny_checkpoint(tmp_path / "alone")
    (alone / "model.safetensors").rename(alone / "other.safetensors")
    for path in (alone, alone / "other.safetensors"):
        assert [file.name for file in read_checkpoint(path).files] == ["other.safetensors"]
    assert len(read_checkpoint(sharded / "model-00002-of-00003.safetensors").files) == 3


def test_buffers_of_other_types_are_left_out_and_weights_in_them_refused(directory: Path) -> None:
    path = directory / "model.safetensors"
    bias = entry("BOOL", [4], 8, 12)
    path.write_bytes(file_of({"w": entry("F32", [2], 0, 8), "layers.0.attn.bias": bias}, 12))
    assert list(read_checkpoint(directory).tensors) == ["w"]
    path.write_bytes(file_of({"w": entry("F32", [2], 0, 8), "v": entry("F8_E4M3", [4], 8, 12)}, 12))
    assert refusal(directory) == (
        f"{directory}: tensor 'v' is in F8_E4M3; supported are F32, F16, BF16: take a revision in one of these"
    )


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "the file is empty"),
        (b"1234567", "7 bytes are no safetensors file"),
        ((2**63).to_bytes(8, "little") + b"{}", "the header claims 9,223,372,036,854,775,808 bytes but 2 are there"),
        (framed(b"{}", b""), "0 tensors"),
        (framed(b"[]", b""), "header: it holds a list, not a table"),
        (framed(b"{", b""), "header: not JSON (Expecting property name"),
        (framed(b'{"a\xff": 1}', b""), "header: byte 3 is not UTF-8"),
        (framed(b'{"a": NaN}', b""), "header: NaN is no number of JSON"),
        (framed(b'{"a": -Infinity}', b""), "header: -Infinity is no number of JSON"),
        (framed(b'{"a": 1e999}', b""), "header: the number '1e999' is too large"),
        (framed(b'{"a": ' + b"9" * 5000 + b"}", b""), "header: not JSON (Exceeds the limit"),
        (framed(b'{"a": 1, "a": 2}', b""), "header: the key 'a' appears twice"),
        (framed(b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""), "header: brackets are nested deeper than 64"),
        (framed(b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", b""), "header: brackets are nested deeper than 64"),
        (framed(b'{"a": [' + b"0," * 2_000_001 + b"0]}", b""), "header: it holds about 2,000,0"),
        (file_of({"a": 7}, 0), "tensor 'a' is described by a int"),
        (file_of({"a": {}}, 0), "tensor 'a' has no dtype"),
        (file_of({"a": entry("F32", [-1], 0, 4)}, 4), "tensor 'a' has the shape '[-1]'"),
        (file_of({"a": entry("F32", [1.0], 0, 4)}, 4), "tensor 'a' has the shape '[1.0]'"),
        (file_of({"a": entry("F32", [True], 0, 4)}, 4), "tensor 'a' has the shape '[True]'"),
        (file_of({"a": entry("F32", [2**60, 2**60], 0, 4)}, 4), "tensor 'a' has the shape"),
        (file_of({"a": entry("F32", [1] * 9, 0, 4)}, 4), "tensor 'a' has the shape"),
        (file_of({"a": entry("F32", "x", 0, 4)}, 4), "tensor 'a' has the shape 'x'"),
        (file_of({"a": entry("F32", [1], 4, 0)}, 4), "tensor 'a' has the data_offsets '[4, 0]'"),
        (file_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, 4), "tensor 'a' has the data_offsets"),
        (file_of({"a": entry("F32", [1], 0, 2**64)}, 4), "tensor 'a' has the data_offsets"),
        (file_of({"a": entry("F32", [2], 0, 8)}, 4), "tensor 'a' ends at byte 8 of 4"),
        (file_of({"a": entry("F32", [2], 0, 4)}, 4), "tensor 'a' takes 4 bytes but F32 of shape (2,) needs 8 bytes"),
        (file_of({"a": entry("F64", [2], 0, 8)}, 8), "tensor 'a' takes 8 bytes but F64 of shape (2,) needs 16 bytes"),
        (file_of({"a": entry("F3", [2], 0, 8)}, 8), "tensor 'a' has the unknown dtype 'F3'; known are F32, F16"),
        (file_of({"a": entry("F32", [1], 4, 8)}, 8), "4 bytes before tensor 'a' belong to no tensor"),
        (file_of({"a": entry("F32", [1], 0, 4)}, 8), "4 bytes at the end belong to no tensor"),
        (
            file_of({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, 12),
            "tensor 'b' at byte 4 overlaps tensor 'a'",
        ),
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_line(tmp_path: Path, raw: bytes, expected: str) -> None:
    found = refused_file(tmp_path, raw)
    assert found.startswith(expected) or found.startswith(f"header: {expected}")


def break_index(change: Callable[[dict[str, str]], object]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        document = json.loads((directory / INDEX).read_text())
        changed = change(document["weight_map"])
        write_json(directory / INDEX, document if changed is None else changed)

    return apply


FIRST = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda d: (d / "model-00002-of-00003.safetensors").unlink(), "model-00002-of-00003.safetensors is missing"),
        (break_index(lambda m: m.update({FIRST: "../x.safetensors"})), "'../x.safetensors', no .safetensors file"),
        (break_index(lambda m: m.update({FIRST: "/etc/passwd"})), "'/etc/passwd', no .safetensors file"),
        (break_index(lambda m: m.update({FIRST: ".x.safetensors"})), "no .safetensors file of the same directory"),
        (break_index(lambda m: m.update({FIRST: "a/x.safetensors"})), "no .safetensors file of the same directory"),
        (break_index(lambda m: m.update({FIRST: "pytorch_model.bin"})), "no .safetensors file of the same directory"),
        (break_index(lambda m: m.update({FIRST: 7})), "'7', no .safetensors file"),
        (break_index(lambda m: m.update({"more": m[FIRST]})), "tensor 'more' of model.safetensors.index.json is in"),
        (break_index(lambda m: {"weight_map": []}), "weight_map is no table"),
        (break_index(lambda m: {"weight_map": {}}), "weight_map is no table"),
        (break_index(lambda m: [m]), "it holds a list, not a table"),
        (lambda d: (d / INDEX).write_text("{"), "not JSON"),
        (
            lambda d: (d / "model-00003-of-00003.safetensors").write_bytes(safetensors_bytes({FIRST: TENSORS["a"]})),
            f"tensor '{FIRST}' is in another file too",
        ),
        (lambda d: (d / "config.json").unlink(), "no config.json, which says what the weights mean"),
        (lambda d: (d / "config.json").write_text('{"a": NaN}'), "NaN is no number"),
        (lambda d: (d / INDEX).unlink(), "3 .safetensors files (model-00001-of-00003.safetensors"),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_one_line(sharded: Path, damage: Callable[[Path], object], expected: str) -> None:
    damage(sharded)
    assert expected in refusal(sharded)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config says quant_method 'gptq'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config says quant_method 'awq'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config says quant_method 'fp8'"),
        ({"quantization_config": {"load_in_4bit": True}}, "quantization_config says quant_method 'bitsandbytes'"),
        ({"compression_config": {"format": "pack-quantized"}}, "compression_config says quant_method 'pack-quantized'"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "quantization says quant_method 'mlx'"),
        ({"quantization_config": [1]}, "quantization_config says a method without a name"),
    ],
)
def test_weights_that_others_quantised_are_refused_by_name(
    tmp_path: Path, config: dict[str, object], expected: str
) -> None:
    directory = write_tiny_checkpoint(tmp_path / "model", config=config)
    assert refusal(directory) == (
        f"{directory / 'config.json'}: {expected}; checkpoints that were quantised by another program are not "
        "supported; use the original in F32, F16 or BF16 (with --quantize), or a GGUF file"
    )


def test_pickles_and_adapters_are_refused_with_the_way_out(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    assert "weights only as pytorch_model.bin, a pickle, which can run any program" in refusal(directory)
    write_json(directory / "adapter_config.json", {})
    assert "a LoRA adapter, not a whole model; merge it into its base model" in refusal(directory)


def test_pipes_links_in_circles_and_folders_are_no_weights(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in refusal(directory)
    path.unlink()
    path.symlink_to(path)
    assert "cannot be read (Too many levels of symbolic links)" in refusal(directory)
    path.unlink()
    path.mkdir()
    assert "not a regular file" in refusal(directory)
    (directory / "config.json").unlink()
    os.mkfifo(directory / "config.json")
    assert "not a regular file" in refusal(directory)


def test_a_link_is_followed_as_caches_use_them(directory: Path, tmp_path: Path) -> None:
    (directory / "model.safetensors").rename(tmp_path / "blob")
    (directory / "model.safetensors").symlink_to(tmp_path / "blob")
    assert len(read_checkpoint(directory).tensors) == len(tiny_tensors())


def is_one_line_about(directory: Path, error: ModelError) -> bool:
    assert "\n" not in str(error)
    assert str(directory) in str(error)
    return True


def outcome(directory: Path) -> bool:
    """Whether it is read. Anything but success or one line escapes and fails the test."""
    try:
        checkpoint = read_checkpoint(directory)
    except ModelError as error:
        return not is_one_line_about(directory, error)
    for tensor in checkpoint.tensors.values():
        assert tensor.raw().size == tensor.num_bytes
    return True


def test_files_cut_anywhere_are_refused(directory: Path) -> None:
    raw = safetensors_bytes(TENSORS)
    path = directory / "model.safetensors"
    for num_bytes in range(len(raw)):
        path.unlink()
        path.write_bytes(raw[:num_bytes])
        assert not outcome(directory)


@pytest.mark.parametrize("name", ["model-00001-of-00003.safetensors", INDEX, "config.json"])
def test_thousands_of_changed_bytes_are_read_or_refused(sharded: Path, name: str) -> None:
    path = sharded / name
    whole = np.frombuffer(path.read_bytes()[:3000], np.uint8)
    rest = path.read_bytes()[3000:]
    random = np.random.default_rng(len(name))
    marks = np.frombuffer(b'{}[]":,0919eE-+.\\\x00\xff', np.uint8)
    outcomes = []
    tracemalloc.start()
    for attempt in range(1000):
        if attempt == 100:  # enough to see what it takes, which is slow to measure
            _, peak_bytes = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak_bytes < 4 << 20
        changed = whole.copy()
        places = random.integers(0, len(whole), random.integers(1, 4))
        changed[places] = random.choice(marks, len(places))
        path.unlink()
        path.write_bytes(changed.tobytes() + rest)
        outcomes.append(outcome(sharded))
    assert 0.01 < np.mean(outcomes) < 0.99
