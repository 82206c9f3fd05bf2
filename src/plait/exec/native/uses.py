"""Uses: which op makes a value and which ops read it.

Owns these look-ups over a program, on which every fusion rests. A view counts as a use of the value it looks at.
Invariant: `only_reader(v)` is an op exactly when nothing else ever looks at v, whole or in part.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.model.checks import root_of
from plait.model.ops import Space, ValueId
from plait.model.program import Program


@dataclass(frozen=True, slots=True)
class Uses:
    program: Program
    makers: dict[ValueId, int]
    """Op that makes each value; views and inputs have none."""
    readers: dict[ValueId, tuple[int, ...]]
    """Ops that read a value or a view of it, ascending; an op that reads it twice is there twice."""
    spans: tuple[int, ...]
    """Span of each op."""

    @classmethod
    def of(cls, program: Program) -> Uses:
        makers = {op.output: index for index, op in enumerate(program.ops) if op.output is not None}
        readers: dict[ValueId, tuple[int, ...]] = {}
        for index, op in enumerate(program.ops):
            for value in op.inputs:
                root = root_of(program.values, value)
                readers[root] = (*readers.get(root, ()), index)
        spans = tuple(number for number, span in enumerate(program.spans) for _ in range(span.num_ops))
        return cls(program, makers, readers, spans)

    def root(self, value: ValueId) -> ValueId:
        return root_of(self.program.values, value)

    def width(self, value: ValueId) -> int:
        return self.program.values[value].width

    def space(self, value: ValueId) -> Space:
        return self.program.values[value].space

    def is_view(self, value: ValueId) -> bool:
        return self.program.values[value].base is not None

    def only_reader(self, value: ValueId) -> int | None:
        """The op that is the only one to read a whole value, once."""
        readers = self.readers.get(value, ())
        return readers[0] if len(readers) == 1 and not self.is_view(value) else None

    def same_span(self, op: int, other: int) -> bool:
        return self.spans[op] == self.spans[other]
