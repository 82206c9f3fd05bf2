"""Models: the shapes of models that papers measure, as programs without weights.

Owns their numbers, which are those of the public configurations. Loads nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from plait.cost.density import DensityModel
from plait.model.config import ModelConfig
from plait.model.cost import Formats
from plait.model.families import build_program
from plait.model.ops import Activation
from plait.model.program import Program
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL

BF16 = Formats(default_weight_bytes=2.0, default_cache_bytes=2.0, activation_bytes=2.0)

BF16_NEAR_CACHE = replace(BF16, attention_reuse=13.0)
"""With keys that blocks of one KV head read together through the L2 cache: 108 SMs at work on 8 KV heads."""

LLAMA_8B_PARAMETERS = 8.03e9
LLAMA_8B_ON_A100 = DensityModel(
    LLAMA_8B_PARAMETERS, kv_width=1024, num_layers=32, flops_per_s=312e12, bytes_per_s=2.039e12
)
"""BlendServe's model and device. The width of keys is that of all heads together; with one head's, as the paper words
it, its own numbers do not come out.
"""


@cache
def llama_8b() -> Program:
    return _llama(layers=32, hidden=4096, ffn=14336, heads=32)


@cache
def llama_70b() -> Program:
    return _llama(layers=80, hidden=8192, ffn=28672, heads=64)


def _llama(layers: int, hidden: int, ffn: int, heads: int) -> Program:
    """Llama 3.1: 8 KV heads of 128 numbers."""
    return build_program(
        ModelConfig(
            family="llama",
            num_layers=layers,
            hidden=hidden,
            ffn_hidden=ffn,
            num_heads=heads,
            num_kv_heads=8,
            head_dim=128,
            vocab_size=128256,
            max_positions=131072,
            norm_eps=1e-5,
            rope=RopeSpec(500000.0, 128, 131072),
            activation=Activation.SILU,
            layer_visibility=(CAUSAL,) * layers,
            tied_embeddings=False,
        )
    )
