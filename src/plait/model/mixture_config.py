"""MixtureConfig: the facts of layers whose MLP is a choice of experts.

Owns their names and limits. Which files say so, and how a row's experts are weighed, is a family's business.
Invariant: a row never chooses more experts than there are.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.errors import ModelError
from plait.model.ops import ClampedSwish

MAX_EXPERTS = 4096
"""Far beyond any model. Numbers of experts are exact in float32."""


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """Every row of such a layer goes through `per_token` of `experts` gated MLPs of `ffn_hidden` columns."""

    experts: int
    per_token: int
    ffn_hidden: int
    normalize: bool = True
    """The weights of a row's experts sum to 1."""
    bias: bool = False
    """Router and experts have biases."""
    clamped: ClampedSwish | None = None
    """What gates, where it is not the model's activation."""
    dense_layers: tuple[int, ...] = ()
    """Layers that have an MLP of their own, as wide as the model's `ffn_hidden`."""

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.experts:
            raise ModelError(
                f"{self.per_token} experts for a token of {self.experts}; the file is damaged or not supported"
            )
