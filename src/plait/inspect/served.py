"""Served: whether Plait runs a model, and how many numbers its program has, asked of the families themselves.

Owns no facts of its own: what cannot be built is told in the words of the reader that refused it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from plait.core.errors import ModelError
from plait.inspect.facts import ModelFacts, Parameters
from plait.model.config import ModelConfig, config_from_gguf, config_from_hf
from plait.model.families import build_program
from plait.model.gguf_reading import FACTORS, LONG_FACTORS, SHORT_FACTORS
from plait.model.ops import Experts, op_weights
from plait.model.program import Program, WeightRole

if TYPE_CHECKING:
    from plait.weights.gguf_outline import GgufOutline


MAX_FACTORS = 65_536


def served_from_hf(facts: ModelFacts, config: Mapping[str, object]) -> ModelFacts:
    """The facts with what the family's program adds."""
    try:
        program = build_program(config_from_hf(config))
    except ModelError as error:
        return replace(facts, refusal=str(error))
    return replace(facts, refusal="", parameters=_parameters(program))


def served_from_gguf(facts: ModelFacts, outline: GgufOutline) -> ModelFacts:
    try:
        build_program(gguf_config(outline))
    except ModelError as error:
        return replace(facts, refusal=str(error))
    return replace(facts, refusal="")


def gguf_config(outline: GgufOutline) -> ModelConfig:
    names = [tensor.name for tensor in outline.tensors]
    # The factors themselves lie behind the header; that there are so many is enough here.
    factors = {
        tensor.name: [1.0] * tensor.num_elements
        for tensor in outline.tensors
        if tensor.name in (FACTORS, SHORT_FACTORS, LONG_FACTORS) and tensor.num_elements < MAX_FACTORS
    }
    return config_from_gguf(outline.metadata, names, factors or None)


def _parameters(program: Program) -> Parameters:
    """A table that is the head's matrix too is multiplied with; otherwise it is only looked up. Of a layer's experts a
    token goes through a few.
    """
    looked_up = [spec for spec in program.weights.values() if spec.role is WeightRole.EMBEDDING]
    tied = not any(name == "head" for name in program.weights)
    total = program.num_parameters
    idle = 0
    for op in program.ops:
        if isinstance(op, Experts):
            of_all = sum(program.weights[name].num_elements for name in op_weights(op))
            idle += of_all * (op.experts - op.top_k) // op.experts
    return Parameters(total, total - idle - (0 if tied else sum(spec.num_elements for spec in looked_up)))
