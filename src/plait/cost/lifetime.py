"""Lifetime: what a request asks of a device from its first to its last token, by what the model's layers really keep.

Owns the typed form of BlendServe's cost model (ASPLOS 2026, section 4): seconds of computing and of cache traffic, and
bytes held on average, for any mixture of full, window, chunk-local, cross and state groups. Where every layer keeps
every token it is `plait.cost.density`'s closed form, summed over whole tokens instead of integrated.
Invariant: reading weights is no part of it (batches are large), nor is the attention of prompts, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.core.step import ChunkShape, StepShape
from plait.cost.needs import ProgramNeeds, rest_key
from plait.model.cost import Formats, cost_sheet
from plait.model.ops import Attend, Conv, Scan
from plait.model.parts import CacheGroup, GroupKind
from plait.model.program import Program
from plait.model.visibility import ALL, CAUSAL, Visibility, chunk, window

MANY_ROWS = 4096
"""Of the step that prices a token: weights are read once for all of them, and nothing else is shared."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Attention ops that see the same keys: bytes of one key in all of them."""

    visibility: Visibility
    key_bytes: float
    max_rows: int


class LifetimeCost:
    """Of one program on a device, or a share of it, that multiplies at `compute_rate` (FLOP/s by number format)."""

    def __init__(
        self, program: Program, formats: Formats, compute_rate: Callable[[str | None], float], bytes_per_s: float
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._reads, self._state_bytes = _reads(program, formats)
        self._held = [(_held(group), group.bytes_per_token(formats.cache(group.id))) for group in program.cache_groups]
        self._max_rows = [group.max_rows for group in program.cache_groups]
        self._states = sum(
            group.elements_per_state * formats.cache(group.id) for group in program.cache_groups if group.is_state
        )
        needs = ProgramNeeds(cost_sheet(program, formats))
        prompt, output = (_seconds(needs, outputs, compute_rate) / MANY_ROWS for outputs in (0, MANY_ROWS))
        self.prompt_token_s = prompt
        """Computing of a prompt token."""
        self.output_token_s = output
        """Computing of an output token, the head included."""

    def compute_s(self, prompt: int, output: int) -> float:
        """Without hits."""
        return prompt * self.prompt_token_s + output * self.output_token_s

    def memory_s(self, prompt: int, output: int) -> float:
        """Reading the cache in decode steps, and what states take to read and write."""
        moved = (
            sum(read.visibility.total(prompt, output, read.max_rows) * read.key_bytes for read in self._reads)
            + output * 2 * self._state_bytes
        )
        return moved / self._bytes_per_s

    def mean_held_bytes(self, prompt: int, output: int) -> float:
        """Averaged over decode steps; what holds a request with no output is its prompt."""
        rows = max(1, output)
        start = prompt if output else max(0, prompt - 1)
        tokens = (
            visibility.total(start, rows, max_rows) * token_bytes
            for (visibility, token_bytes), max_rows in zip(self._held, self._max_rows, strict=True)
        )
        return sum(tokens) / rows + self._states


def _seconds(needs: ProgramNeeds, outputs: int, compute_rate: Callable[[str | None], float]) -> float:
    shape = StepShape((ChunkShape(0, MANY_ROWS, outputs),))
    return sum(op.flops / compute_rate(op.numbers) for op in needs.rest(rest_key(shape)))


def _reads(program: Program, formats: Formats) -> tuple[Sequence[_Read], float]:
    """What a decode row reads: of keys by visibility, and of states."""
    bytes_by: dict[tuple[Visibility, int], float] = {}
    states = 0.0
    for op in program.ops:
        if isinstance(op, Attend) and op.group is not None:
            key_bytes = op.kv_heads * (op.head_dim_k + op.head_dim_v) * formats.cache(op.group)
            same = (op.visibility, program.cache_groups[op.group].max_rows)
            bytes_by[same] = bytes_by.get(same, 0.0) + key_bytes
        elif isinstance(op, Conv | Scan):
            states += program.cache_groups[op.group].state_parts[op.part] * formats.cache(op.group)
    return [_Read(visibility, key_bytes, rows) for (visibility, rows), key_bytes in bytes_by.items()], states


def _held(group: CacheGroup) -> Visibility:
    """Whose count of keys is what a sequence must keep."""
    match group.kind:
        case GroupKind.WINDOW:
            return window(group.window)
        case GroupKind.CHUNKED:
            return chunk(group.window)
        case GroupKind.CROSS:
            return ALL
        case _:
            # States and embeddings have no bytes for each token.
            return CAUSAL
