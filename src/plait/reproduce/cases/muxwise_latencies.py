"""MuxWise's latencies of Llama-70B (its tables 3 and 4): who is first, on Conversation and on Tool&Agent.

Owns the order of systems and the claims. One rate for all of them, at which none of them collapses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from plait.core.request import Slo
from plait.reproduce.band import Between
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.lanes_on_a100 import (
    LAUNCHED,
    LAUNCHES,
    LAW_70B,
    LEARNED,
    SEEDS,
    eight_a100_70b,
    over_seeds,
    with_launches,
)
from plait.reproduce.contests import Contestant, Played, arrivals, card_lengths, play
from plait.reproduce.figure import MUXWISE as PAPER
from plait.reproduce.figure import Evidence, Figure, Reference
from plait.reproduce.simulated import mean_of
from plait.reproduce.stages import Lab
from plait.sched.multiplex.presets import MUXWISE
from plait.sim.form import Form

COUNT, RATE = 28, 0.6
SLO = Slo(itl_s=0.100)
OURS, APART, CHUNKED = "MuxWise", "1:1", "chunked"
CONTESTANTS = {OURS: Contestant(MUXWISE), APART: Contestant(engines=Form(1, 1)), CHUNKED: Contestant(step_tokens=256)}
LAUNCHED_70B = tuple(dict.fromkeys((*LAW_70B, *LAUNCHES)))
WORKLOADS = {"conversation": "Conversation", "toolagent": "Tool&Agent"}


def played(workload: str, seed: int, count: int) -> dict[str, Played]:
    whole, half = (Lab(with_launches(eight_a100_70b(ranks)), seed) for ranks in (8, 4))
    load = arrivals(card_lengths(workload, count, seed), RATE, seed, whole.stage.program.vocab_size)
    return {name: play(half if name == APART else whole, one, load, SLO) for name, one in CONTESTANTS.items()}


def _one_seed(seed: int, count: int) -> Mapping[str, float]:
    answers: dict[str, float] = {}
    for workload, title in WORKLOADS.items():
        found = {name: one.report for name, one in played(workload, seed, count).items()}
        ttft = {name: mean_of(report.ttft_s) for name, report in found.items()}
        p99 = {name: report.itl_s.p99 if report.itl_s else float("nan") for name, report in found.items()}
        answers |= {
            f"{title}, TTFT of 1:1 over MuxWise": ttft[APART] / ttft[OURS],
            f"{title}, TTFT of chunked over 1:1": ttft[CHUNKED] / ttft[APART],
            f"{title}, TTFT of chunked over MuxWise": ttft[CHUNKED] / ttft[OURS],
            f"{title}, mean TBT of MuxWise": 1e3 * mean_of(found[OURS].itl_s),
            f"{title}, P99 TBT of 1:1 over MuxWise": p99[APART] / p99[OURS],
        }
    return answers


def work_out(seeds: Sequence[int] = SEEDS, count: int = COUNT) -> Answers:
    return over_seeds(lambda seed: _one_seed(seed, count), seeds)


NOTE = (
    f"{COUNT} requests a seed, {RATE} a second, a bound of 100 ms on gaps; chunks of 256 tokens, the budget of the "
    f"paper; {LEARNED}; {LAUNCHED}"
)
DISTANCE = "by how much hangs on the rate, which the paper does not print; the order does not"


def _figures() -> tuple[Figure, ...]:
    tables = {
        "Conversation": ("table 3", {"one": "2.4", "two": "1.6", "three": "3.9", "tbt": "30.2"}),
        "Tool&Agent": ("table 4", {"one": "1.6", "two": "1.1", "three": "1.8", "tbt": "27.2"}),
    }
    figure = partial(Figure, evidence=Evidence.SIMULATED, calibrated_on=LAUNCHED_70B, note=f"{NOTE}; {DISTANCE}")
    figures = []
    for title, (table, printed) in tables.items():
        for name, published, band, unit in (
            (f"{title}, TTFT of 1:1 over MuxWise", printed["one"], Between(low=1.0), "x"),
            (f"{title}, TTFT of chunked over 1:1", printed["two"], Between(low=1.0), "x"),
            (f"{title}, TTFT of chunked over MuxWise", printed["three"], Between(low=1.0), "x"),
            (f"{title}, mean TBT of MuxWise", printed["tbt"], Between(25.0, 35.0), " ms"),
            (f"{title}, P99 TBT of 1:1 over MuxWise", "shorter", Between(high=1.0), "x"),
        ):
            reference = Reference(PAPER, f"4.2, {table}", name)
            figures.append(figure(name, reference, published, band, unit))
    return tuple(figures)


CASE = Case("muxwise-latencies", "Llama-70B on eight A100: who is first", PAPER, _figures(), work_out)
