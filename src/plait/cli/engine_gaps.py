"""Engine gaps: what a step takes more in a running engine than on the device alone.

Owns a few seconds of the whole engine at several numbers of answers at once, and the fit of what lies between and on
top of steps: planning, sampling's results, answers, and what all that takes from the cores that compute.
Invariant: only steps that follow each other without a pause are looked at, so nothing is waited for but the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from plait.build import LoadedModel, start_engine
from plait.config.engine_options import EngineOptions
from plait.core.errors import RequestError
from plait.core.events import Collected, Event, Submitted
from plait.core.ids import RequestId, StepId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.core.step import StepShape
from plait.cost.calibrated import CalibratedModel
from plait.cost.least_squares import non_negative_least_squares
from plait.cost.solo import phases
from plait.engine.client import AsyncClient

_PROMPT = 32
_OUTPUTS = 64
_STREAMS = (1, 4, 16, 32)


@dataclass(frozen=True, slots=True)
class EngineStep:
    """A step as the engine had it. `period_s`: from the end of the step before, to its own."""

    shape: StepShape
    device_s: float
    period_s: float


class StepRecorder:
    """An event sink that keeps shapes and times of steps."""

    def __init__(self) -> None:
        self._shapes: dict[StepId, StepShape] = {}
        self._ended: list[tuple[StepShape, float, float]] = []

    def __call__(self, event: Event) -> None:
        match event:
            case Submitted(plan=plan):
                self._shapes[plan.step] = plan.shape()
            case Collected(result=result):
                self._ended.append((self._shapes.pop(result.step), result.start_s, result.end_s))
            case _:
                pass

    def take(self) -> list[EngineStep]:
        """Steps behind the first, since the last call."""
        ended, self._ended = self._ended, []
        return [
            EngineStep(shape, end_s - start_s, end_s - before_s)
            for (_, _, before_s), (shape, start_s, end_s) in pairwise(ended)
            if shape.chunks
        ]


def measure_gaps(model: LoadedModel, options: EngineOptions, repeats: int) -> list[EngineStep]:
    """Decode steps of answers that all run, at several numbers of them."""
    recorder = StepRecorder()
    found: list[EngineStep] = []
    engine = start_engine(options, model, recorder, lambda words: None)
    try:
        with asyncio.Runner() as runner:
            for _ in range(repeats):
                for streams in _STREAMS:
                    if streams <= options.max_num_seqs:
                        runner.run(_answers(engine.client, model.program.vocab_size, streams))
                        steps = [one for one in recorder.take() if len(one.shape.chunks) == streams]
                        found += [one for one in steps if not phases(one.shape)[0].chunks]
    finally:
        engine.close()
    return found


def fit_overhead(steps: Sequence[EngineStep], model: CalibratedModel, units: int) -> tuple[float, float]:
    """(seconds of a step, of each sequence): the median of what periods have beyond the device's price, by size."""
    by_rows: dict[int, list[float]] = {}
    for step in steps:
        device_s = model.price(step.shape, units).expected_s - model.overhead_s(step.shape)
        by_rows.setdefault(len(step.shape.chunks), []).append(step.period_s - device_s)
    if not by_rows:
        return 0.0, 0.0
    rows = sorted(by_rows)
    per_step, per_row = non_negative_least_squares(
        [(1.0, float(count)) for count in rows], [median(by_rows[count]) for count in rows]
    )
    return per_step, per_row


async def _answers(client: AsyncClient, vocab_size: int, streams: int) -> None:
    """So many answers at once, of requests that ask for nothing special."""

    async def one(index: int) -> None:
        prompt = tuple((index * 131 + place * 7) % vocab_size for place in range(_PROMPT))
        sampling = SamplingParams(seed=index, max_tokens=_OUTPUTS, ignore_eos=True)
        request = Request(RequestId(f"gap-{streams}-{index}"), prompt, sampling, cache_prefix=False)
        async for delta in client.submit(request):
            if delta.error is not None:
                raise RequestError(f"{request.id}: {delta.error}")

    await asyncio.gather(*(one(index) for index in range(streams)))
