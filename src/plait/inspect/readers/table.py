"""Table: which reader reads which `model_type`.

Owns the list of architectures that are understood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from plait.inspect.layers import Layer
from plait.inspect.readers import attention, states
from plait.model.facts import Facts

Reader = Callable[[Facts], list[Layer]]

_PLAIN = (
    *("llama", "gemma", "olmo", "olmo2", "olmoe", "glm", "glm4", "glm4_moe", "glm4v_text", "granite", "granitemoe"),
    *("granitemoeshared", "stablelm", "gpt_neox", "phi", "cohere", "arcee", "helium", "seed_oss", "ernie4_5"),
    *("ernie4_5_moe", "hunyuan_v1_dense", "internlm2", "internlm3", "nemotron", "apertus", "minimax_m2", "bitnet"),
    *("baichuan", "minicpm", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen2_vl_text", "qwen2_5_vl_text"),
)
_WINDOWED = ("mistral", "mixtral", "ministral", "phi3", "phimoe", "starcoder2", "mistral3_text", "ministral3")
_LATE = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl")
_LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "glm_moe_dsa")

READERS: Final[Mapping[str, Reader]] = MappingProxyType(
    dict.fromkeys(_PLAIN, attention.read_plain)
    | dict.fromkeys(_WINDOWED, attention.read_windowed)
    | dict.fromkeys(_LATE, attention.read_late_windows)
    | dict.fromkeys(_LATENT, attention.read_latent)
    | dict.fromkeys(("gemma2", "gpt_oss"), attention.alternating(2))
    | dict.fromkeys(("cohere2", "olmo3", "exaone4"), attention.alternating(4))
    | dict.fromkeys(("gemma3_text", "gemma3"), attention.alternating(6))
    | dict.fromkeys(("gemma3n_text", "gemma3n"), attention.read_shared)
    | dict.fromkeys(("gemma4_text", "gemma4"), attention.read_gemma4)
    | dict.fromkeys(("llama4_text", "llama4"), attention.read_chunked)
    | dict.fromkeys(("mllama_text_model", "mllama"), attention.read_cross)
    | dict.fromkeys(("mamba", "falcon_mamba"), states.read_mamba1)
    | dict.fromkeys(("bamba", "granitemoehybrid"), states.read_bamba)
    | dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), states.read_gated_delta
    )
    | dict.fromkeys(("minimax", "minimax_text_01"), states.read_lightning)
    | dict.fromkeys(("lfm2", "lfm2_moe"), states.read_short_conv)
    | {
        "smollm3": attention.read_no_rope_every,
        "mimo_v2_flash": attention.read_two_widths,
        "jamba": states.read_jamba,
        "mamba2": states.read_mamba2,
        "falcon_h1": states.read_falcon_h1,
        "nemotron_h": states.read_nemotron_h,
        "zamba2": states.read_zamba2,
        "kimi_linear": states.read_kimi_linear,
        "rwkv": states.read_rwkv4,
        "rwkv7": states.read_rwkv7,
        "recurrent_gemma": states.read_recurrent_gemma,
    }
)
