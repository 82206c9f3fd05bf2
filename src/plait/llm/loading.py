"""Loading: from a caller's keywords to a running engine.

Owns what is said on the way: notes and faults go to the logger "plait", a bar shows a model that is fetched.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path

from tqdm.auto import tqdm

from plait.build import LocalEngine, check_scheduler, load_model, start_engine
from plait.config.engine_options import EngineOptions
from plait.core.errors import UsageError
from plait.core.events import Event
from plait.llm.options import OptionValue, in_python, read_options

LOGGER = logging.getLogger("plait")


def load_engine(model: str | Path, keywords: Mapping[str, OptionValue]) -> LocalEngine:
    """`UsageError`, `ModelError` or another `PlaitError` if it cannot be."""
    options = read_options(model, keywords)
    for note in options.notes:
        LOGGER.warning("%s", note)
    try:
        return _started(options.engine)
    except UsageError as error:
        raise in_python(error) from None


def _started(options: EngineOptions) -> LocalEngine:
    check_scheduler(options)
    with closing(_Fetching(options.model)) as fetching:
        model = load_model(options, fetching.show, datetime.now)
    engine = start_engine(options, model, _nobody_reads, LOGGER.error)
    for line in (*engine.sizes.reasons, *engine.notes):
        LOGGER.info("%s", line)
    return engine


def _nobody_reads(event: Event) -> None:
    """There is no reader of events here."""


class _Fetching:
    """A bar that appears with the first bytes; nothing is shown for a model that is there already."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bars: list[tqdm[None]] = []

    def show(self, num_bytes: int, total_bytes: int) -> None:
        if not self._bars:
            self._bars.append(self._bar(total_bytes))
        self._bars[0].update(num_bytes - self._bars[0].n)

    def close(self) -> None:
        for bar in self._bars:
            bar.close()

    def _bar(self, total_bytes: int) -> tqdm[None]:
        return tqdm(iter(()), total=total_bytes, unit="B", unit_scale=True, desc=f"fetching {self._name}")
