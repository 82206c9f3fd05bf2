"""MuxWise's smaller studies: overtaking, shares of workloads, a burst, and what halving a pool costs its cache.

Owns their loads and claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from plait.core.request import Slo
from plait.reproduce.band import Between, Equal
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.lanes_on_a100 import (
    LAUNCHED,
    LAUNCHES,
    LAW_8B,
    LEARNED,
    SEEDS,
    eight_a100,
    one_a100,
    over_seeds,
    with_launches,
)
from plait.reproduce.contests import Contestant, Played, arrivals, card_lengths, play
from plait.reproduce.figure import MUXWISE as PAPER
from plait.reproduce.figure import Evidence, Figure, Reference
from plait.reproduce.stages import Lab, Stage
from plait.sched.multiplex.mechanisms import Mechanism
from plait.sched.multiplex.presets import MUXWISE
from plait.sim.arrivals import Arrival
from plait.sim.traces.request import TraceRequest

OURS = Contestant(MUXWISE)


def long_8b() -> Stage:
    return replace(one_a100(), max_model_tokens=131_072, tokens_per_block=64)


# Overtaking.

TARGETS_MIX = Slo(ttft_s_per_token=1e-3, itl_s=0.050)
RATE_MIX, COUNT_MIX = 0.5, 60
OVERTAKING = "P99 TTFT per token without overtaking, over that with it"
EVENLY = (
    f"Llama-8B on eight A100, {COUNT_MIX} requests, every other one of ShareGPT's and of LooGLE's lengths, 0.5 a "
    "second; of which model the paper's figure is was not found, and 70B is past its knee at that rate here; a target "
    "of 1 ms a prompt token, chosen here, says how long a prompt may be interrupted"
)


def overtaking_out(seeds: Sequence[int] = SEEDS, count: int = COUNT_MIX) -> Answers:
    def one_seed(seed: int) -> Mapping[str, float]:
        lab = Lab(with_launches(eight_a100()), seed)
        short, long = (card_lengths(name, count // 2, seed) for name in ("sharegpt", "loogle"))
        rows = [row for pair in zip(short, long, strict=True) for row in pair]
        load = arrivals(rows, RATE_MIX, seed, lab.stage.program.vocab_size)
        stays = Contestant(MUXWISE.without((Mechanism.PREEMPTION,)))
        p99 = [_p99_per_token(play(lab, one, load, TARGETS_MIX)) for one in (stays, OURS)]
        return {OVERTAKING: p99[0] / p99[1]}

    return over_seeds(one_seed, seeds)


def _p99_per_token(played: Played) -> float:
    return played.ttft_per_token.p99 if played.ttft_per_token else float("nan")


OVERTAKING_CASE = Case(
    "muxwise-preemption",
    "short prompts that overtake long ones",
    PAPER,
    (
        Figure(
            OVERTAKING,
            Reference(PAPER, "4.5", "preemption: P99 TTFT per token 1.96x better"),
            "1.96",
            Between(low=1.5),
            "x",
            Evidence.SIMULATED,
            calibrated_on=(*LAW_8B, *LAUNCHES),
            note=f"{EVENLY}; {LEARNED}; {LAUNCHED}",
        ),
    ),
    overtaking_out,
)


# Shares.

TARGETS_8B = Slo(itl_s=0.050)
SHORTER = 4
"""OpenThoughts' answers are divided by it."""
WORKLOADS = {"loogle": (0.3, 16), "sharegpt": (20.0, 100), "openthoughts": (1.0, 16)}
"""Requests a second, and how many."""
BURST, BEFORE, DURING = 13.0, 10, 60
"""Times the rate before; requests before and in the burst."""
BASE_RATE, BURST_S = 0.5, 30.0
LOOGLE, OPEN, VISITED = "LooGLE over ShareGPT", "OpenThoughts over ShareGPT", "partitions of a burst"


def shares_out(seeds: Sequence[int] = SEEDS, scale: float = 1.0) -> Answers:
    def one_seed(seed: int) -> Mapping[str, float]:
        lab = Lab(long_8b(), seed)
        share = {name: _share(lab, name, rate, int(count * scale)) for name, (rate, count) in WORKLOADS.items()}
        return {
            LOOGLE: share["loogle"] / share["sharegpt"],
            OPEN: share["openthoughts"] / share["sharegpt"],
            VISITED: float(len(_burst(lab, seed))),
        }

    return over_seeds(one_seed, seeds)


def _share(lab: Lab, name: str, rate: float, count: int) -> float:
    rows = card_lengths(name, count, 0)
    if name == "openthoughts":
        rows = [replace(row, num_output=-(-row.num_output // SHORTER)) for row in rows]
    return play(lab, OURS, arrivals(rows, rate, 0, lab.stage.program.vocab_size), TARGETS_8B).prefill_share


def _burst(lab: Lab, seed: int) -> set[int]:
    rows = card_lengths("conversation", BEFORE + DURING, seed)
    vocab = lab.stage.program.vocab_size
    load = arrivals(rows, BASE_RATE, seed, vocab)
    begin_s = load[BEFORE].at_s
    faster = [Arrival(begin_s + (one.at_s - begin_s) / BURST, one.request) for one in load[BEFORE:]]
    return play(lab, OURS, [*load[:BEFORE], *faster], TARGETS_8B).partitions(begin_s, begin_s + BURST_S)


_shares = partial(Figure, evidence=Evidence.SIMULATED, calibrated_on=LAW_8B)
SHARES_NOTE = (
    "part of the device that prompts have over time, Llama-8B on one A100, 0.3, 20 and 1 requests a second; answers of "
    "OpenThoughts are a quarter as long, which makes them more like the others'"
)
BURST_NOTE = (
    "partitions that were used in the 30 s after a burst of 13 times the rate begins, of six; the more often decode's "
    "batch passes through the sizes that ask for each of them, the more are used"
)
SHARES_CASE = Case(
    "muxwise-shares",
    "which part of the device workloads give to prompts, and a burst",
    PAPER,
    (
        _shares(LOOGLE, Reference(PAPER, "4.5", "LooGLE: mostly prefill SMs"), "more", Between(low=1.0), "x",
                note=SHARES_NOTE),
        _shares(OPEN, Reference(PAPER, "4.5", "OpenThoughts: mostly decode SMs"), "less", Between(high=1.0), "x",
                note=SHARES_NOTE),
        _shares(VISITED, Reference(PAPER, "4.5", "all six configurations within 30 s"), "6", Equal(),
                note=BURST_NOTE),
    ),
    shares_out,
)  # fmt: skip


# A pool in two halves.

POOL_BYTES, POOL_COUNT = 32 * 10**9, 200
HALVED = "hits of a pool half as large, over those of the whole"
HALVED_NOTE = (
    "Conversation's prompts, one after another, and answers of one token; a pool of 244,000 tokens, half of what the "
    "64 conversations of the surrogate hold. 0.11 is the paper's extreme example"
)


def pool_out(seeds: Sequence[int] = SEEDS, count: int = POOL_COUNT) -> Answers:
    def one_seed(seed: int) -> Mapping[str, float]:
        rows = [replace(row, num_output=1) for row in card_lengths("conversation", count, seed)]
        whole, half = (_hits(rows, seed, size) for size in (POOL_BYTES, POOL_BYTES // 2))
        return {HALVED: half / whole}

    return over_seeds(one_seed, seeds)


def _hits(rows: Sequence[TraceRequest], seed: int, pool_bytes: int) -> float:
    lab = Lab(replace(long_8b(), cache_bytes=pool_bytes), seed)
    load = arrivals(rows, 0.5, seed, lab.stage.program.vocab_size)
    return play(lab, Contestant(step_tokens=8192), load).report.prefix_hit_fraction


POOL_CASE = Case(
    "muxwise-pool",
    "what a pool in two halves hits",
    PAPER,
    (
        Figure(
            HALVED,
            Reference(PAPER, "3.1", "the hit rate of a halved pool: 36.6 to 4.2 %"),
            "0.11",
            Between(high=0.8),
            "x",
            Evidence.SIMULATED,
            note=HALVED_NOTE,
        ),
    ),
    pool_out,
)
