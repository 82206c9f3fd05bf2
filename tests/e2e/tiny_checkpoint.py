"""The made-up model of `tiny_model.py` as a directory that `transformers` could have written: the same weights.

The bytes of its files are made here, so that a test can break each of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tests.e2e.tiny_model import (
    CONTEXT,
    FFN,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    NUM_TOKENS,
    TWO_NULS,
    Floats,
    tiny_arrays,
)
from tests.unit.api.byte_text import BEGIN, CONTROL, END, TEMPLATE

from plait.text.alphabet import ALPHABET
from plait.weights.names import half_split_order

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
JsonLike = Mapping[str, object]


def write_tiny_checkpoint(
    directory: Path,
    *,
    dtype: str = "F32",
    shards: int = 1,
    table_rows: int = NUM_TOKENS,
    config: JsonLike | None = None,
) -> Path:
    """Write the model into a new directory and return it. `config` is added to config.json."""
    directory.mkdir(parents=True)
    write_json(directory / "config.json", {**tiny_config(table_rows), **(config or {})})
    write_json(directory / "generation_config.json", {"eos_token_id": [END], "temperature": 0.3})
    write_json(directory / "tokenizer.json", _tokenizer())
    special = {"bos_token": CONTROL[0], "eos_token": CONTROL[1], "add_bos_token": False, "add_eos_token": False}
    write_json(directory / "tokenizer_config.json", {**special, "chat_template": TEMPLATE})
    tensors = tiny_tensors(table_rows)
    names = list(tensors)
    if shards == 1:
        (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors, dtype))
        return directory
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        held = names[number::shards]
        (directory / file).write_bytes(safetensors_bytes({name: tensors[name] for name in held}, dtype))
        weight_map.update(dict.fromkeys(held, file))
    total = sum(array.nbytes for array in tensors.values())
    write_json(
        directory / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}
    )
    return directory


def tiny_tensors(table_rows: int = NUM_TOKENS) -> dict[str, Floats]:
    """The weights by the names of `transformers`, q and k in its row order."""
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}
    tensors = {}
    for name, array in tiny_arrays(table_rows).items():
        if name == "token_embd":
            tensors["model.embed_tokens.weight"] = array
        elif name == "output_norm":
            tensors["model.norm.weight"] = array
        else:
            _, layer, part = name.split(".")
            rows = array[half_split_order(heads[part], len(array))] if part in heads else array
            tensors[f"model.layers.{layer}.{_NAMES[part]}.weight"] = rows
    return tensors


def safetensors_bytes(tensors: Mapping[str, Floats], dtype: str = "F32", *, align: int = 8) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, array in tensors.items():
        raw = as_bytes(array, dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    return framed(json.dumps(header).encode(), body, align=align)


def framed(header: bytes, body: bytes, *, align: int = 8) -> bytes:
    header += b" " * (-len(header) % align)
    return len(header).to_bytes(8, "little") + header + body


def as_bytes(array: Floats, dtype: str) -> bytes:
    if dtype == "BF16":
        bits = array.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
    return array.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def tiny_config(table_rows: int = NUM_TOKENS) -> dict[str, object]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": table_rows,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": BEGIN,
        "eos_token_id": END,
    }


def _tokenizer() -> dict[str, object]:
    vocabulary: Sequence[str] = [*ALPHABET, *CONTROL, TWO_NULS]
    cuts = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {"id": 256 + place, "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for place, text in enumerate(CONTROL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": cuts,
        "post_processor": None,
        "decoder": cuts,
        "model": {
            "type": "BPE",
            "vocab": {text: token for token, text in enumerate(vocabulary)},
            "merges": [list(TWO_NULS)],
        },
    }
