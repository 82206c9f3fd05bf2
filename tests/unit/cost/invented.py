"""Models and shapes that tests of prices share."""

from __future__ import annotations

from dataclasses import replace

from plait.core.step import StepShape
from plait.cost.alpha import constant_alpha
from plait.cost.calibration import Calibration
from plait.cost.hardware import HardwareSpec
from plait.cost.solo import decode_shape, prefill_shape
from plait.model.config import ModelConfig
from plait.model.cost import Formats
from plait.model.families import build_program
from plait.model.ops import Activation
from plait.model.program import Program
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL


def llama(layers: int, hidden: int, ffn: int, heads: tuple[int, int], head_dim: int, vocab: int, tied: bool) -> Program:
    return build_program(
        ModelConfig(
            family="llama",
            num_layers=layers,
            hidden=hidden,
            ffn_hidden=ffn,
            num_heads=heads[0],
            num_kv_heads=heads[1],
            head_dim=head_dim,
            vocab_size=vocab,
            max_positions=131072,
            norm_eps=1e-5,
            rope=RopeSpec(10000.0, head_dim, 131072),
            activation=Activation.SILU,
            layer_visibility=(CAUSAL,) * layers,
            tied_embeddings=tied,
        )
    )


SMOLLM2 = llama(30, 576, 1536, (9, 3), 64, 49152, True)
LLAMA_8B = llama(32, 4096, 14336, (32, 8), 128, 128256, False)
LLAMA_70B = llama(80, 8192, 28672, (64, 8), 128, 128256, False)
BF16 = Formats(default_weight_bytes=2.0, default_cache_bytes=2.0, activation_bytes=2.0, attention_reuse=16.0)

ABOUT = Calibration(
    model="invented",
    calibrated_on="nowhere, never",
    evidence="simulated",
    num_steps=1,
    alpha=constant_alpha(),
    step_overhead_s=0.0,
    seq_overhead_s=0.0,
)


def bare(spec: HardwareSpec) -> HardwareSpec:
    return replace(spec, step_overhead_s=0.0, seq_overhead_s=0.0)


def both(tokens: int, rows: int, context: int) -> StepShape:
    """A chunk of a prompt and rows that decode."""
    return StepShape((*prefill_shape(tokens, context).chunks, *decode_shape(rows, context).chunks))
