"""Scoring: given tokens through an executor, and what it makes of each of them.

Owns the cutting of a text into windows and the plans that score one. Knows no engine: a window is one sequence that
joins, is computed in chunks and leaves, and whole rows of logits exist for one chunk at a time.
Invariant: every token of a text but the first is scored exactly once, behind the tokens before it in its window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from plait.core.clock import Clock
from plait.core.errors import InvariantError, PlaitError
from plait.core.ids import BlockId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import BlockGrant, Chunk, Join, Leave, OutputKind, Outputs, StepPlan
from plait.exec.loading import LoadableExecutor
from plait.model.cache_layout import CacheLayout

Floats: TypeAlias = npt.NDArray[np.float32]

MOST_ROWS = 128
"""More rows a step make a product hardly faster."""
_MOST_LOGITS = 8 * 1024 * 1024
"""Of a step; a comparison holds a few arrays of this size."""
_LEAST_ROWS = 16


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that are computed behind nothing else. Behind the last len(targets) of them these targets are scored."""

    tokens: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Of one step, each behind a token whose target is scored."""

    logits: Floats
    """[rows, vocabulary]"""
    logprobs: tuple[float, ...]
    """Of the targets."""


def cut_windows(tokens: Sequence[int], length: int, begin: tuple[int, ...]) -> list[Window]:
    """Windows of `length` tokens, the last one may be shorter; each starts with `begin` if the model wants that.

    The target behind a window's last token is the first one of the next window.
    """
    inside, end = length - len(begin), len(tokens) - 1
    if inside < 1:
        raise InvariantError(f"windows of {length} tokens hold nothing behind the {len(begin)} that begin each")
    return [
        Window((*begin, *tokens[first : min(first + inside, end)]), tuple(tokens[first + 1 : first + inside + 1]))
        for first in range(0, end, inside)
    ]


def rows_per_step(vocab_size: int) -> int:
    """So many rows of logits that they stay small whatever the vocabulary is."""
    return max(_LEAST_ROWS, min(MOST_ROWS, _MOST_LOGITS // vocab_size))


class LogitsTap:
    """What an executor is given to show its logits to: keeps those of the step that was collected last."""

    def __init__(self) -> None:
        self._logits: Floats | None = None

    def __call__(self, plan: StepPlan, logits: Floats) -> None:
        self._logits = logits

    def take(self) -> Floats:
        if self._logits is None:
            raise InvariantError("no step was collected since logits were taken")
        logits, self._logits = self._logits, None
        return logits


class Scorer:
    """One executor that nobody else uses, loaded over `layout`, showing its logits to `tap`."""

    def __init__(self, executor: LoadableExecutor, layout: CacheLayout, tap: LogitsTap, clock: Clock) -> None:
        self._executor = executor
        self._layout = layout
        self._tap = tap
        self._clock = clock
        self._step = 0
        self._left: tuple[Leave, ...] = ()

    def rows(self, window: Window) -> Iterator[Rows]:
        """Step by step; all of them must be taken before another window is begun."""
        length, unscored = len(window.tokens), len(window.tokens) - len(window.targets)
        most = self._executor.info.max_step_tokens
        seq = SeqId(self._step)
        join = Join(seq, 0, SamplingParams(temperature=0.0), 0, 0, length)
        roster: tuple[Join | Leave, ...] = (*self._left, join)
        grants = self._grants(seq, length)
        for start in range(0, length, most):
            tokens = window.tokens[start : start + most]
            first = max(0, unscored - start)
            targets = window.targets[start + first - unscored : start + len(tokens) - unscored]
            scored = Outputs(first, len(targets), OutputKind.LOGPROBS, targets)
            yield self._run(roster, grants, Chunk(seq, start, len(tokens), tokens, outputs=(scored,)))
            roster, grants = (), ()
        self._left = (Leave(seq),)

    def _grants(self, seq: SeqId, num_tokens: int) -> tuple[BlockGrant, ...]:
        """Blocks of every cache group, each group on pages of its own."""
        grants: list[BlockGrant] = []
        page = 0
        for placed in self._layout.groups:
            per_page, count = self._layout.blocks_per_page(placed.group.id), placed.blocks_for(num_tokens)
            blocks = tuple(BlockId(page * per_page + block) for block in range(count))
            grants.append(BlockGrant(seq, placed.group.id, 0, blocks))
            page += -(-count // per_page)
        if page > self._layout.num_pages:
            raise InvariantError(f"a window of {num_tokens} tokens takes {page} pages of {self._layout.num_pages}")
        return tuple(grants)

    def _run(self, roster: tuple[Join | Leave, ...], grants: tuple[BlockGrant, ...], chunk: Chunk) -> Rows:
        self._executor.submit(StepPlan(StepId(self._step), LaneId(0), roster, grants, (), (chunk,)))
        self._step += 1
        self._clock.wait(self._executor)
        (result,) = self._executor.collect()
        (one,) = result.seqs
        if one.error is not None:
            raise PlaitError(f"the text cannot be scored: {one.error}; take another model file, or other numbers")
        return Rows(self._tap.take(), tuple(each.logprob for each in one.prompt_logprobs))
