"""Directory inputs: config.json of every family, checkpoints of one file or several, tokenizers of every kind.

Owns the sound files; changes are made by `readers.py`. Knows nothing about what a reader does with them.
Invariant: unchanged, the files are those of a model.
"""

from __future__ import annotations

import base64
import json
import struct
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

from tests.fuzz.mutations import Marked, Tree, changed
from tests.unit.api.byte_text import BEGIN, CONTROL, END, TEMPLATE

from plait.text.alphabet import ALPHABET

CONFIGS_FILE: Final = Path(__file__).parents[1] / "data" / "goldens" / "families.json"
WORDS: Final = ("hello", "world", "the", "ing", "é", "中", "12", "naïve")
MERGES: Final = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("o", "r"))
HIDDEN: Final = 16
LAYER_SHAPES: Final = {
    "input_layernorm": (HIDDEN,),
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "post_attention_layernorm": (HIDDEN,),
    "mlp.gate_proj": (HIDDEN, HIDDEN),
    "mlp.up_proj": (HIDDEN, HIDDEN),
    "mlp.down_proj": (HIDDEN, HIDDEN),
}
NUM_ROWS: Final = 32
BITS: Final = {"F32": 32, "F16": 16, "BF16": 16, "I64": 64, "U8": 8, "F8_E4M3": 8}


@cache
def _configs() -> tuple[dict[str, Tree], ...]:
    return tuple(case["config"] for case in json.loads(CONFIGS_FILE.read_text(encoding="utf-8")))


def config(random: Random) -> dict[str, Tree]:
    """Of some family."""
    return dict(random.choice(_configs()))


def checkpoint_config() -> dict[str, Tree]:
    """Of the model whose weights are made here."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 1,
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": NUM_ROWS,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }


def shapes() -> dict[str, tuple[int, ...]]:
    return {
        "model.embed_tokens.weight": (NUM_ROWS, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        **{f"model.layers.0.{name}.weight": shape for name, shape in LAYER_SHAPES.items()},
    }


def header(random: Random, names: list[str]) -> tuple[dict[str, Tree], bytes]:
    """The table of a safetensors file and the bytes behind it."""
    table: dict[str, Tree] = {"__metadata__": {"format": "pt"}}
    contents = b""
    kind = random.choice(("F32", "F16", "BF16", "BF16"))
    for name in names:
        own = random.choice(list(BITS)) if random.random() < 0.02 else kind
        shape = shapes()[name]
        num_bytes = BITS[own] // 8
        for size in shape:
            num_bytes *= size
        table[name] = {
            "dtype": own,
            "shape": list(shape),
            "data_offsets": [len(contents), len(contents) + num_bytes],
        }
        contents += random.randbytes(num_bytes)
    return table, contents


def framed(text: bytes, contents: bytes) -> Marked:
    file = Marked()
    text += b" " * (-len(text) % 8)
    file.number(len(text), 8)
    file.border()
    file.contents += text
    file.borders += [8 + at for at, byte in enumerate(text) if byte in b",{}"]
    file.border()
    file.contents += contents
    return file


def tokenizer(random: Random) -> tuple[dict[str, Tree], dict[str, Tree]]:
    """tokenizer.json and tokenizer_config.json."""
    kind = random.choice(("bytes", "bytes", "metaspace", "unigram", "wordpiece", "words"))
    document = _KINDS[kind](random)
    document = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": _added(document), **document}
    if random.random() < 0.4:
        document["post_processor"] = _post_processor(random)
    settings: dict[str, Tree] = {
        "bos_token": CONTROL[0],
        "eos_token": CONTROL[1],
        "add_bos_token": bool(random.randrange(2)),
        "chat_template": TEMPLATE,
        "model_max_length": 64,
    }
    if random.random() < 0.2:
        settings["added_tokens_decoder"] = {
            str(token["id"]): {"content": token["content"], "special": True}
            for token in document["added_tokens"]  # type: ignore[union-attr, index, call-overload]
        }
    return document, settings


def _size(document: dict[str, Tree]) -> int:
    model = document["model"]
    return len(model["vocab"])  # type: ignore[index, arg-type, call-overload]


def _added(document: dict[str, Tree]) -> Tree:
    first = _size(document)
    return [
        {"id": first + place, "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for place, text in enumerate(CONTROL)
    ]


def _post_processor(random: Random) -> Tree:
    if random.randrange(2):
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    ids: Tree = {
        text: {"id": text, "ids": [number], "tokens": [text]}
        for text, number in zip(CONTROL, (BEGIN, END), strict=False)
    }
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": CONTROL[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": ids,
    }


def _bpe(vocabulary: list[str], **more: Tree) -> Tree:
    merged = [*dict.fromkeys([*vocabulary, *("".join(merge) for merge in MERGES)])]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "vocab": {text: token for token, text in enumerate(merged)},
        "merges": [list(merge) for merge in MERGES],
        **more,
    }


def _bytes(random: Random) -> dict[str, Tree]:
    cuts: Tree = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    pattern = random.choice((r"\p{L}+|\p{N}{1,3}|\s+", "(?i:'s|'t)| ?\\p{L}+", "(a+)+$", "[", ".*", ""))
    split: Tree = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    normalizer: Tree = random.choice(
        (None, {"type": "NFC"}, {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]})
    )
    return {
        "normalizer": normalizer,
        "pre_tokenizer": random.choice((cuts, {"type": "Sequence", "pretokenizers": [split, cuts]})),
        "post_processor": None,
        "decoder": cuts,
        "model": _bpe(list(ALPHABET)),
    }


def _metaspace(random: Random) -> dict[str, Tree]:
    letters = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"helowrdabc123"]
    replace: Tree = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": _bpe(letters, unk_token="<unk>", byte_fallback=True, fuse_unk=True),
    }


def _charsmap() -> str:
    """The smallest that does something: it makes an A an a."""
    units = [0] * 512
    units[0] = 256 << 10
    units[256 ^ ord("A")] = ord("A") | 1 << 8 | ord("A") << 10
    units[256] = 1 << 31
    raw = struct.pack("<I512I", 4 * len(units), *units) + b"a\0"
    return base64.b64encode(raw).decode()


def _changed_charsmap(random: Random) -> str:
    raw = changed(random, Marked(bytearray(base64.b64decode(_charsmap())), numbers=[(0, 4), (4, 4), (1024 + 4, 4)]))
    return base64.b64encode(raw).decode()


def _unigram(random: Random) -> dict[str, Tree]:
    entries: Tree = [["<unk>", 0.0], *([text, -float(at)] for at, text in enumerate(("▁", *WORDS, *"helowrd")))]
    space: Tree = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return {
        "normalizer": random.choice(
            (
                None,
                {"type": "Precompiled", "precompiled_charsmap": _charsmap()},
                {"type": "Precompiled", "precompiled_charsmap": _changed_charsmap(random)},
            )
        ),
        "pre_tokenizer": space,
        "post_processor": None,
        "decoder": space,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": entries, "byte_fallback": bool(random.randrange(2))},
    }


def _wordpiece(random: Random) -> dict[str, Tree]:
    texts = ("[UNK]", "[CLS]", *WORDS, *(f"##{word}" for word in WORDS))
    return {
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {text: token for token, text in enumerate(dict.fromkeys(texts))},
        },
    }


def _words(random: Random) -> dict[str, Tree]:
    return {
        "normalizer": {"type": "StripAccents"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "unk_token": "<unk>",
            "vocab": {text: token for token, text in enumerate(("<unk>", *WORDS))},
        },
    }


_KINDS: Final = {
    "bytes": _bytes,
    "metaspace": _metaspace,
    "unigram": _unigram,
    "wordpiece": _wordpiece,
    "words": _words,
}
