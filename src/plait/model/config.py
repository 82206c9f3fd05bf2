"""ModelConfig: the architecture facts of one model, whatever file they came from.

Owns the canonical names and their limits. `hf_config` and `gguf_config` read the two file forms into it; families read
only this. Invariant: a ModelConfig that was built has passed `_check`: every fact is in a range in which a program can
be written.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.model.ops import Activation
from plait.model.rope import RopeSpec
from plait.model.visibility import Visibility


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a family needs to write its program. Sizes in elements, positions in tokens."""

    family: str
    num_layers: int
    hidden: int
    ffn_hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    """Longest sequence the model was made for; rope tables end there."""
    norm_eps: float
    rope: RopeSpec
    activation: Activation
    layer_visibility: tuple[Visibility, ...]
    """What each layer sees: one entry per layer."""
    tied_embeddings: bool
    """The head's matrix is the embedding table."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
