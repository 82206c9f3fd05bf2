"""Loading: how a model gets into an executor, before the engine ever sees it.

Owns `LoadableExecutor`, the interface that the composition root uses. Everything that runs real weights has it; the
simulated executor, which has none, is complete when built.
Invariant: nothing is submitted before `load` returned, and an executor is loaded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from plait.core.executor import Executor
from plait.model.cache_layout import CacheLayout
from plait.model.program import Program
from plait.weights.table import WeightTable


class LoadableExecutor(Executor, Protocol):
    def load(self, programs: Mapping[str, Program], weights: WeightTable, layout: CacheLayout) -> None:
        """Take programs over one weight table, and cache memory as laid out. `ModelError`: it cannot execute them.

        `core.step.STEP_PROGRAM` must be among them; others (a drafter, an image encoder) are named beside it.
        """
