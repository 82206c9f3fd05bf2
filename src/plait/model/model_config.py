"""ModelConfig: the architecture facts of one model, whatever file they came from.

Owns the canonical names and what makes a config consistent. Families read nothing else; readers of files write it.
Invariant: a ModelConfig that was built is consistent; a family can write its program without a further check.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from plait.core.errors import ModelError
from plait.model.mixture_config import MixtureConfig
from plait.model.ops import Activation, NormKind
from plait.model.rope import RopeSpec
from plait.model.visibility import Visibility


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a family needs to write its program. Sizes in numbers, positions in tokens."""

    family: str
    num_layers: int
    hidden: int
    ffn_hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Tokens; the rows of the token tables behind them are `padding_rows`."""
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
    padding_rows: int = 0
    """Rows that make the token tables a rounder size. No token names them."""
    local_rope: RopeSpec | None = None
    """Of layers that do not see everything; None: `rope`, as all others."""
    unrotated_layers: tuple[int, ...] = ()
    """Layers whose queries and keys are not rotated."""
    norm_kind: NormKind = NormKind.RMS
    norm_offset: float = 0.0
    """What is added to norm weights: 1 where a file keeps them around zero."""
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    """Of what attention and MLP add to the residual."""
    attention_scale: float | None = None
    """Of a query with a key; None: 1 / sqrt(head_dim)."""
    attention_softcap: float | None = None
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    sinks: bool = False
    """A head may attend to nothing: its softmax has one more term."""
    mixture: MixtureConfig | None = None
    """Of layers whose MLP is a choice of experts; None: all layers have an MLP of their own."""

    @property
    def table_rows(self) -> int:
        """Rows of the embedding table and of the head."""
        return self.vocab_size + self.padding_rows

    def rope_of(self, layer: int) -> RopeSpec | None:
        """The rotary table of a layer; None: it rotates nothing."""
        if layer in self.unrotated_layers:
            return None
        is_local = self.local_rope is not None and self.layer_visibility[layer].size > 0
        return self.local_rope if is_local else self.rope

    def within(self, max_positions: int) -> ModelConfig:
        """The same model for sequences of at most so many tokens: where a rotary table has two sets of divisors, this
        decides between them.
        """
        limit = min(max_positions, self.max_positions)
        local = self.local_rope
        return replace(
            self,
            max_positions=limit,
            rope=replace(self.rope, max_positions=limit),
            local_rope=None if local is None else replace(local, max_positions=limit),
        )

    def __post_init__(self) -> None:
        fault = self._fault()
        if fault:
            raise ModelError(f"model of architecture {self.family}: {fault}; the file is damaged or not supported")

    def _fault(self) -> str | None:
        if self.num_heads % self.num_kv_heads:
            return f"{self.num_heads} attention heads do not share {self.num_kv_heads} KV heads evenly"
        if self.rope.rotary_dim % 2 or not 2 <= self.rope.rotary_dim <= self.head_dim:
            return (
                f"rotary dimension {self.rope.rotary_dim} must be even and at most the head dimension {self.head_dim}"
            )
        if len(self.layer_visibility) != self.num_layers:
            return f"{len(self.layer_visibility)} attention patterns for {self.num_layers} layers"
        return self.rope.fault()
