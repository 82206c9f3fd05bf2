"""A glance at a GGUF file: what it says of itself in the first lines of its header.

Owns the numbers that stand for quantisations of whole files. Reads no vocabulary and no tensor, so that a list of many
files costs little; whoever loads a model uses `gguf.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from plait.core.errors import ModelError
from plait.weights.gguf_header import HeaderCursor, MetaValue
from plait.weights.mapping import map_file

# The numbers of general.file_type.
_FILE_TYPES: Final = MappingProxyType(
    {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M"}
    | {13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS"}
    | {21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S"}
    | {29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4"}
)
_AFTER_FACTS: Final = "tokenizer."
_MOST_KEYS: Final = 256


@dataclass(frozen=True, slots=True)
class GgufGlance:
    kind: str
    """`model`, or what else it is: `adapter`, `mmproj`, ..."""
    architecture: str | None
    quantisation: str | None
    """What most of its weights are in, as far as the header says."""


def glance_at_gguf(path: Path) -> GgufGlance:
    """`ModelError` if the file is no GGUF file or ends within what is read."""
    mapped = map_file(path, "a .gguf file")
    if mapped[:4] != b"GGUF":
        raise ModelError(
            f"{path}: not a GGUF file (it begins with {mapped[:4]!r}, not b'GGUF'); give a .gguf model file"
        )
    cursor = HeaderCursor(path, mapped)
    cursor.position = 4
    cursor.u32("format version")
    cursor.u64("number of tensors")
    num_keys = cursor.u64("number of metadata keys")
    facts: dict[str, MetaValue] = {}
    # Vocabularies come last and are what costs time.
    for index in range(min(num_keys, _MOST_KEYS)):
        key = cursor.string(f"name of metadata key {index}")
        if key.startswith(_AFTER_FACTS):
            break
        facts[key] = cursor.value(f"metadata key {index}")
    kind, architecture, file_type = (facts.get(f"general.{key}") for key in ("type", "architecture", "file_type"))
    return GgufGlance(
        kind if isinstance(kind, str) else "model",
        architecture if isinstance(architecture, str) else None,
        _FILE_TYPES.get(file_type) if isinstance(file_type, int) else None,
    )
