"""Two cores as `plait calibrate` measured them, replayed: streams that decode while prompts come one after another.

The load is that of `bench/policies.py`. Steps take their price and a little scatter; one in so many takes twice that,
whatever was planned; ends are seen late; and a fused step with few prompt tokens takes longer than it is priced at, as
on the machine itself (docs/lab/2026-12-01-gaps.md).
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import log2
from pathlib import Path

from plait.assembly import Policy, assemble
from plait.core.events import Collected, Emitted, Event, Finished, Submitted
from plait.core.executor import ExecutorInfo, StepForm
from plait.core.ids import LaneId, RequestId, SeqId, StepId
from plait.core.request import NO_SLO, Request, Slo
from plait.core.sampling import SamplingParams
from plait.core.step import StepResult, StepShape
from plait.cost.calibrated import CalibratedModel, cost_model
from plait.cost.hardware import find_hardware
from plait.cost.model import StepPrice
from plait.cost.scatter import Replay, Scatter
from plait.cost.solo import phases
from plait.engine.engine import EngineConfig
from plait.exec.roster import slots_of
from plait.exec.simulated import SimulatedExecutor
from plait.inspect.programs import find_model
from plait.model.cache_layout import plan_layout
from plait.model.cache_type import CacheType
from plait.model.cost import Formats
from plait.sched.multiplex.presets import Preset
from plait.sim.arrivals import Arrival
from plait.sim.driver import Driver, OneStation
from plait.sim.replica import AnyTokens

STREAMS, STREAM_PROMPT, STREAM_TOKENS = 8, 256, 4096
PROMPTS = (1024, 2048, 4096, 1536, 3072)
SAID = 100
"""Tokens of each stream on average when prompts begin: how long their steps are then depends on no policy."""
HELD = 0.99
LONGEST_S = 1000.0
MARGIN_S = 1.4e-3
"""That of the calibration's own scatter."""
STOP_S = 0.25e-3
SLOW_S = 0.125
MEMORY_BYTES = 320 << 20
UNDERPRICED = 0.28
"""Of a fused step with at most eight prompt tokens, fading to nothing at 64."""

PROGRAM = find_model("smollm2").program
HARDWARE = find_hardware(str(Path(__file__).parents[2] / "data" / "two-cores.json"))
PRICES = cost_model(PROGRAM, Formats(), HARDWARE)


class Doubling(Replay):
    """Steps depart by 3 % at most; one in `one_in` takes twice its time. Ends are seen 70 us late. For an eighth of a
    second out of so many, everything takes 1.8 times as long.
    """

    def __init__(self, seed: int, one_in: int, slow_every_s: float | None) -> None:
        spells = Scatter((1.0,), (1.0,), (0.0,), (7e-5,), 0.0)
        if slow_every_s is not None:
            spells = replace(spells, spell_s=(slow_every_s - SLOW_S, SLOW_S), spell_ratios=(1.0, 1.8))
        super().__init__(spells, seed)
        self._even = Replay(Scatter((1.0,), (1.0,), (0.0, 1.0), (0.0, 1.0), 0.0), seed)
        self._one_in = one_in

    def departs(self, number: int, at_s: float, price_s: float, rest_s: float) -> tuple[float, float]:
        factor = super().departs(number, at_s, price_s, rest_s)[0] * (0.97 + 0.06 * self._even.late_s(number))
        is_doubled = self._even.departs(number, 0.0, 1.0, 0.0)[1] < 1.0 / self._one_in
        return 2.0 * factor if is_doubled else factor, 0.0


class Underpriced:
    """What steps take in truth."""

    def price(self, shape: StepShape, share: int, beside: tuple[StepShape, ...] = ()) -> StepPrice:
        price, (prompts, decode) = PRICES.price(shape, share, beside), phases(shape)
        if not prompts.chunks or not decode.chunks:
            return price
        more = 1.0 + UNDERPRICED * max(0.0, min(1.0, (6.0 - log2(prompts.num_tokens)) / 3.0))
        return StepPrice(more * price.expected_s, more * price.worst_s, price.bound)


class OneByOne:
    """The streams, and then one prompt after another; one of `only` tokens, if that is said."""

    is_open = False

    def __init__(self, slo: Slo, seed: int, only: int | None, *, is_alone: bool) -> None:
        self._slo, self._seed, self._only, self._is_alone, self._number = slo, seed, only, is_alone, 0
        self._due = [Arrival(0.0, self._request(n, STREAM_PROMPT, STREAM_TOKENS)) for n in range(STREAMS)]

    def next_s(self) -> float | None:
        return self._due[0].at_s if self._due else None

    def take(self) -> Arrival:
        return self._due.pop(0)

    def ended(self, request: RequestId, at_s: float) -> None:
        if self._only is None:
            self._ask(at_s)

    def settled(self, at_s: float) -> None:
        """The streams have begun."""
        if not self._is_alone:
            self._ask(at_s)

    def _ask(self, at_s: float) -> None:
        length = self._only or PROMPTS[(self._seed + self._number) % len(PROMPTS)]
        self._due.append(Arrival(at_s, self._request(STREAMS + self._number, length, 1)))
        self._number += 1

    def _request(self, number: int, num_prompt: int, num_output: int) -> Request:
        first = self._seed * 7919 + number * 104729
        prompt = tuple((first + place * 31) % PROGRAM.vocab_size for place in range(num_prompt))
        sampling = SamplingParams(seed=number, max_tokens=num_output, ignore_eos=True)
        return Request(RequestId(f"ask-{number}"), prompt, sampling, slo=self._slo)


class _EnoughError(Exception):
    pass


@dataclass(slots=True)
class Heard:
    """An event sink that ends the simulation when there is nothing more to see: with the step with prompts in which
    the window ends, so that it can be counted in proportion.
    """

    load: OneByOne
    window_s: float
    is_alone: bool
    has_one_prompt: bool
    begin_s: float = math.inf
    num_said: int = 0
    said: dict[SeqId, list[float]] = field(default_factory=dict)
    planned: dict[StepId, tuple[StepShape, int]] = field(default_factory=dict)
    steps: list[tuple[StepResult, int]] = field(default_factory=list)

    def __call__(self, station: int, event: Event) -> None:
        match event:
            case Submitted(plan=plan):
                fresh = sum(chunk.num_tokens for chunk in plan.chunks if chunk.seq not in self.said)
                self.planned[plan.step] = (plan.shape(), fresh)
            case Collected(result=result):
                self.steps.append((result, self.planned.pop(result.step)[1]))
                if self.begin_s + self.window_s <= result.end_s and (self.is_alone or self.steps[-1][1]):
                    raise _EnoughError
            case Emitted(at_s=at_s, seq=seq):
                self.said.setdefault(seq, []).append(at_s)
                self.num_said += 1
                if self.num_said == STREAMS * SAID:
                    self.begin_s = at_s
                    self.load.settled(at_s)
            case Finished() if self.has_one_prompt:
                raise _EnoughError
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Seen:
    """Inside the window. A step that reaches over its edges counts in proportion."""

    gaps_s: tuple[float, ...]
    tokens_per_s: float
    ttft_s: float
    """Of the only prompt, where there is one."""

    def gap_s(self, part: float = HELD) -> float:
        return self.gaps_s[min(len(self.gaps_s) - 1, int(part * len(self.gaps_s)))]


def replayed(
    preset: Preset,
    limit_s: float | None,
    *,
    one_in: int = 100,
    slow_every_s: float | None = None,
    seed: int = 1,
    window_s: float = 3.0,
    only: int | None = None,
    step_tokens: int = 512,
    is_alone: bool = False,
) -> Seen:
    """What a policy gives prompts beside eight streams with a bound on their gaps."""
    assert isinstance(PRICES, CalibratedModel)
    info = ExecutorInfo(
        name="simulated",
        lanes=(LaneId(0), LaneId(1), LaneId(2)),
        share_units=HARDWARE.share_units,
        forms=(StepForm.FUSED, StepForm.LANES),
        queue_depth=2,
        max_step_tokens=512,
        max_rows=64,
        memory_bytes=MEMORY_BYTES,
        formats=(),
        fingerprint="simulated",
        bit_exact=False,
    )
    slo = NO_SLO if limit_s is None else Slo(itl_s=limit_s)
    load = OneByOne(slo, seed, only, is_alone=is_alone)
    heard = Heard(load, LONGEST_S if only else window_s, is_alone, only is not None)
    driver = Driver(load, 1, OneStation())
    clock = driver.stations[0].clock
    layout = plan_layout(PROGRAM, memory_bytes=MEMORY_BYTES, tokens_per_block=32, cache_type=CacheType.F16)
    executor = SimulatedExecutor(
        info,
        slots_of(layout),
        clock,
        Underpriced(),
        AnyTokens(PROGRAM.vocab_size),
        quanta_per_step=600,
        check_plans=False,
        replay=Doubling(seed, one_in, slow_every_s),
    )
    policy = Policy(
        preset,
        PRICES,
        num_spans=len(PROGRAM.spans),
        stop_s=STOP_S,
        max_step_tokens=step_tokens,
        runs_ahead=True,
        margin_s=MARGIN_S,
    )
    limits = EngineConfig(PROGRAM.vocab_size, 8192, step_limit_s=1e9)
    parts = assemble(limits, layout, executor, clock, driver.ports(0, [heard]), policy=policy)
    with suppress(_EnoughError):
        driver.run([parts.engine])
    begin_s, end_s = heard.begin_s, min(heard.begin_s + heard.window_s, clock.now())
    streams = list(heard.said)[:STREAMS]
    gaps = [b - a for seq in streams for a, b in pairwise(heard.said[seq]) if begin_s <= a and b <= end_s]
    tokens = sum(count * _inside(result, begin_s, end_s) for result, count in heard.steps)
    return Seen(tuple(sorted(gaps)), tokens / (end_s - begin_s), end_s - begin_s)


def _inside(result: StepResult, begin_s: float, end_s: float) -> float:
    """Part of a step that lies in the window."""
    whole = max(1e-9, result.end_s - result.start_s)
    return max(0.0, min(end_s, result.end_s) - max(begin_s, result.start_s)) / whole
