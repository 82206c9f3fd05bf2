"""Programs: what a model computes, from its configuration alone, for those who price it without weights.

Owns the way from what the user typed to a `Program` and the bytes of its weights. What Plait cannot build is refused in
the words of the reader that could not.
Invariant: of a known model the program has exactly as many numbers as were published; otherwise it is not the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import ModelError
from plait.inspect.facts import ModelFacts
from plait.inspect.known import known_models
from plait.inspect.sources import CONFIG_FILE, find_facts, is_gguf, read_json
from plait.model.config import config_from_hf
from plait.model.families import build_program
from plait.model.model_config import ModelConfig
from plait.model.program import Program

UNQUANTIZED_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class BareModel:
    """A model without its weights."""

    facts: ModelFacts
    program: Program
    max_tokens: int
    bytes_per_weight: float
    """Mean over all numbers; as stored, or 16 bits where only the configuration is there."""

    @property
    def weight_bytes(self) -> float:
        return self.bytes_per_weight * self.program.num_parameters


def find_model(name: str) -> BareModel:
    """The model given by path or by the name it has on the hub. `ModelError` if Plait cannot build its program."""
    facts = find_facts(name)
    config = _config(name, facts)
    try:
        program = build_program(config)
    except ModelError as error:
        raise ModelError(f"{facts.name} cannot be simulated: {error}") from None
    stored = facts.weight_bytes
    total = program.num_parameters
    return BareModel(facts, program, config.max_positions, UNQUANTIZED_BYTES if stored is None else stored / total)


def _config(name: str, facts: ModelFacts) -> ModelConfig:
    path = Path(name)
    try:
        if path.is_dir() and not (path / CONFIG_FILE).is_file():
            path = next(iter(sorted(path.glob("*.gguf"))))
        if not path.exists():
            return config_from_hf(dict(known_models()[name.lower()].config))
        if path.is_file() and is_gguf(path):
            # NumPy comes with it, and only such a file needs that.
            from plait.inspect.served import gguf_config
            from plait.weights.gguf_outline import read_outline

            return gguf_config(read_outline(path))
        return config_from_hf(read_json(path / CONFIG_FILE if path.is_dir() else path))
    except ModelError as error:
        raise ModelError(f"{facts.name} cannot be simulated: {error}") from None
