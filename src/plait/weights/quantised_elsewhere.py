"""Checkpoints whose weights other programs have quantised: recognised, and refused by name.

Owns the keys by which config.json says so. Such weights are packed integers with scales beside them; read as plain
weights they would be nonsense.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from plait.core.errors import ModelError
from plait.weights.gguf_header import shown

_KEYS: Final = ("quantization_config", "compression_config", "quantization")
_SUPPORTED: Final = (
    "take the model that it was made from, with --quantize int8 or int4 if memory is short, or a GGUF file"
)


def refuse_quantised(config: Mapping[str, object], directory: Path) -> None:
    """`ModelError` if `config` says that the weights are quantised in a way of GPTQ, AWQ, FP8, bitsandbytes, ..."""
    for key in _KEYS:
        said = config.get(key)
        if not said:
            continue
        raise ModelError(f"{directory}: weights quantised by {_method(key, said)} are not supported; {_SUPPORTED}")


def _method(key: str, said: object) -> str:
    if key == "quantization":  # what MLX writes
        return "MLX"
    method = said.get("quant_method") or said.get("format") if isinstance(said, dict) else None
    if isinstance(said, dict) and method is None and (said.get("load_in_4bit") or said.get("load_in_8bit")):
        method = "bitsandbytes"
    return shown(method) if isinstance(method, str) else f"an unnamed method ({key} in config.json)"
