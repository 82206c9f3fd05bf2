"""Tensors of RWKV-7 by all the names that files give them: the same weights from new and old checkpoints and GGUF."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import orjson
import pytest

from plait.core.errors import ModelError
from plait.model.config import ModelConfig, config_from_gguf, config_from_hf
from plait.model.families import build_program
from plait.model.program import expected_weights
from plait.weights.gguf import read_gguf
from plait.weights.hf_names import load_hf_weights
from plait.weights.names import load_gguf_weights
from plait.weights.rwkv_names import RWKV7_GGUF_NAMES
from plait.weights.safetensors import read_checkpoint

Floats = npt.NDArray[np.float32]
REAL = Path(__file__).parents[2] / "data" / "rwkv7"
SHAPED = {"mix": (6, 1, 1, 64), "ffn_mix": (1, 1, 64)}
"""As llama.cpp's converter leaves them."""


def real() -> tuple[ModelConfig, dict[str, Floats]]:
    checkpoint = read_checkpoint(REAL)
    config = config_from_hf(checkpoint.config)
    table = load_hf_weights(checkpoint.tensors, expected_weights(build_program(config)), config, REAL, "0" * 64)
    return config, {name: table[name].dequantize() for name in table}


def as_gguf(path: Path, config: ModelConfig, weights: Mapping[str, Floats]) -> None:
    """Written anew from what the format means: by its names, with copies where the first layer has no such gate."""
    assert config.rwkv is not None
    ours = {ours[0]: theirs for theirs, ours in RWKV7_GGUF_NAMES.layer.items()}
    outside = {ours: theirs for theirs, ours in RWKV7_GGUF_NAMES.outside.items()}
    writer = gguf.GGUFWriter(path, "rwkv7")
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.ffn_hidden)
    writer.add_head_count(0)
    writer.add_layer_norm_eps(config.norm_eps)
    writer.add_wkv_head_size(config.head_dim)
    writer.add_decay_lora_rank(config.rwkv.decay)
    writer.add_iclr_lora_rank(config.rwkv.rate)
    writer.add_value_residual_mix_lora_rank(config.rwkv.value)
    writer.add_gate_lora_rank(config.rwkv.gate)
    writer.add_vocab_size(config.vocab_size)
    for name, array in weights.items():
        if name.startswith("layers."):
            _, layer, part = name.split(".")
            shaped = array.reshape(SHAPED.get(part, array.shape))
            writer.add_tensor(f"blk.{layer}.{ours[part]}", shaped)
            if layer == "0" and part.startswith("rate"):
                writer.add_tensor(f"blk.0.{ours[part.replace('rate', 'value')]}", shaped)
        else:
            writer.add_tensor(outside[name], array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_gives_the_weights_and_the_configuration_of_the_checkpoint(tmp_path: Path) -> None:
    config, weights = real()
    as_gguf(tmp_path / "tiny.gguf", config, weights)
    file = read_gguf(tmp_path / "tiny.gguf")
    assert config_from_gguf(file.metadata, file.tensors.keys()) == config
    table = load_gguf_weights(file, expected_weights(build_program(config)))
    for name, array in weights.items():
        assert np.array_equal(table[name].dequantize(), array), name


def rewritten(folder: Path, change: Mapping[str, str | None], join: bool = False) -> Path:
    """The real checkpoint with tensors renamed, left out, or the mixes of each layer as one."""
    raw = (REAL / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header, data = orjson.loads(raw[8 : 8 + size]), raw[8 + size :]
    tensors = {name: (entry["shape"], data[slice(*entry["data_offsets"])]) for name, entry in header.items()}
    if join:
        for layer in range(12):
            prefix = f"model.layers.{layer}.attn.x_"
            rows = b"".join(tensors.pop(prefix + letter)[1] for letter in "rwkvag")
            tensors[f"{prefix}x"] = ([6, 64], rows)
    described, chunks, at = {}, [], 0
    for name, (shape, content) in tensors.items():
        named = change.get(name, name)
        if named is not None:
            described[named] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(content)]}
            chunks.append(content)
            at += len(content)
    text = orjson.dumps(described)
    (folder / "config.json").write_bytes((REAL / "config.json").read_bytes())
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(chunks))
    return folder


def loaded(folder: Path) -> dict[str, Floats]:
    checkpoint = read_checkpoint(folder)
    config = config_from_hf(checkpoint.config)
    table = load_hf_weights(checkpoint.tensors, expected_weights(build_program(config)), config, folder, "0" * 64)
    return {name: table[name].dequantize() for name in table}


def test_an_older_checkpoint_has_the_mixes_of_a_layer_as_one(tmp_path: Path) -> None:
    _, weights = real()
    older = loaded(rewritten(tmp_path, {}, join=True))
    assert all(np.array_equal(older[name], weights[name]) for name in weights)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"model.layers.3.attn.x_w": None}, "are not six of one size"),
        ({"model.layers.3.attn.x_r": None}, "is not; the file does not hold the whole model"),
        ({"model.layers.3.attn.k_a": None}, "tensor 'layers.3.key_rate' is missing"),
        ({"model.layers.3.attn.k_a": "model.layers.3.attn.k_b"}, "unknown to the rwkv7 architecture|missing"),
    ],
)
def test_a_checkpoint_without_a_tensor_is_refused_by_its_name(
    tmp_path: Path, change: dict[str, str | None], fault: str
) -> None:
    with pytest.raises(ModelError, match=fault):
        loaded(rewritten(tmp_path, change))
