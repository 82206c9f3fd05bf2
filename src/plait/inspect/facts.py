"""Facts: what is known about a model without its weights.

Owns `ModelFacts` and the trouble of those who lack some. Knows no file format; readers fill it, reports read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.inspect.layers import Layer, NumberType


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers in the weights, and those that one token is multiplied with."""

    total: int
    active: int
    """Without the experts that a token is not sent to, and without the embedding table, which is only looked up."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    name: str
    family: str
    """As the file calls its architecture."""
    source: str
    """Where the facts were read."""
    num_layers: int
    hidden: int
    layers: tuple[Layer, ...]
    """What is kept, one entry for each layer and kind of memory. Layers that keep nothing have none."""
    max_tokens: int | None
    """The longest sequence that the model was made for; None: the file does not say."""
    attention_width: int = 0
    """Query columns of one layer of attention: what a token pays for each key that it looks at."""
    vocab_size: int = 0
    numbers: NumberType = NumberType.BF16
    """Of weights and states as published."""
    parameters: Parameters | None = None
    weight_bytes: int | None = None
    """Of the file, in its own formats."""
    formats: tuple[tuple[str, int, int], ...] = ()
    """(format, numbers, bytes) of the file's tensors, the largest first."""
    parts: tuple[tuple[str, int, int], ...] = ()
    """(part of the model, numbers, bytes), in the order of a token's way through it."""
    refusal: str | None = None
    """Why Plait does not serve the model; "" if it does; None: not known, because not all of the file is."""
