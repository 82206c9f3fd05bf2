"""Plait in this process, as the engine of a driver: no HTTP, no tokenizer in the way in, text made on the way out.

Owns the start and the end of an engine, and the requests' ids.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from plait.build import LoadedModel, LocalEngine, load_model, start_engine
from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources, options_of
from plait.core.errors import PlaitError
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.metrics.totals import Totals

from .figures import Answer
from .workloads import Ask


class PlaitEngine:
    """`answer` serves one event loop, as the engine's client does."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._num_asked = 0

    async def answer(self, ask: Ask, due_s: float, *, stream: bool) -> Answer:
        self._num_asked += 1
        sampling = SamplingParams(temperature=0.0, max_tokens=ask.output_tokens, ignore_eos=True)
        prompt = tuple(word.token for word in ask.prompt)
        request = Request(RequestId(f"bench-{self._num_asked}"), prompt, sampling)
        token_s: list[float] = []
        num_output, error = 0, ""
        try:
            async for delta in self._engine.client.submit(request):
                num_output += len(delta.tokens)
                token_s += [time.perf_counter()] if delta.tokens else []
                error = delta.error or error
        except PlaitError as trouble:
            error = str(trouble)
        return Answer(due_s, tuple(token_s), time.perf_counter(), len(prompt), num_output, ask.output_tokens, error)


def engine_options(given: Mapping[str, str]) -> EngineOptions:
    """Options of `plait` by name, e.g. {"max-num-seqs": "64"}, read as the command line reads them."""
    specs = options_of(EngineOptions)
    unknown = [name for name in given if name not in [spec.flag for spec in specs]]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no option of the engine; there are {', '.join(s.flag for s in specs)}")
    typed = {name.replace("-", "_"): text for name, text in given.items()}
    return OptionSources(specs, typed, environment={}).read(EngineOptions)


def open_model(options: EngineOptions) -> LoadedModel:
    return load_model(options, lambda done, total: None, datetime.now)


@contextmanager
def running(options: EngineOptions, model: LoadedModel) -> Iterator[LocalEngine]:
    engine = start_engine(options, model, Totals(), print)
    try:
        yield engine
    finally:
        engine.close()
