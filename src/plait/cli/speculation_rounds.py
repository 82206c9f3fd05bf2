"""Speculation rounds: the same prompts with and without drafts, in turn, on one engine.

Owns the prompts, the order of runs, what is counted in each, and the comparison. One engine serves both sides: its
drafts are switched off and on while nothing runs, so weights, memory and what was learned are the same, and the sides
take turns within a second, so a machine that is slow for a while is slow for both.
Invariant: answers with drafts are those without, token for token, or the measurement ends with an error.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import count
from math import exp, inf, log, pi, sqrt
from statistics import median

from plait.api.bodies import JsonObject
from plait.build import LocalEngine
from plait.core.errors import InvariantError, PlaitError, RequestError, UsageError
from plait.core.events import Collected, Event, Submitted
from plait.core.ids import RequestId, StepId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.core.step import DRAFT_PROGRAM, StepPlan, StepResult
from plait.engine.thread import EngineThread
from plait.text.grammar import Grammar, GrammarKind

LEAST_ROUNDS = 2
LEAST_BEYOND = 8
"""Runs of each side beyond one of each unit, before anything is said of how far apart they lie."""
SURE = 0.01
"""Standard error of a ratio, as a part of it, from which on a difference of two percent can be told."""
WARM_TOKENS = 24

Tokens = tuple[int, ...]


@dataclass(slots=True)
class Tally:
    """Of the runs of one side."""

    steps: int = 0
    ahead: int = 0
    """Steps that were submitted while another was in flight."""
    num_drafts: int = 0
    """Chunks with drafts."""
    draft_tokens: int = 0
    accepted: int = 0
    busy_s: float = 0.0
    """In steps."""
    gaps_s: list[float] = field(default_factory=list)
    """Before steps that were planned when the one before had been collected."""


class Counts:
    """An `EventSink`, which adds to `tally`."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._in_flight = 0
        self._collected_s = self._ended_s = -1.0
        self._late: set[StepId] = set()
        self._guessing: set[StepId] = set()
        """Steps of a draft model in flight: part of what drafts cost, and no steps of the engine."""

    def __call__(self, event: Event) -> None:
        match event:
            case Submitted(_, plan) if plan.program == DRAFT_PROGRAM:
                self._guessing.add(plan.step)
            case Submitted(at_s, plan):
                self._submitted(at_s, plan)
            case Collected(_, result) if result.step in self._guessing:
                self._guessing.remove(result.step)
                self.tally.busy_s += result.end_s - result.start_s
            case Collected(at_s, result):
                self._collected(at_s, result)
            case _:
                pass

    def _submitted(self, at_s: float, plan: StepPlan) -> None:
        tally = self.tally
        tally.steps += 1
        tally.ahead += self._in_flight > 0
        if not self._in_flight and at_s == self._collected_s:
            self._late.add(plan.step)
        self._in_flight += 1
        depths = [chunk.num_drafts for chunk in plan.chunks if chunk.num_drafts]
        tally.num_drafts += len(depths)
        tally.draft_tokens += sum(depths)

    def _collected(self, at_s: float, result: StepResult) -> None:
        tally = self.tally
        self._in_flight -= 1
        tally.accepted += sum([one.num_accepted for one in result.seqs])
        tally.busy_s += result.end_s - result.start_s
        if result.step in self._late:
            self._late.remove(result.step)
            tally.gaps_s.append(result.start_s - self._ended_s)
        self._collected_s, self._ended_s = at_s, result.end_s


@dataclass(slots=True)
class Side:
    """All runs with drafts, or all without. `seconds[i]`: of unit i of the prompts, one a round."""

    seconds: list[list[float]]
    processor_s: float = 0.0
    """Of the whole process."""
    engine_s: float = 0.0
    """Processor time of the engine's thread, which plans and commits."""
    tally: Tally = field(default_factory=Tally)
    answers: dict[int, list[Tokens]] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        """Of one round: of every unit, the median run."""
        return sum(map(median, self.seconds))

    def took(self, place: int) -> float:
        """Seconds of one round."""
        return sum([one[place] for one in self.seconds])


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast the second of two sides is, and how sure that is."""

    value: float
    error: float
    """Standard error, as a part of it; infinite where too few rounds say nothing of it."""

    @classmethod
    def of(cls, before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> Ratio:
        """Of seconds by unit and round. Each unit has the median of its rounds' ratios: both sides of one run within a
        second or a few, and what slows down one slows down the other. How far rounds lie apart is taken to be alike for
        all units; it is 1.4826 times the median distance from a unit's median, as of a normal distribution (Rousseeuw
        and Croux, 1993), and the error of a median of so many is sqrt(pi / 2) times that of their mean.
        """
        logs = [[log(b / a) for b, a in zip(*unit, strict=True)] for unit in zip(before, after, strict=True)]
        middles, seconds = [median(one) for one in logs], [median(one) for one in before]
        shares = [time_s / exp(middle) for time_s, middle in zip(seconds, middles, strict=True)]
        value, num_units, num_rounds = sum(seconds) / sum(shares), len(logs), len(logs[0])
        if num_units * (num_rounds - 1) < LEAST_BEYOND:
            return cls(value, inf)
        away = [abs(one - middle) for unit, middle in zip(logs, middles, strict=True) for one in unit]
        spread = 1.4826 * median(away) * sqrt(num_rounds / (num_rounds - 1))
        of_median = spread * sqrt((pi / 2 if num_rounds > 2 else 1.0) / num_rounds)
        return cls(value, of_median * sqrt(sum([share**2 for share in shares])) / sum(shares))


@dataclass(frozen=True, slots=True)
class Cell:
    """A set at a number of streams. Counts are those of one round."""

    name: str
    streams: int
    rounds: int
    tokens: int
    off: Side
    on: Side

    @property
    def ratio(self) -> Ratio:
        """How many times as fast with drafts."""
        return Ratio.of(self.off.seconds, self.on.seconds)

    @property
    def round_ratios(self) -> list[float]:
        return [self.off.took(place) / self.on.took(place) for place in range(self.rounds)]

    @property
    def depth(self) -> float:
        tally = self.on.tally
        return tally.draft_tokens / tally.num_drafts if tally.num_drafts else 0.0

    def json_object(self) -> dict[str, object]:
        ratios, sides, on = self.round_ratios, (self.off, self.on), self.on.tally
        ratio = self.ratio
        tallies = [side.tally for side in sides]
        return {
            "set": self.name,
            "streams": self.streams,
            "rounds": self.rounds,
            "tokens": self.tokens,
            "ratio": round(ratio.value, 4),
            "standard_error": None if ratio.error == inf else round(ratio.error * ratio.value, 4),
            "lowest": round(min(ratios), 4),
            "highest": round(max(ratios), 4),
            "processor_ratio": round(self.off.processor_s / self.on.processor_s, 4),
            "tokens_per_s": [round(self.tokens / side.total_s, 2) for side in sides],
            "steps": [tally.steps // self.rounds for tally in tallies],
            "ahead": [round(tally.ahead / tally.steps, 4) for tally in tallies],
            "step_us": [round(tally.busy_s / tally.steps * 1e6) for tally in tallies],
            "gap_us": [round(median(tally.gaps_s) * 1e6) if tally.gaps_s else None for tally in tallies],
            "engine_us_per_step": [round(side.engine_s / side.tally.steps * 1e6, 1) for side in sides],
            "drafts": on.num_drafts // self.rounds,
            "proposed": on.draft_tokens // self.rounds,
            "accepted": on.accepted // self.rounds,
            "depth": round(self.depth, 3),
        }


def _is_enough(sides: Mapping[bool, Side], rounds: int, spent_s: float, most_s: float) -> bool:
    if spent_s * (rounds + 1) / rounds > most_s:
        return True
    return Ratio.of(sides[False].seconds, sides[True].seconds).error <= SURE


def _processor_s(thread: EngineThread) -> float:
    """Of the engine's thread; 0 where the system does not tell."""
    if not hasattr(time, "pthread_getcpuclockid") or thread.ident is None:
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def shortened(request: Request, most_prompt: int, most_output: int) -> Request:
    """The end of its prompt, and the beginning of its answer."""
    num_output = min(most_output, request.sampling.max_tokens or most_output)
    return replace(
        request, prompt=request.prompt[-most_prompt:], sampling=replace(request.sampling, max_tokens=num_output)
    )


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One of `chat`, a user's message, and `text` is not empty. `schema`: of the answer, as JSON."""

    max_tokens: int
    chat: str
    text: str
    schema: str | None


def _prompts(name: str) -> list[_Prompt]:
    text = resources.files("plait").joinpath("resources/speculation_prompts.jsonl").read_text(encoding="utf-8")
    told = [one for one in map(json.loads, text.splitlines()) if one["set"] == name]
    return [
        _Prompt(
            one["max_tokens"],
            one.get("prompt", ""),
            one.get("text", ""),
            json.dumps(one["schema"]) if "schema" in one else None,
        )
        for one in told
    ]


class Rounds:
    """Of one engine, whose drafts `draft` switches. `counts` hears its events."""

    def __init__(
        self, engine: LocalEngine, draft: Callable[[bool], None], counts: Counts, temperature: float = 0.0
    ) -> None:
        self._engine = engine
        self._draft = draft
        self._counts = counts
        self._temperature = temperature
        self._numbers = count()

    def requests(self, name: str) -> list[Request]:
        found: list[Request] = []
        for told in _prompts(name):
            form = None
            if told.schema is not None:
                form = self._engine.text.constraint(Grammar(GrammarKind.JSON_SCHEMA, told.schema, "schema"))
            sampling = SamplingParams(temperature=self._temperature, max_tokens=told.max_tokens, seed=1)
            found.append(Request(RequestId(""), self._encoded(told), sampling, constraint=form))
        return found

    def _encoded(self, told: _Prompt) -> tuple[int, ...]:
        text = self._engine.text
        if told.text:
            return tuple(text.encode_text(told.text, True))
        messages: list[JsonObject] = [{"role": "user", "content": told.chat}]
        try:
            return tuple(text.encode_chat(messages, add_generation_prompt=True, variables={}))
        except RequestError as error:
            raise UsageError(f"{self._engine.model.name} is not for chats ({error}); take one that is") from None

    def warm(self, loop: asyncio.Runner, by_set: Mapping[str, Sequence[Request]], streams: Sequence[int]) -> None:
        """Every set a little on either side, so that none is the first: its prompts are in the prefix index then, the
        memory has been written once, and times of steps are known.
        """
        for requests in by_set.values():
            short = [shortened(one, len(one.prompt), WARM_TOKENS) for one in requests]
            for at_once in streams:
                for is_on in (False, True):
                    self._run(loop, short, at_once, is_on)

    def cell(self, loop: asyncio.Runner, name: str, requests: Sequence[Request], streams: int, most_s: float) -> Cell:
        """Rounds until the ratio is sure enough or the next one would end later than in `most_s`, two at least. In a
        round as many prompts as there are streams run on one side and then on the other, and the next ones the other
        way round, so that the sides take turns within a second.
        """
        units = [requests[first : first + streams] for first in range(0, len(requests), streams)]
        sides = {is_on: Side([[] for _ in units]) for is_on in (False, True)}
        order, began_s, rounds = (False, True), time.perf_counter(), 0
        while rounds < LEAST_ROUNDS or not _is_enough(sides, rounds, time.perf_counter() - began_s, most_s):
            for place, unit in enumerate(units):
                for is_on in order:
                    self._note(loop, sides[is_on], place, unit, streams, is_on)
                order = order[::-1]
            rounds += 1
        answers = sides[False].answers
        if answers != sides[True].answers:
            raise InvariantError(f"{name}: answers with drafts differ from those without")
        tokens = sum(len(one) for of_unit in answers.values() for one in of_unit)
        return Cell(name, streams, rounds, tokens, sides[False], sides[True])

    def _note(
        self, loop: asyncio.Runner, side: Side, place: int, unit: Sequence[Request], streams: int, is_on: bool
    ) -> None:
        thread, self._counts.tally = self._engine.thread, side.tally
        engine_s, processor_s, start_s = _processor_s(thread), time.process_time(), time.perf_counter()
        answers = self._run(loop, unit, streams, is_on)
        side.seconds[place].append(time.perf_counter() - start_s)
        side.processor_s += time.process_time() - processor_s
        side.engine_s += _processor_s(thread) - engine_s
        if side.answers.setdefault(place, answers) != answers:
            raise InvariantError(f"two runs of prompt {place} gave different answers")

    def _run(self, loop: asyncio.Runner, requests: Sequence[Request], streams: int, is_on: bool) -> list[Tokens]:
        self._draft(is_on)
        return loop.run(self._answers(requests, streams))

    async def _answers(self, requests: Sequence[Request], streams: int) -> list[Tokens]:
        places = iter(range(len(requests)))
        answers: list[Tokens] = [()] * len(requests)

        async def work() -> None:
            for place in places:
                answers[place] = await self._answer(requests[place])

        await asyncio.gather(*(work() for _ in range(streams)))
        return answers

    async def _answer(self, request: Request) -> Tokens:
        tokens: Tokens = ()
        async for delta in self._engine.client.submit(replace(request, id=RequestId(f"drafts-{next(self._numbers)}"))):
            tokens += delta.tokens
            if delta.error:
                raise PlaitError(delta.error)
        return tokens
