"""A model made for measuring the balance of computing and cache traffic: seeded weights, bytes as tokens, no torch.

Multi-head attention without grouping over a cache of f32 makes a decode row read 16 KiB for each token before it, while
6.4 million parameters make a token cheap: requests from long prompts with short answers to the other way round lie on
both sides of density 1 on a processor. Its answers mean nothing, but they are the same in every run.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

LAYERS, HIDDEN, FFN, HEADS, CONTEXT, SEED = 8, 256, 704, 4, 32_768, 10
CONTROL = ("<|begin|>", "<|end|>")
NUM_TOKENS = 256 + len(CONTROL)
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def write_balance_model(folder: Path) -> Path:
    """A directory as `transformers` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": NUM_TOKENS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 256,
        "eos_token_id": 257,
    }
    ends = {"bos_token": CONTROL[0], "eos_token": CONTROL[1], "add_bos_token": False, "add_eos_token": False}
    _write(folder / "config.json", config)
    _write(folder / "tokenizer.json", _tokenizer())
    _write(folder / "tokenizer_config.json", {**ends, "chat_template": TEMPLATE})
    (folder / "model.safetensors").write_bytes(_weights())
    return folder


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _weights() -> bytes:
    random = np.random.default_rng(SEED)

    def drawn(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.05).astype("<f4")

    tensors = {"model.embed_tokens.weight": drawn(NUM_TOKENS, HIDDEN), "model.norm.weight": np.ones(HIDDEN, "<f4")}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for part in "qkvo":
            tensors[f"{name}.self_attn.{part}_proj.weight"] = drawn(HIDDEN, HIDDEN)
        for part, rows, columns in (("gate", FFN, HIDDEN), ("up", FFN, HIDDEN), ("down", HIDDEN, FFN)):
            tensors[f"{name}.mlp.{part}_proj.weight"] = drawn(rows, columns)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = np.ones(HIDDEN, "<f4")
    header, offset = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + b"".join(array.tobytes() for array in tensors.values())


def _tokenizer() -> dict[str, object]:
    cuts = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": 256 + place, "content": text, "special": True, **flags} for place, text in enumerate(CONTROL)]
    alphabet = [_letter(byte) for byte in range(256)]
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
            "vocab": {text: token for token, text in enumerate([*alphabet, *CONTROL])},
            "merges": [],
        },
    }


def _letter(byte: int) -> str:
    """How byte-level vocabularies write a byte: printable ones as they are, the others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in plain:
        return chr(byte)
    return chr(0x100 + sum(other not in plain for other in range(byte)))
