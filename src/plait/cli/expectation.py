"""Expectation: how fast a model will answer here, and how many at once, from a few seconds of measurement.

Owns the probe, the prediction and its check. A probe runs the model, or the first layers of a large one, as many as go
beyond the caches, through the whole engine. The cost model's price of its steps by the time that they took is what part
of its roofline this machine reaches, for each kind of step; the price of other steps by that part is what they take.
Invariant: nothing is predicted that was not measured in its kind: one row, many rows, a chunk of a prompt. Probe and
check are sampled in turn, so that what others do on the machine happens to both.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

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
_TICK_S = 1e-6
"""Less than any step takes."""
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


def prices_of(model: LoadedModel, options: EngineOptions, rates: MachineRates, question: Question) -> Prices:
    weights = {name: model.weights[name].num_bytes / spec.num_elements for name, spec in model.program.weights.items()}
    schemes = schemes_of(model.program, model.weights, WeightDtype(options.dtype))
    is_int8 = any(scheme.row_group for scheme in schemes.values())
    hardware = rates.hardware("this machine", question.memory_bytes, is_int8=is_int8)
    formats = Formats(weight_bytes=weights, default_cache_bytes=question.cache_bytes)
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


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be expected of a model, and with what. `cache_bytes`: of one number in the KV cache."""

    users: int
    context: int
    memory_bytes: int
    cache_bytes: float
    capacity_tokens: int


def expect(
    model: LoadedModel,
    options: EngineOptions,
    rates: MachineRates,
    question: Question,
    *,
    check: bool = False,
    part: LoadedModel | None = None,
) -> tuple[Expectation, Outlook | None]:
    """Measure a part, and say what is to be expected of the whole; with `check`, also what really came."""
    part = part_of(model) if part is None else part
    users, most = question.users, longest(model, options, question.capacity_tokens)
    requests = Requests.within(most)
    prompt_tokens = max(1, min(CHUNK, options.max_num_batched_tokens, most // 2))
    with ExitStack() as stack:
        running = stack.enter_context(_Running(part, options, users))
        probe = _Probe(running, users, prompt_tokens, most)
        checked: _Check | None = None
        if check:
            whole_runs = running if part is model else stack.enter_context(_Running(model, options, users))
            checked = _Check(whole_runs, users, requests)
        for _ in range(REPEATS):
            probe.sample()
            if checked is not None:
                checked.sample()
    efficiency = probe.efficiency(prices_of(part, options, rates, question))
    expectation = _expectation(model, options, rates, question, efficiency, part.config.num_layers)
    return expectation, None if checked is None else checked.outlook()


def _expectation(
    model: LoadedModel,
    options: EngineOptions,
    rates: MachineRates,
    question: Question,
    efficiency: Efficiency,
    measured_layers: int,
) -> Expectation:
    whole = prices_of(model, options, rates, question)
    most = longest(model, options, question.capacity_tokens)
    requests, each = Requests.within(most), min(question.context, most)
    fitting = max(0, question.capacity_tokens // each)
    rows = max(1, min(fitting, options.max_num_seqs))
    return Expectation(
        model=model.name,
        weight_bytes=model.weights.total_bytes,
        users=question.users,
        requests=requests,
        expected=outlook(whole, efficiency, question.users, requests),
        efficiency=efficiency,
        measured_layers=measured_layers,
        num_layers=model.config.num_layers,
        context=each,
        capacity_tokens=question.capacity_tokens,
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


class _Probe:
    """Samples of the three kinds of steps, on a part of the model or all of it."""

    def __init__(self, running: _Running, users: int, prompt_tokens: int, most: int) -> None:
        self._running = running
        self._users = users
        self._prompt_tokens = prompt_tokens
        self._alone, self._crowd = _fitted(_ALONE, most), _fitted(_CROWD, most)
        self._samples: list[_Paces] = []

    def sample(self) -> None:
        # The second half of many answers' tokens: all of them run by then.
        many = self._running.run(self._users, *self._crowd)
        self._samples.append(
            _Paces(
                self._running.run(1, *self._alone)[0].tpot_s,
                self._running.run(1, self._prompt_tokens, 1)[0].first_s,
                statistics.median(one.late_tpot_s for one in many),
            )
        )

    def efficiency(self, prices: Prices) -> Efficiency:
        """`prices` of what was run."""
        return Efficiency(
            alone=prices.decode_s(1, _middle(self._alone)) / statistics.median(one.alone_s for one in self._samples),
            prompt=prices.prompt_s(self._prompt_tokens) / statistics.median(one.prompt_s for one in self._samples),
            crowd=prices.decode_s(self._users, _middle(self._crowd))
            / statistics.median(one.crowd_s for one in self._samples),
        )


class _Check:
    """Samples of the very requests that something is expected of."""

    def __init__(self, running: _Running, users: int, requests: Requests) -> None:
        self._running = running
        self._users = users
        self._requests = requests
        self._samples: list[Outlook] = []

    def sample(self) -> None:
        crowd_in, crowd_out = self._requests.crowd
        many = self._running.run(self._users, crowd_in, crowd_out)
        self._samples.append(
            Outlook(
                alone=1 / self._running.run(1, *self._requests.alone)[0].tpot_s,
                prompt=self._requests.prompt / self._running.run(1, self._requests.prompt, 1)[0].first_s,
                crowd=self._users * crowd_out / max(one.last_s for one in many),
            )
        )

    def outlook(self) -> Outlook:
        return Outlook(
            statistics.median(one.alone for one in self._samples),
            statistics.median(one.prompt for one in self._samples),
            statistics.median(one.crowd for one in self._samples),
        )


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
        return _pace_s(self.token_s)

    @property
    def late_tpot_s(self) -> float:
        """Of the second half."""
        return _pace_s(self.token_s[len(self.token_s) // 2 :])


def _pace_s(token_s: Sequence[float]) -> float:
    """Seconds a token, of all of them: several may come at once where steps are faster than who reads them. They are
    never that many that no time passes, unless a step takes less than a clock's tick.
    """
    return max(_TICK_S, (token_s[-1] - token_s[0]) / (len(token_s) - 1))


class _Running:
    """An engine and its event loop, with room for so many of these requests."""

    def __init__(self, model: LoadedModel, options: EngineOptions, users: int) -> None:
        rows = max(users, options.max_num_seqs)
        options = replace(options, max_num_seqs=rows, profile=None)
        self._engine: LocalEngine = start_engine(options, model, Totals(), _ignore)
        self._runner = asyncio.Runner()
        self._rng = random.Random(0)
        self._num_asked = 0

    def __enter__(self) -> _Running:
        self.run(1, *_fitted(_WARM, self._engine.sizes.max_model_tokens))
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()
        self._engine.close()

    def run(self, count: int, prompt_tokens: int, output_tokens: int) -> list[_Times]:
        return self._runner.run(self._all(count, prompt_tokens, output_tokens))

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
