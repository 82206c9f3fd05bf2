"""Planned blocks: full blocks that steps in flight will publish.

Owns the entries; a sequence has at most one, its first unpublished block. Lookups ask for it behind what they hit, so
that a common prefix can be computed once. Nothing here can be shared: the KV does not exist yet.
Invariant: an entry's step is in flight and names the entry's sequence, which is not released.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.ids import SeqId, StepId


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """`tokens` behind index node `node`, full when `step` is collected."""

    node: int
    tokens: tuple[int, ...]
    step: StepId


class PlannedBlocks:
    """Entries by (node, tokens). Several sequences may compute the same block at once."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, tuple[int, ...]], dict[SeqId, StepId]] = {}

    def add(self, seq: SeqId, block: PlannedBlock) -> None:
        self._steps.setdefault((block.node, block.tokens), {})[seq] = block.step

    def drop(self, seq: SeqId, block: PlannedBlock) -> None:
        key = (block.node, block.tokens)
        steps = self._steps[key]
        del steps[seq]
        if not steps:
            del self._steps[key]

    def find(self, node: int, tokens: tuple[int, ...]) -> StepId | None:
        """The earliest step that will publish the block, or None."""
        steps = self._steps.get((node, tokens))
        return min(steps.values()) if steps else None

    def entries(self) -> dict[SeqId, PlannedBlock]:
        return {
            seq: PlannedBlock(node, tokens, step)
            for (node, tokens), steps in self._steps.items()
            for seq, step in steps.items()
        }
