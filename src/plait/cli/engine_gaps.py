"""Engine gaps: what a step takes more in a running engine than on the device alone.

Owns a few seconds of the whole engine, at several numbers of answers at once and with single prompts, and the fit of
what lies between and on top of steps: planning, sampling's results, answers, and what all that takes from the cores
that compute.
Invariant: only steps that follow each other without a pause are looked at, and those that nothing was in front of; so
nothing is waited for but the engine. What they take alone is measured in the same minute: in another one the machine
may be a fifth faster, which is more than an engine adds.
"""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
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
from plait.cost.scatter import RESTED_S
from plait.cost.solo import Sample, phases
from plait.engine.client import AsyncClient

_PROMPT = 32
_OUTPUTS = 64
STREAMS = (1, 2, 4, 8, 16, 32)
ALONE_CONTEXT = 64
"""Of the steps that an engine's are compared with: the middle of what those have here."""
_WARM_ANSWERS = 2
_SHORT = 2.0
"""Times the shortest: steps whose jitter is looked at."""
_SINGLE_PROMPTS = (32, 128, 256)
_SINGLES = 4
"""Of each length, one after the other, in a round."""
_REST_S = 0.03
"""Before as many more of each length, which find an engine at rest: caches and cores are at something else by then."""


@dataclass(frozen=True, slots=True)
class EngineStep:
    """A step as the engine had it."""

    shape: StepShape
    device_s: float
    period_s: float
    """From the end of the step before to its own; of one `from_idle`, from when it was planned to when the engine saw
    its end.
    """
    from_idle: bool = False
    """Nothing was under way when it was planned."""
    idle_s: float = 0.0
    """For how long there had been nothing, then."""
    late_s: float | None = None
    """From its end to when the engine saw it; None: the engine had come for an earlier one."""
    alone: Sample | None = None
    """A decode step of so many rows without an engine, in the same minute."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds that the engine adds to a step, to each sequence of it, and to each of them that is a prompt's; and what
    a rest costs the step after it.
    """

    step_s: float = 0.0
    seq_s: float = 0.0
    prompt_s: float = 0.0
    rested_s: float = 0.0


class StepRecorder:
    """An event sink that keeps shapes and times of steps."""

    def __init__(self) -> None:
        self._planned: dict[StepId, tuple[StepShape, float, bool]] = {}
        self._last_end_s: float | None = None
        self._last_seen_s = -math.inf
        self._found: list[EngineStep] = []

    def __call__(self, event: Event) -> None:
        match event:
            case Submitted(plan=plan):
                self._planned[plan.step] = (plan.shape(), event.at_s, not self._planned)
            case Collected(result=result):
                shape, planned_s, from_idle = self._planned.pop(result.step)
                before_s, self._last_end_s = self._last_end_s, result.end_s
                late_s = max(0.0, event.at_s - result.end_s) if event.at_s > self._last_seen_s else None
                self._last_seen_s = event.at_s
                if not shape.chunks or (before_s is None and not from_idle):
                    return
                device_s = result.end_s - result.start_s
                idle_s = 0.0 if before_s is None else max(0.0, planned_s - before_s)
                began_s = planned_s if from_idle or before_s is None else before_s
                ended_s = event.at_s if from_idle else result.end_s
                self._found.append(EngineStep(shape, device_s, ended_s - began_s, from_idle, idle_s, late_s))
            case _:
                pass

    def take(self) -> list[EngineStep]:
        """Those that ended since the last call."""
        found, self._found = self._found, []
        return found


def measure_gaps(
    model: LoadedModel, options: EngineOptions, repeats: int, alone: Mapping[int, Sample]
) -> list[EngineStep]:
    """Decode steps of answers that all run, at several numbers of them, and prompts that come to an idle engine.
    `alone`: decode steps by rows, measured right before.

    The first answers count for nothing: they write memory that was never written, which makes a step half as long
    again, and a server has done with that soon.
    """
    recorder = StepRecorder()
    found: list[EngineStep] = []
    engine = start_engine(options, model, recorder, lambda words: None)
    vocab_size, most_prompt = (
        model.program.vocab_size,
        min(options.max_num_batched_tokens, engine.sizes.capacity_tokens),
    )
    most_prompt = min(most_prompt, engine.sizes.max_model_tokens) - 1
    # As a server does it once it has loaded: a look whether all of that is garbage would be taken for the engine's.
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner() as runner:
            most = min(STREAMS[-1], options.max_num_seqs)
            for number in range(_WARM_ANSWERS):
                runner.run(_answers(engine.client, vocab_size, f"warm-{number}", most, _PROMPT, _OUTPUTS))
            recorder.take()
            for number in range(repeats):
                for streams in STREAMS:
                    if streams <= options.max_num_seqs:
                        name = f"gap-{number}-{streams}"
                        runner.run(_answers(engine.client, vocab_size, name, streams, _PROMPT, _OUTPUTS))
                        of_all = [one for one in recorder.take() if _decodes(one.shape) == streams]
                        found += [replace(one, alone=alone.get(streams)) for one in of_all]
                for length in _SINGLE_PROMPTS:
                    for single in range(2 * _SINGLES if length <= most_prompt else 0):
                        name = f"single-{number}-{length}-{single}"
                        rest_s = _REST_S if single >= _SINGLES else 0.0
                        runner.run(_answers(engine.client, vocab_size, name, 1, length, 1, rest_s))
                    found += [one for one in recorder.take() if one.from_idle and not _decodes(one.shape)]
    finally:
        engine.close()
        gc.unfreeze()
    return found


def fit_overhead(steps: Sequence[EngineStep], model: CalibratedModel, units: int) -> Overhead:
    """The median of what periods have beyond the device's price, by size; what prompts have beyond the device's time.

    Sizes are weighed so that errors count by the period: what prices are off by at many rows must not hide what the
    engine adds to one.
    """
    by_rows: dict[int, list[tuple[float, float]]] = {}
    prompts: dict[bool, dict[int, list[tuple[float, float]]]] = {False: {}, True: {}}
    for step in steps:
        rows = _decodes(step.shape)
        if rows and not step.from_idle:
            device_s = _device_s(step.shape, model, units)
            if step.alone is not None:
                device_s *= step.alone.seconds / _device_s(step.alone.shape, model, units)
            by_rows.setdefault(rows, []).append((step.period_s - device_s, step.period_s))
        elif step.from_idle and not rows:
            of_kind = prompts[step.idle_s >= RESTED_S].setdefault(step.shape.num_tokens, [])
            of_kind.append((step.period_s, step.period_s - step.device_s - (step.late_s or 0.0)))
    step_s = seq_s = 0.0
    if by_rows:
        sizes = sorted(by_rows)
        weights = [1.0 / median(period_s for _, period_s in by_rows[rows]) for rows in sizes]
        more_s = [median(beyond_s for beyond_s, _ in by_rows[rows]) for rows in sizes]
        step_s, seq_s = non_negative_least_squares(
            [(weight, weight * rows) for weight, rows in zip(weights, sizes, strict=True)],
            [weight * one for weight, one in zip(weights, more_s, strict=True)],
        )
    soon, rested = prompts[False], prompts[True]
    beyond = [one for of_length in soon.values() for _, one in of_length]
    prompt_s = max(0.0, median(beyond) - step_s - seq_s) if beyond else 0.0
    rests = [_typical_s(rested[length]) - _typical_s(soon[length]) for length in soon if length in rested]
    return Overhead(step_s, seq_s, prompt_s, max(0.0, median(rests)) if rests else 0.0)


def _device_s(shape: StepShape, model: CalibratedModel, units: int) -> float:
    return model.price(shape, units).expected_s - model.overhead_s(shape)


def jitter(steps: Sequence[EngineStep]) -> list[float]:
    """What periods of decode steps have more than is usual among those of the same answers. Of short steps only: a long
    one is in the way of something more often, and its spell has that.
    """
    by_rows = groupby(steps, key=lambda step: 0 if step.from_idle else _decodes(step.shape))
    streams = [[step.period_s for step in some] for rows, some in by_rows if rows]
    shortest_s = min((median(periods_s) for periods_s in streams), default=0.0)
    return [
        period_s - median(periods_s)
        for periods_s in streams
        if median(periods_s) <= _SHORT * shortest_s
        for period_s in periods_s
    ]


def lateness(steps: Sequence[EngineStep]) -> list[float]:
    """How late the engine sees that decode steps have ended for which it waits."""
    return [step.late_s for step in steps if step.late_s is not None and _decodes(step.shape)]


def _typical_s(periods: Sequence[tuple[float, float]]) -> float:
    return median(period_s for period_s, _ in periods)


def _decodes(shape: StepShape) -> int:
    """Sequences that are given a token; 0 if a prompt is among them."""
    prefill, decode = phases(shape)
    return 0 if prefill.chunks else len(decode.chunks)


async def _answers(
    client: AsyncClient, vocab_size: int, name: str, streams: int, prompt_tokens: int, outputs: int, rest_s: float = 0.0
) -> None:
    """So many answers at once, of requests that ask for nothing special, after a rest."""
    await asyncio.sleep(rest_s)

    async def one(index: int) -> None:
        prompt = tuple((index * 131 + place * 7) % vocab_size for place in range(prompt_tokens))
        sampling = SamplingParams(seed=index, max_tokens=outputs, ignore_eos=True)
        request = Request(RequestId(f"{name}-{index}"), prompt, sampling, cache_prefix=False)
        async for delta in client.submit(request):
            if delta.error is not None:
                raise RequestError(f"{request.id}: {delta.error}")

    await asyncio.gather(*(one(index) for index in range(streams)))
