"""scripts/convert-rwkv: a file of rwkv.cpp becomes the model directory of the tests, byte for byte."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from plait.weights.safetensors import read_checkpoint

ROOT = Path(__file__).parents[3]
REAL = ROOT / "tests" / "data" / "rwkv7"
Floats = npt.NDArray[np.float32]
NAMES = (
    ("model.layers.", "blocks."),
    ("model.embeddings", "emb"),
    ("model.norm", "ln_out"),
    ("lm_head", "head"),
    ("attn_norm", "ln1"),
    ("ffn_norm", "ln2"),
    ("pre_norm", "ln0"),
    (".attn.", ".att."),
    ("g_norm", "ln_x"),
    ("r_proj", "receptance"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("o_proj", "output"),
    ("_lora.lora.0.weight", "1"),
    ("_lora.lora.2.weight", "2"),
    ("_lora.lora.2.bias", "0"),
)


def originals() -> dict[str, Floats]:
    """The tensors by rwkv.cpp's names, in the order of the real file's: the six mixes of a layer in one."""
    found: dict[str, Floats] = {}
    for name, tensor in read_checkpoint(REAL).tensors.items():
        array = tensor.format.dequantize(tensor.raw()).reshape(tensor.shape).astype(np.float32)
        for ours, theirs in NAMES:
            name = name.replace(ours, theirs)
        stem = name.rpartition(".x_")[0]
        if stem.endswith(".att"):
            found[f"{stem}.x_rwkvag"] = np.concatenate(
                [found.get(f"{stem}.x_rwkvag", np.empty((0, 1, 64), np.float32)), array.reshape(1, 1, -1)]
            )
        else:
            found[name] = array
    return found


def write(path: Path, tensors: Mapping[str, Floats], magic: int = 0x67676D66, kind: int = 0) -> None:
    parts = [struct.pack("<6i", magic, 101, 256, 64, 12, kind)]
    for name, array in tensors.items():
        dims = array.shape[::-1]
        parts.append(struct.pack(f"<{3 + len(dims)}i", len(dims), len(name), kind, *dims))
        parts += [name.encode(), array.astype("<f2" if kind == 1 else "<f4").tobytes()]
    path.write_bytes(b"".join(parts))


def converted(file: Path, to: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "convert-rwkv"), str(file), str(to)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_models_directory_comes_out_byte_for_byte(tmp_path: Path) -> None:
    write(tmp_path / "tiny.bin", originals())
    assert converted(tmp_path / "tiny.bin", tmp_path / "made").returncode == 0
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / "made" / name).read_bytes() == (REAL / name).read_bytes(), name


def test_numbers_that_are_no_bf16_are_kept_in_f32(tmp_path: Path) -> None:
    tensors = originals()
    tensors["emb.weight"] = tensors["emb.weight"] + np.float32(2.0**-20)
    write(tmp_path / "tiny.bin", tensors)
    assert converted(tmp_path / "tiny.bin", tmp_path / "made").returncode == 0
    read = read_checkpoint(tmp_path / "made").tensors["model.embeddings.weight"]
    assert read.format.name == "F32"
    assert np.array_equal(read.format.dequantize(read.raw()).reshape(256, 64), tensors["emb.weight"])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"magic": 7}, "magic 0x7 and version 101"),
        ({"kind": 8}, "tensor emb.weight is of number type 8"),
        ({"tensors": {"blocks.0.att.time_decay": np.zeros(3, np.float32)}}, "is none of RWKV-7"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, change: dict[str, object], fault: str) -> None:
    tensors = {"emb.weight": np.zeros((4, 4), np.float32)}
    write(tmp_path / "tiny.bin", **{"tensors": tensors, **change})  # type: ignore[arg-type]
    told = converted(tmp_path / "tiny.bin", tmp_path / "made")
    assert told.returncode == 1
    assert fault in told.stderr
    assert told.stderr.count("\n") == 1
    assert not (tmp_path / "made").exists()
