"""Contests: policies of prompts beside decode on one simulated device, under equal loads and targets.

Owns how one policy plays one load, and what is read off it. Which policies, loads and targets, and what is claimed, is
in the cases. Each policy decides by what its paper's estimator has learned of the device, which takes its own time.
Invariant: equal labs, contestants and loads give equal numbers; a run that refuses or fails a request gives none.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

from plait.core.errors import InvariantError
from plait.core.events import Emitted, Event, Finished, Submitted
from plait.core.ids import RequestId, SeqId
from plait.core.request import NO_SLO, Request, Slo
from plait.core.sampling import SamplingParams
from plait.reproduce.stages import Lab
from plait.sched.multiplex.presets import CHUNKED, Preset
from plait.sched.multiplex.scheduler import Observer
from plait.sched.multiplex.situation import Choice, Form, Situation
from plait.sim.arrivals import Arrival
from plait.sim.attainment import Attainment
from plait.sim.cards.card import find_card
from plait.sim.cluster import ClusterSpec, simulate_cluster
from plait.sim.curves import Latencies
from plait.sim.form import Form as Engines
from plait.sim.prompts import prompt_of
from plait.sim.replica import ReplicaSpec, SimulatedDrafts
from plait.sim.report import Outcome, Report
from plait.sim.samples import Distribution, distribution
from plait.sim.traces.request import TraceRequest

STEP_TOKENS = 1024
ONE_ENGINE = Engines()


@dataclass(frozen=True, slots=True)
class Contestant:
    """A policy, and how its engine is put together."""

    preset: Preset = CHUNKED
    step_tokens: int = STEP_TOKENS
    """Of a step of prompts and decode together."""
    engines: Engines = ONE_ENGINE
    shares_prefixes: bool = True
    drafts: SimulatedDrafts | None = None


@dataclass(slots=True)
class Played:
    """One load under one policy."""

    report: Report
    attainment: float
    """Part of the requests that met every target."""
    num_gaps: int
    num_late: int
    """Gaps longer than the bound on them, the first of a sequence from when it joins those who decode."""
    num_late_said: int
    """The same, the first from when its first token is said."""
    is_steady: bool
    """The queue stopped growing before arrivals ended."""
    ttft_per_token: Distribution | None
    splits: list[tuple[float, int]]
    """Of every decision: when, and units of prompts: all where they run alone, none where nobody asks."""
    num_units: int

    @property
    def late_fraction(self) -> float:
        return self.num_late / self.num_gaps if self.num_gaps else 0.0

    @property
    def prefill_share(self) -> float:
        """Of the device, over the time between the first decision and the last."""
        seconds = [after_s - at_s for (at_s, _), (after_s, _) in pairwise(self.splits)]
        held = sum(length * units for length, (_, units) in zip(seconds, self.splits, strict=False))
        return held / (sum(seconds) * self.num_units) if sum(seconds) else 0.0

    def partitions(self, begin_s: float, end_s: float) -> set[int]:
        """Units that prompts had beside decode."""
        return {units for at_s, units in self.splits if begin_s <= at_s < end_s and 0 < units < self.num_units}


def play(lab: Lab, contestant: Contestant, load: Iterable[Arrival], slo: Slo = NO_SLO) -> Played:
    """`load` brings its own targets if it has any; `slo` is what outcomes are judged by."""
    attainment, latencies, gaps = Attainment(slo), Latencies(), Gaps(slo.itl_s)
    per_token: list[float] = []
    splits: list[tuple[float, int]] = []
    units = lab.stage.hardware.share_units

    def hear(outcome: Outcome) -> None:
        attainment(outcome)
        latencies(outcome)
        if outcome.ttft_s is not None:
            per_token.append(outcome.ttft_s / outcome.num_prompt)

    def observe(situation: Situation, choice: Choice) -> None:
        splits.append((situation.now_s, 0 if situation.prefill is None else _prompt_units(choice, units)))

    spec = ClusterSpec(
        _spec(lab, contestant, slo, observe),
        contestant.engines,
        macro_steps=contestant.preset == CHUNKED and slo.itl_s is None and contestant.drafts is None,
    )
    report = simulate_cluster(load, spec, gaps, hear).whole
    if report.num_failed or report.num_refused > report.num_overloaded:
        raise InvariantError(
            f"{report.num_failed} requests of a contest failed and {report.num_refused} were refused; its memory or "
            "its limit of tokens is too small"
        )
    return Played(
        report,
        attainment.fraction(report),
        gaps.num_all,
        gaps.num_late,
        gaps.num_late_said,
        latencies.is_steady,
        distribution(per_token),
        splits,
        units,
    )


def _prompt_units(choice: Choice, units: int) -> int:
    return units - choice.units if choice.form is Form.LANES else units if choice.form is Form.PREFILL else 0


def _spec(lab: Lab, contestant: Contestant, slo: Slo, observe: Observer) -> ReplicaSpec:
    stage = lab.stage
    return ReplicaSpec(
        stage.program,
        stage.formats,
        stage.hardware,
        stage.cache_bytes,
        tokens_per_block=stage.tokens_per_block,
        max_step_tokens=contestant.step_tokens,
        max_rows=stage.max_rows,
        max_model_tokens=stage.max_model_tokens,
        enable_prefix=contestant.shares_prefixes,
        tensor_parallel=stage.ranks,
        preset=contestant.preset,
        slo=slo,
        observe=observe,
        prices=lab.prices(contestant.preset),
        device=lab.whole_device if contestant.preset.is_fused else lab.device,
        check_plans=False,
        seed=lab.seed,
        drafts=contestant.drafts,
    )


class Gaps:
    """Told of every token: how many gaps there are, and how many are longer than a bound.

    A sequence's first gap begins when it joins the decode batch: MuxWise says a first token then (section 3.2), and
    here it is said when the prompt has ended, maybe in the middle of a decode step.
    """

    def __init__(self, bound_s: float | None) -> None:
        self._bound_s = bound_s
        self._last_s: dict[tuple[int, SeqId], float] = {}
        self._joining: dict[tuple[int, SeqId], float] = {}
        """Who has said one token, and since when he is in a step again."""
        self.num_all = self.num_late = self.num_late_said = 0

    def __call__(self, engine: int, event: Event) -> None:
        if self._bound_s is None:
            return
        if isinstance(event, Emitted):
            self._said((engine, event.seq), event.at_s)
        elif isinstance(event, Submitted):
            for chunk in event.plan.chunks:
                if (engine, chunk.seq) in self._joining:
                    self._joining[engine, chunk.seq] = event.at_s
        elif isinstance(event, Finished):
            self._last_s.pop((engine, event.seq), None)
            self._joining.pop((engine, event.seq), None)

    def _said(self, seq: tuple[int, SeqId], at_s: float) -> None:
        last_s = self._last_s.get(seq)
        self._last_s[seq] = at_s
        if last_s is None:
            self._joining[seq] = at_s
            return
        assert self._bound_s is not None
        joined_s = self._joining.pop(seq, last_s)
        self.num_all += 1
        self.num_late += at_s - joined_s > self._bound_s
        self.num_late_said += at_s - last_s > self._bound_s


# Loads.


def card_lengths(name: str, count: int, seed: int) -> list[TraceRequest]:
    """Requests of a card (`plait.sim.cards`), without times."""
    return list(islice(find_card(name).requests(seed), count))


def arrivals(rows: Sequence[TraceRequest], rate: float, seed: int, vocab_size: int) -> list[Arrival]:
    """Independent arrivals of these requests in their order, `rate` a second on average."""
    rng = random.Random(f"arrivals {seed}")
    times = accumulate(rng.expovariate(rate) for _ in rows)
    return [
        Arrival(at_s, _request(row, index, vocab_size))
        for index, (at_s, row) in enumerate(zip(times, rows, strict=True))
    ]


def _request(row: TraceRequest, index: int, vocab_size: int) -> Request:
    return Request(
        id=RequestId(f"r{index}"),
        prompt=prompt_of(row.num_prompt, row.blocks, row.block_tokens, index, vocab_size),
        sampling=SamplingParams(seed=index, max_tokens=row.num_output, ignore_eos=True),
        cache_prefix=bool(row.blocks),
    )
