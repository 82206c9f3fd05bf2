"""The layout of a model directory as `transformers` writes it: which of its files make the model.

Owns the names of those files and the order in which weight files win. Reads no tensor and fetches nothing; whether the
names come from a folder or from a hub's list makes no difference.
Invariant: a weight file is named by itself, without folders, so that an index cannot lead outside of its directory.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from plait.core.errors import ModelError
from plait.weights.gguf_header import shown
from plait.weights.json_text import read_json_file

CONFIG: Final = "config.json"
GENERATION_CONFIG: Final = "generation_config.json"
SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
TEXT_FILES: Final = (
    CONFIG,
    GENERATION_CONFIG,
    "additional_chat_templates/tool_use.jinja",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "chat_templates/tool_use.jinja",
    "merges.txt",
    "rwkv_vocab_v20230424.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""What a model is read from besides its weights, as far as it is there."""

ENDING: Final = ".safetensors"
MAX_SHARDS: Final = 10_000
SHARD: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?P<ending>safetensors|gguf)")
_ADAPTER: Final = ("adapter_config.json", "adapter_model.safetensors")
_PICKLES: Final = (".bin", ".pth", ".pt", ".ckpt")


def weight_files(directory: Path) -> tuple[Path, ...]:
    """The files that hold the tensors, in order; `ModelError` if that cannot be told or one is missing."""
    names = sorted(path.name for path in directory.iterdir())
    chosen = single_weights(names, str(directory))
    if chosen is not None:
        return (directory / chosen,)
    shards = tuple(directory / name for name in dict.fromkeys(shard_of_tensors(directory / INDEX).values()))
    missing = [shard.name for shard in shards if not shard.exists()]
    if missing:
        raise ModelError(
            f"{directory}: {missing[0]} is missing, one of {len(shards)} files with weights that {INDEX} names; "
            "fetch the model again"
        )
    return shards


def single_weights(names: Collection[str], place: str) -> str | None:
    """The one file with all weights among the `names` of a directory, or None where an index says which there are."""
    if SINGLE in names:
        return SINGLE
    if INDEX in names:
        return None
    if any(name in names for name in _ADAPTER):
        raise ModelError(
            f"{place}: a LoRA adapter, not a whole model; merge it into its base model (merge_and_unload in peft) and "
            "give the result"
        )
    others = sorted(name for name in names if name.endswith(ENDING) and "/" not in name)
    if len(others) == 1 and SHARD.fullmatch(others[0]) is None:
        return others[0]
    if others:
        raise ModelError(
            f"{place}: {len(others)} {ENDING} files ({', '.join(others[:3])}{', ...' if len(others) > 3 else ''}) and "
            f"neither {SINGLE} nor {INDEX} that says what they are; fetch the missing file, or give one file"
        )
    pickled = sorted(name for name in names if name.endswith(_PICKLES) and "/" not in name)
    if pickled:
        raise ModelError(
            f"{place}: weights only as {pickled[0]}, a pickle, which can run any program when it is read; take a "
            "revision with safetensors, or load it with transformers and save_pretrained it elsewhere"
        )
    raise ModelError(f"{place}: no weights in it; a model directory holds {SINGLE}, or {INDEX} and the files it names")


def shard_of_tensors(index: Path) -> dict[str, str]:
    """Tensor -> file, as an index file says."""
    found = read_json_file(index).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ModelError(f"{index}: weight_map is no table of tensors and files; the file is damaged, fetch it again")
    shards: dict[str, str] = {}
    for tensor, name in found.items():
        if not isinstance(name, str) or not is_plain_name(name) or not name.endswith(ENDING):
            raise ModelError(
                f"{index}: tensor {shown(tensor)} is said to be in {shown(str(name))}, no {ENDING} file of the "
                "same directory; the file is damaged or forged, fetch it again"
            )
        shards[tensor] = name
    num_shards = len(set(shards.values()))
    if num_shards > MAX_SHARDS:
        raise ModelError(f"{index}: names {num_shards:,} files; the limit is {MAX_SHARDS:,}, fetch the file again")
    return shards


def is_plain_name(name: str) -> bool:
    """A file's name and nothing else: no folder, no way up, nothing that a message could not show."""
    return (
        name.isprintable() and 0 < len(name) <= 255 and not name.startswith(".") and not set(name) & set('/\\:*?"<>|')
    )


def model_files(directory: Path, weights: Collection[Path]) -> tuple[Path, ...]:
    """Every file that a model is read from, sorted by name."""
    texts = [directory / name for name in TEXT_FILES if (directory / name).is_file()]
    return tuple(sorted({*weights, *texts}, key=lambda path: path.name))
