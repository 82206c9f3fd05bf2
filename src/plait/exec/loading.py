"""Loading: how a model gets into an executor, before the engine ever sees it.

Owns `LoadableExecutor`, the interface that the composition root uses. Everything that runs real weights has it; the
simulated executor, which has none, is complete when built.
Invariant: nothing is submitted before `load` returned, and an executor is loaded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from plait.core.executor import Executor
from plait.core.step import StepPlan
from plait.model.cache_layout import CacheLayout
from plait.model.program import Program
from plait.weights.table import WeightTable

LogitsObserver: TypeAlias = Callable[[StepPlan, npt.NDArray[np.float32]], None]
"""Sees the logits [num_outputs, vocab_size] of every step when it is collected."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a loaded model is computed in, each kind once, in order of name."""

    weights: tuple[str, ...]
    """Schemes of the matrices, named like the formats of files where they are the same: `q8_0`."""
    rows: tuple[str, ...]
    """What stands in front of a matrix: `f32` or `int8`."""
    cache: tuple[str, ...]


class LoadableExecutor(Executor, Protocol):
    @property
    def numbers(self) -> Numbers:
        """Of the loaded model."""

    def load(self, programs: Mapping[str, Program], weights: WeightTable, layout: CacheLayout) -> None:
        """Take programs over one weight table, and cache memory as laid out. `ModelError`: it cannot execute them.

        `core.step.STEP_PROGRAM` must be among them; others (a drafter, an image encoder) are named beside it.
        """
