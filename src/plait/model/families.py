"""Families: which readers and which program belong to which architecture name.

A new family is one file with an entry like those below, one line here, and its names in `plait.weights`.
"""

from __future__ import annotations

from plait.core.errors import ModelError
from plait.model.family import Family
from plait.model.gemma import GEMMA
from plait.model.gemma2 import GEMMA2
from plait.model.gemma3 import GEMMA3
from plait.model.gpt_oss import GPT_OSS
from plait.model.granite import GRANITE
from plait.model.llama import LLAMA
from plait.model.mistral import MISTRAL
from plait.model.mixtral import MIXTRAL
from plait.model.model_config import ModelConfig
from plait.model.olmo2 import OLMO2, OLMO3
from plait.model.phi3 import PHI3
from plait.model.program import Program
from plait.model.qwen2 import QWEN2
from plait.model.qwen3 import QWEN3
from plait.model.qwen3_moe import QWEN3_MOE
from plait.model.smollm3 import SMOLLM3
from plait.model.starcoder2 import STARCODER2

ALL_FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    PHI3,
    GEMMA,
    GEMMA2,
    GEMMA3,
    OLMO2,
    OLMO3,
    GRANITE,
    SMOLLM3,
    STARCODER2,
    MIXTRAL,
    QWEN3_MOE,
    GPT_OSS,
)
FAMILIES: dict[str, Family] = {family.name: family for family in ALL_FAMILIES}


def build_program(config: ModelConfig) -> Program:
    """The model as it is: layers with a window keep what they can see in a cache group of their own."""
    family = FAMILIES.get(config.family)
    if family is None:
        raise ModelError(f"architecture {config.family!r} is not supported; supported: {', '.join(FAMILIES)}")
    return family.program(config)
