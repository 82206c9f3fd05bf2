"""Models: the shapes of models that papers measure, as programs without weights.

Owns which ones they are, and the number formats in which they are measured. Loads nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from plait.cost.density import DensityModel
from plait.inspect.programs import find_model
from plait.model.cost import Formats
from plait.model.program import Program

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
    return find_model("meta-llama/Llama-3.1-8B").program


@cache
def llama_70b() -> Program:
    return find_model("meta-llama/Llama-3.1-70B").program
