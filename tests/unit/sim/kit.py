"""A tiny model on a toy device, for simulations in tests."""

from __future__ import annotations

from plait.core.events import Event, Submitted
from plait.core.step import StepPlan
from plait.cost.hardware import HardwareSpec
from plait.model.config import ModelConfig
from plait.model.cost import Formats
from plait.model.families import build_program
from plait.model.ops import Activation
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL
from plait.sim.replica import ReplicaSpec

VOCAB = 1000
TINY = build_program(
    ModelConfig(
        family="llama",
        num_layers=2,
        hidden=64,
        ffn_hidden=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=VOCAB,
        max_positions=4096,
        norm_eps=1e-5,
        rope=RopeSpec(10000.0, 16, 4096),
        activation=Activation.SILU,
        layer_visibility=(CAUSAL,) * 2,
        tied_embeddings=True,
    )
)
TOKEN_BYTES = 2 * 2 * (16 + 16) * 2
DEVICE = HardwareSpec("toy", 1e9, 1e9, 10**9, 4, 2.0, 1e-3, 0.0)
SPEC = ReplicaSpec(TINY, Formats(), DEVICE, cache_bytes=4096 * TOKEN_BYTES, max_step_tokens=64, max_rows=8)


def plans(events: list[Event]) -> list[StepPlan]:
    return [event.plan for event in events if isinstance(event, Submitted)]
