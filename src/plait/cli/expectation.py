"""Expectation: how fast a model will answer here, and how many at once, from a few seconds of measurement.

Owns the probe, the prediction and its check. A probe runs the model, or the first layers of a large one, as many as go
beyond the caches, through the whole engine. The cost model's price of its steps by the time that they took is what part
of its roofline this machine reaches, for each kind of step; the price of other steps by that part is what they take.
Invariant: nothing is predicted that was not measured in its kind: one row, many rows, a chunk of a prompt. Of several
samples the best counts, because others on the machine can only make one worse.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from plait.build import LoadedModel, LocalEngine, start_engine
from plait.cli.machine_rates import MachineRates
from plait.config.engine_options import EngineOptions
from plait.core.errors import ModelError, RequestError
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.core.step import ChunkShape, StepShape
from plait.cost.roofline import RooflineModel
from plait.exec.native.packing import WeightDtype, schemes_of
from plait.metrics.totals import Totals
from plait.model.cost import Formats
from plait.model.families import build_program

PROBE_BYTES = 192 << 20
"""Of layers that are measured: several times the caches of most machines."""
WHOLE_BYTES = 512 << 20
"""Smaller models are measured as they are."""
CHUNK = 512
REPEATS = 3
_WARM = (32, 8)
_ALONE = (128, 64)
_CROWD = (32, 32)
_CHECK_ALONE = (128, 128)
_CHECK_PROMPT = 1024
_CHECK_CROWD = (128, 64)


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What part of the roofline each kind of step reaches here: price by measured time."""

    alone: float
    prompt: float
    crowd: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """Of requests of given lengths: tokens a second."""

    alone: float
    """Of one answer, behind its first token."""
    prompt: float
    """Of a prompt."""
    crowd: float
    """Of all answers together, their prompts' time included."""


@dataclass(frozen=True, slots=True)
class Requests:
    """What the figures are of: (tokens in, tokens out) of one answer, tokens of a prompt, and of each of many answers.

    As long as usual, or shorter where sequences are.
    """

    alone: tuple[int, int]
    prompt: int
    crowd: tuple[int, int]

    @classmethod
    def within(cls, most: int) -> Requests:
        """`most`: tokens of one sequence."""
        return cls(_fitted(_CHECK_ALONE, most), max(1, min(_CHECK_PROMPT, most // 2)), _fitted(_CHECK_CROWD, most))


@dataclass(frozen=True, slots=True)
class Expectation:
    model: str
    weight_bytes: int
    users: int
    requests: Requests
    expected: Outlook
    efficiency: Efficiency
    measured_layers: int
    num_layers: int
    context: int
    capacity_tokens: int
    """Of the KV cache that these options give."""
    fitting_users: int
    """With `context` tokens each."""
    fitting_each_per_s: float
    """Tokens a second of each of them, all at once with full contexts."""

    def json_object(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Prices:
    """The cost model of a program on this machine, and the sum of prices of what a workload needs."""

    model: RooflineModel
    share: int
    max_step_tokens: int

    def step_s(self, *chunks: ChunkShape) -> float:
        return self.model.price(StepShape(chunks), self.share).expected_s

    def decode_s(self, rows: int, context: int) -> float:
        return self.step_s(*[ChunkShape(context, 1, 1)] * rows)

    def prompt_s(self, tokens: int) -> float:
        """Of one prompt, chunk by chunk; the last one gives the first token."""
        starts = range(0, tokens, self.max_step_tokens)
        return sum(
            self.step_s(ChunkShape(start, min(self.max_step_tokens, tokens - start), int(start == starts[-1])))
            for start in starts
        )

    def crowd_prompts_s(self, rows: int, tokens: int) -> float:
        """Of so many prompts at once, as many as go into a step together."""
        at_once = max(1, self.max_step_tokens // tokens)
        whole, rest = divmod(rows, at_once)
        if tokens > self.max_step_tokens:
            return rows * self.prompt_s(tokens)
        counts = [at_once] * whole + ([rest] if rest else [])
        return sum(self.step_s(*[ChunkShape(0, tokens, 1)] * count) for count in counts)


def prices_of(
    model: LoadedModel, options: EngineOptions, rates: MachineRates, memory_bytes: int, cache_bytes: float
) -> Prices:
    """`cache_bytes`: of one number in the KV cache."""
    weights = {name: model.weights[name].num_bytes / spec.num_elements for name, spec in model.program.weights.items()}
    schemes = schemes_of(model.program, model.weights, WeightDtype(options.dtype))
    is_int8 = any(scheme.row_group for scheme in schemes.values())
    hardware = rates.hardware("this machine", memory_bytes, is_int8=is_int8)
    formats = Formats(weight_bytes=weights, default_cache_bytes=cache_bytes)
    return Prices(RooflineModel(model.program, formats, hardware), rates.threads, options.max_num_batched_tokens)


def part_of(model: LoadedModel, probe_bytes: int = PROBE_BYTES, whole_bytes: int = WHOLE_BYTES) -> LoadedModel:
    """The model with its first layers only, if it is large: what one layer takes, all alike take."""
    total, layers = model.weights.total_bytes, model.config.num_layers
    if total <= whole_bytes:
        return model
    one_less = _with_layers(model, layers - 1)
    if one_less is None:
        return model
    of_layer = sum(model.weights[name].num_bytes for name in set(model.program.weights) - set(one_less.program.weights))
    count = max(1, -(-probe_bytes // max(1, of_layer)))
    return model if count >= layers else _with_layers(model, count) or model


def _with_layers(model: LoadedModel, count: int) -> LoadedModel | None:
    """None: the family's layers do not stand alone."""
    try:
        config = replace(model.config, num_layers=count, layer_visibility=model.config.layer_visibility[:count])
        return replace(model, config=config, program=build_program(config))
    except (ModelError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class _Paces:
    """Seconds of one step of each kind."""

    alone_s: float
    prompt_s: float
    crowd_s: float


def expect(
    model: LoadedModel,
    options: EngineOptions,
    rates: MachineRates,
    *,
    users: int,
    context: int,
    memory_bytes: int,
    cache_bytes: float,
    capacity_tokens: int,
    part: LoadedModel | None = None,
) -> Expectation:
    """Measure a part, and say what is to be expected of the whole."""
    part = part_of(model) if part is None else part
    most = longest(model, options, capacity_tokens)
    requests = Requests.within(most)
    prompt_tokens = max(1, min(CHUNK, options.max_num_batched_tokens, most // 2))
    paces = _probe(part, options, users, prompt_tokens, most)
    small = prices_of(part, options, rates, memory_bytes, cache_bytes)
    efficiency = Efficiency(
        alone=small.decode_s(1, _middle(_fitted(_ALONE, most))) / paces.alone_s,
        prompt=small.prompt_s(prompt_tokens) / paces.prompt_s,
        crowd=small.decode_s(users, _middle(_fitted(_CROWD, most))) / paces.crowd_s,
    )
    whole = prices_of(model, options, rates, memory_bytes, cache_bytes)
    each = min(context, most)
    fitting = max(0, capacity_tokens // each)
    rows = max(1, min(fitting, options.max_num_seqs))
    return Expectation(
        model=model.name,
        weight_bytes=model.weights.total_bytes,
        users=users,
        requests=requests,
        expected=outlook(whole, efficiency, users, requests),
        efficiency=efficiency,
        measured_layers=part.config.num_layers,
        num_layers=model.config.num_layers,
        context=each,
        capacity_tokens=capacity_tokens,
        fitting_users=fitting,
        fitting_each_per_s=(efficiency.alone if rows == 1 else efficiency.crowd) / whole.decode_s(rows, each - 1),
    )


def longest(model: LoadedModel, options: EngineOptions, capacity_tokens: int) -> int:
    """Tokens of one sequence at most, as the engine will have it."""
    return min(model.config.max_positions, options.max_model_len or model.config.max_positions, capacity_tokens)


def outlook(prices: Prices, efficiency: Efficiency, users: int, requests: Requests) -> Outlook:
    """What is to be expected of them."""
    crowd_in, crowd_out = requests.crowd
    crowd_efficiency = efficiency.alone if users == 1 else efficiency.crowd
    crowd_s = (
        prices.crowd_prompts_s(users, crowd_in) / efficiency.prompt
        + (crowd_out - 1) * prices.decode_s(users, _middle(requests.crowd)) / crowd_efficiency
    )
    return Outlook(
        alone=efficiency.alone / prices.decode_s(1, _middle(requests.alone)),
        prompt=requests.prompt * efficiency.prompt / prices.prompt_s(requests.prompt),
        crowd=users * crowd_out / crowd_s,
    )


def run_check(model: LoadedModel, options: EngineOptions, users: int, requests: Requests) -> Outlook:
    """The same requests, really."""
    running = _Running(model, options, users)
    try:
        running.run(1, *_fitted(_WARM, sum(requests.alone)))
        alone = [running.run(1, *requests.alone)[0].tpot_s for _ in range(REPEATS)]
        prompts = [running.run(1, requests.prompt, 1)[0].first_s for _ in range(REPEATS)]
        crowd_in, crowd_out = requests.crowd
        crowds = [
            users * crowd_out / max(one.last_s for one in running.run(users, crowd_in, crowd_out))
            for _ in range(REPEATS)
        ]
    finally:
        running.close()
    return Outlook(1 / min(alone), requests.prompt / min(prompts), max(crowds))


def _probe(part: LoadedModel, options: EngineOptions, users: int, prompt_tokens: int, most: int) -> _Paces:
    running = _Running(part, options, users)
    try:
        running.run(1, *_fitted(_WARM, most))
        alone = [running.run(1, *_fitted(_ALONE, most))[0].tpot_s for _ in range(REPEATS)]
        prompts = [running.run(1, prompt_tokens, 1)[0].first_s for _ in range(REPEATS)]
        # The second half of their tokens: all of them run by then.
        crowds = [
            statistics.median(gap for one in running.run(users, *_fitted(_CROWD, most)) for gap in one.late_gaps_s)
            for _ in range(REPEATS)
        ]
    finally:
        running.close()
    return _Paces(min(alone), min(prompts), min(crowds))


@dataclass(frozen=True, slots=True)
class _Times:
    """Of one answer, from when all were sent."""

    token_s: tuple[float, ...]

    @property
    def first_s(self) -> float:
        return self.token_s[0]

    @property
    def last_s(self) -> float:
        return self.token_s[-1]

    @property
    def tpot_s(self) -> float:
        return (self.token_s[-1] - self.token_s[0]) / (len(self.token_s) - 1)

    @property
    def late_gaps_s(self) -> list[float]:
        return [late - early for early, late in pairwise(self.token_s[len(self.token_s) // 2 :])]


class _Running:
    """An engine and its event loop, with room for so many of these requests."""

    def __init__(self, model: LoadedModel, options: EngineOptions, users: int) -> None:
        rows = max(users, options.max_num_seqs)
        options = replace(options, max_num_seqs=rows, profile=None)
        self._engine: LocalEngine = start_engine(options, model, Totals(), _ignore)
        self._runner = asyncio.Runner()
        self._rng = random.Random(0)
        self._num_asked = 0

    def run(self, count: int, prompt_tokens: int, output_tokens: int) -> list[_Times]:
        return self._runner.run(self._all(count, prompt_tokens, output_tokens))

    def close(self) -> None:
        self._runner.close()
        self._engine.close()

    async def _all(self, count: int, prompt_tokens: int, output_tokens: int) -> list[_Times]:
        vocab_size = self._engine.model.program.vocab_size
        sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        requests = []
        for _ in range(count):
            self._num_asked += 1
            prompt = tuple(self._rng.randrange(vocab_size) for _ in range(prompt_tokens))
            requests.append(Request(RequestId(f"probe-{self._num_asked}"), prompt, sampling, cache_prefix=False))
        began_s = time.perf_counter()
        return await asyncio.gather(*(self._one(request, began_s) for request in requests))

    async def _one(self, request: Request, began_s: float) -> _Times:
        token_s: list[float] = []
        async for delta in self._engine.client.submit(request):
            if delta.error is not None:
                raise RequestError(f"{request.id}: {delta.error}")
            token_s += [time.perf_counter() - began_s] * len(delta.tokens)
        return _Times(tuple(token_s))


_ignore: Callable[[str], None] = lambda words: None  # noqa: E731 - what a probe's engine says is nobody's concern


def _middle(lengths: Sequence[int]) -> int:
    """The context in the middle of an answer."""
    return lengths[0] + lengths[1] // 2


def _fitted(lengths: tuple[int, int], most: int) -> tuple[int, int]:
    """Halved until they fit short contexts."""
    prompt, output = lengths
    while prompt + output > most and output > 2:
        prompt, output = max(1, prompt // 2), max(2, output // 2)
    return prompt, output
