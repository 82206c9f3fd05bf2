"""MuxWise's guard left out: how many tokens come later than their bound (its section 3.3 and what it is for).

Owns the claim. With the guard a step counts as long as its cell of the grid was slowed down at worst, without it as
long as it takes alone; everything else is equal. The grid begins at 2K tokens, as the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from plait.core.request import Slo
from plait.reproduce.band import Between
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.lanes_on_a100 import LAW_8B, LEARNED, SEEDS, one_a100, over_seeds
from plait.reproduce.contests import Contestant, Played, arrivals, card_lengths, play
from plait.reproduce.figure import MUXWISE as PAPER
from plait.reproduce.figure import Evidence, Figure, Reference
from plait.reproduce.stages import Lab
from plait.sched.multiplex.mechanisms import Mechanism
from plait.sched.multiplex.presets import MUXWISE

TBT_S = 0.050
RATE, COUNT = 1.5, 60
WITH, WITHOUT = "with guard", "without guard"
CONTESTANTS = {WITH: Contestant(MUXWISE), WITHOUT: Contestant(MUXWISE.without([Mechanism.GUARD]))}
NOTE = (
    f"Llama-8B on one A100, {COUNT} requests like Tool&Agent's at {RATE} a second, a bound of 50 ms on every gap; "
    f"{LEARNED}"
)
JOINS = (
    "a sequence's first gap counts from when it joins the decode batch, as the paper says a first token then; from "
    "when the token is said here, which may be in the middle of a decode step, it is the row below"
)
LEFT = "noise of single steps, which no grid holds, and steps in flight when a neighbour begins"


def played(seed: int, count: int) -> dict[str, Played]:
    stage = replace(one_a100(), max_model_tokens=131_072, tokens_per_block=64)
    lab = Lab(stage, seed)
    load = arrivals(card_lengths("toolagent", count, seed), RATE, seed, stage.program.vocab_size)
    return {name: play(lab, one, load, Slo(itl_s=TBT_S)) for name, one in CONTESTANTS.items()}


def _one_seed(seed: int, count: int) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for name, one in played(seed, count).items():
        found[_late(name)] = 100 * one.late_fraction
        found[_late_said(name)] = 100 * one.num_late_said / one.num_gaps
        found[_p99(name)] = 1e3 * (one.report.itl_s.p99 if one.report.itl_s else float("nan"))
    return found


def work_out(seeds: Sequence[int] = SEEDS, count: int = COUNT) -> Answers:
    return over_seeds(lambda seed: _one_seed(seed, count), seeds)


def _late(name: str) -> str:
    return f"tokens later than 50 ms, {name}"


def _late_said(name: str) -> str:
    return f"the same from the first token on, {name}"


def _p99(name: str) -> str:
    return f"P99 TBT, {name}"


def _figures() -> tuple[Figure, ...]:
    figure = partial(Figure, evidence=Evidence.SIMULATED, calibrated_on=LAW_8B)
    held = Reference(PAPER, "3.4", "the decode target is guaranteed")
    broken = Reference(PAPER, "3.3", "what the guard is for")
    return (
        figure(_late(WITH), held, "none", Between(high=1.0), " %", note=f"{NOTE}; {JOINS}; what is left: {LEFT}"),
        figure(_late_said(WITH), held, "none", Between(high=1.0), " %", note=NOTE),
        figure(_p99(WITH), held, "50", Between(high=50.0), " ms", note=NOTE),
        figure(_late(WITHOUT), broken, "some", Between(low=1.0), " %", note=f"{NOTE}; {JOINS}"),
        figure(_late_said(WITHOUT), broken, "some", Between(low=1.0), " %", note=NOTE),
        figure(_p99(WITHOUT), broken, "more than 50", Between(low=50.0), " ms", note=NOTE),
    )


CASE = Case("muxwise-violations", "tokens that come late with the guard and without", PAPER, _figures(), work_out)
