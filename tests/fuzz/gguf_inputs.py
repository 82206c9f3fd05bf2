"""GGUF inputs: a tiny model as bytes whose every number is known, and its metadata as values.

Owns a writer of its own, which can write what no library would. Knows nothing about what a reader does with it.
Invariant: unchanged, what it writes is a sound model file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from random import Random
from typing import Final

from tests.fuzz.mutations import STRANGE_TEXTS, Marked, Tree
from tests.unit.api.byte_text import BEGIN, CONTROL, END, TEMPLATE
from tests.unit.weights.gguf_bytes import ARRAY, BOOL, F32, F64, I64, STRING, U32, U64

from plait.model.config import GGUF_ARCHITECTURES
from plait.text.alphabet import ALPHABET
from plait.weights.gguf import FORMAT_OF_TYPE

ALIGNMENT: Final = 32
MERGES: Final = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "1 2", "Ã ©")
TOKENS: Final = (*ALPHABET, *CONTROL, *("".join(merge.split()) for merge in MERGES))
_NUMPY_KINDS: Final = {U32: 4, U64: 8, I64: 8}


def _merging_by_score() -> dict[str, Tree]:
    """A tokenizer of sentencepiece with as many tokens as the other."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"helowrd", "▁he", "hel", "ll"]
    texts = texts[: len(TOKENS)] + [f"▁{number}" for number in range(len(TOKENS) - len(texts))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(texts),
        "tokenizer.ggml.scores": [-float(place) for place in range(len(texts))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(texts) - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.chat_template": TEMPLATE,
    }


def metadata(random: Random) -> dict[str, Tree]:
    """Of a sound tiny model, now and then in another order, or of another architecture, whose tensors are not there."""
    arch = random.choice(list(GGUF_ARCHITECTURES)) if random.random() < 0.3 else "llama"
    values: dict[str, Tree] = {
        "general.architecture": arch,
        f"{arch}.block_count": 1,
        f"{arch}.embedding_length": 32,
        f"{arch}.feed_forward_length": 32,
        f"{arch}.attention.head_count": 2,
        f"{arch}.attention.head_count_kv": 1,
        f"{arch}.context_length": 64,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.rope.dimension_count": 16,
        f"{arch}.vocab_size": len(TOKENS),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": random.choice(("gpt-2", "llama-bpe", "qwen2", "smollm", "default")),
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.token_type": [1] * 256 + [3] * len(CONTROL) + [1] * len(MERGES),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": BEGIN,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.add_bos_token": bool(random.randrange(2)),
        "tokenizer.chat_template": TEMPLATE,
    }
    if random.random() < 0.3:
        kept = {key: value for key, value in values.items() if not key.startswith("tokenizer.")}
        values = kept | _merging_by_score()
    if arch != "llama" and random.randrange(2):
        scaling = random.choice(("linear", "yarn", "longrope", "none", "dynamic"))
        values |= {
            f"{arch}.rope.scaling.type": scaling,
            f"{arch}.rope.scaling.factor": 2.0,
            f"{arch}.attention.sliding_window": 16,
        }
    if random.random() < 0.2:
        items = list(values.items())
        random.shuffle(items)
        values = dict(items)
    return values


def tensors(random: Random) -> dict[str, tuple[tuple[int, ...], int]]:
    """Shape, outermost first, and type of every tensor of the model. Types of blocks of 32 or one, as rows are 32."""
    kinds = [number for number, known in FORMAT_OF_TYPE.items() if known.block_weights <= 32]
    rows = {"attn_q": 32, "attn_k": 16, "attn_v": 16, "attn_output": 32, "ffn_gate": 32, "ffn_up": 32, "ffn_down": 32}
    described: dict[str, tuple[tuple[int, ...], int]] = {
        "token_embd.weight": ((len(TOKENS), 32), random.choice(kinds)),
        "output_norm.weight": ((32,), 0),
        "blk.0.attn_norm.weight": ((32,), 0),
        "blk.0.ffn_norm.weight": ((32,), 0),
    }
    described |= {f"blk.0.{name}.weight": ((count, 32), random.choice(kinds)) for name, count in rows.items()}
    if random.random() < 0.2:
        described["rope_freqs.weight"] = ((8,), 0)
    if random.random() < 0.1:
        described[random.choice(STRANGE_TEXTS)] = ((2, 256), random.choice(list(FORMAT_OF_TYPE)))
    return described


def written(random: Random, values: Mapping[str, Tree], described: Mapping[str, tuple[tuple[int, ...], int]]) -> Marked:
    """The file, with the places of its lengths, counts, types and offsets, and of the borders of its parts."""
    file = Marked(bytearray(b"GGUF"))
    file.number(random.choice((2, 3, 3, 3)), 4)
    file.number(len(described), 8)
    file.number(len(values), 8)
    for key, value in values.items():
        file.border()
        _string(file, key)
        _value(file, value)
    contents = bytearray()
    for name, (shape, kind) in described.items():
        file.border()
        _string(file, name)
        file.number(len(shape), 4)
        for dimension in reversed(shape):
            file.number(dimension, 8)
        file.number(kind, 4)
        file.number(len(contents), 8)
        contents += _weights(random, shape, kind)
        contents += bytes(-len(contents) % ALIGNMENT)
    file.border()
    file.contents += bytes(-len(file.contents) % ALIGNMENT)
    file.border()
    file.contents += contents
    return file


def _weights(random: Random, shape: tuple[int, ...], kind: int) -> bytes:
    known = FORMAT_OF_TYPE[kind]
    count = 1
    for dimension in shape[:-1]:
        count *= dimension
    if kind == 0 and len(shape) == 1:
        return struct.pack("<f", 1.0) * shape[0]
    return random.randbytes(count * known.bytes_of(shape[-1]))


def _string(file: Marked, text: str) -> None:
    encoded = text.encode("utf-8", "surrogatepass")
    file.number(len(encoded), 8)
    file.contents += encoded


def _value(file: Marked, value: Tree) -> None:
    kind = _kind(value)
    file.number(kind, 4)
    _payload(file, kind, value)


def _kind(value: Tree) -> int:
    match value:
        case None:
            return BOOL
        case bool():
            return BOOL
        case int():
            return U32 if 0 <= value < 1 << 32 else U64 if value > 0 else I64
        case float():
            return F32 if value == 1e-5 or value == 10000.0 else F64
        case str():
            return STRING
        case _:
            return ARRAY


def _payload(file: Marked, kind: int, value: Tree) -> None:
    match value:
        case None | bool():
            file.contents.append(bool(value))
        case int():
            file.number(value, _NUMPY_KINDS[kind])
        case float():
            file.contents += struct.pack("<f" if kind == F32 else "<d", value)
        case str():
            _string(file, value)
        case _:
            _array(file, list(value))


def _array(file: Marked, values: list[Tree]) -> None:
    """Of one kind where that is possible, else of arrays of one value each, as the format has no mixed ones."""
    kinds = [_kind(value) for value in values]
    kind = max(kinds, default=U32)
    if kinds and len(set(kinds)) > 1 and not set(kinds) <= {U32, U64, I64}:
        kind, values = ARRAY, [[value] for value in values]
    file.number(kind, 4)
    file.number(len(values), 8)
    for value in values:
        _payload(file, kind, value)
