"""Programs: what a model computes, as operations over named weights and cache groups.

Owns `Program` and its parts. Every executor runs one, `Program.cost` prices it, and nothing else describes a model.
Invariant: a validated program defines every value before its use, its spans cover its ops exactly, and spans of one
kind are equal up to weight names and cache slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plait.core.step import StepShape
from plait.model.checks import check_program
from plait.model.cost import Formats, OpCost, Parallel, cost_sheet
from plait.model.ops import Experts, Linear, Op, Sample, Value, ValueId
from plait.model.parts import CacheGroup, GroupKind, Span, WeightRole, WeightSpec

__all__ = [
    "CacheGroup",
    "GroupKind",
    "Program",
    "Span",
    "WeightRole",
    "WeightSpec",
    "expected_weights",
    "product_weights",
]


@dataclass(frozen=True, slots=True)
class Program:
    """A model as data."""

    name: str
    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    """`values[v]` has id v."""
    spans: tuple[Span, ...]
    weights: Mapping[str, WeightSpec]
    """By name, in order of first use."""
    cache_groups: tuple[CacheGroup, ...]
    """`cache_groups[g]` has id g."""
    inputs: tuple[ValueId, ...] = ()
    """Values that the executor fills before the first op: an encoder's patches, a drafter's hidden states."""

    def validate(self) -> None:
        """Raise `InvariantError` for the first contradiction."""
        check_program(self)

    def rebuilt(
        self,
        ops: tuple[Op, ...],
        values: tuple[Value, ...],
        spans: tuple[Span, ...],
        weights: Mapping[str, WeightSpec],
        cache_groups: tuple[CacheGroup, ...],
    ) -> Program:
        """The same program of other parts, validated."""
        program = Program(self.name, ops, values, spans, weights, cache_groups, self.inputs)
        program.validate()
        return program

    def ops_of(self, span: Span) -> tuple[Op, ...]:
        return self.ops[span.first : span.last + 1]

    @property
    def vocab_size(self) -> int:
        """Tokens that can be sampled, padding left out; 0 for a program that samples nothing."""
        return max((op.vocab_size for op in self.ops if isinstance(op, Sample)), default=0)

    @property
    def num_parameters(self) -> int:
        """Numbers in all weights; a weight used twice counts once."""
        return sum(spec.num_elements for spec in self.weights.values())

    def cost(
        self, shape: StepShape, formats: Formats | None = None, parallel: Parallel | None = None
    ) -> tuple[OpCost, ...]:
        """What a step of this shape costs, op by op, every span kind once with its count.

        Whoever prices many shapes keeps a `cost_sheet`; this makes one for each call.
        """
        return cost_sheet(self, formats, parallel).costs(shape)


def expected_weights(program: Program) -> dict[str, tuple[int, ...]]:
    """Shape of every weight that a model file must bring, by canonical name, in order of first use."""
    return {name: spec.shape for name, spec in program.weights.items()}


def product_weights(program: Program) -> list[str]:
    """Matrices that rows are multiplied with, in order of their ops; the last is the head's. Those of routers are left
    out: they are small, and decide between experts.
    """
    names: list[str] = []
    for op in program.ops:
        if isinstance(op, Linear) and program.weights[op.weight].role is not WeightRole.ROUTER:
            names.append(op.weight)
        elif isinstance(op, Experts):
            names += (*op.gate, *op.up, *op.down)
    return names
