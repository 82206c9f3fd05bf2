"""What Bullet's parts are worth (its figures of static splits and of the ablation): two cases on one A100.

Owns the claims: no static split is as good on every workload as one that follows the load, and only partition and
scheduler together are good on all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean

from plait.reproduce.band import Band, Between
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.lanes_on_a100 import (
    LAUNCHED,
    LAUNCHES,
    LAW_8B,
    LEARNED,
    LOADS,
    NAMES,
    RATES,
    SEEDS,
    TARGETS,
    lengths,
    one_a100,
    over_seeds,
    with_launches,
)
from plait.reproduce.contests import Contestant, Played, arrivals, play
from plait.reproduce.figure import BULLET as PAPER
from plait.reproduce.figure import Evidence, Figure, Reference
from plait.reproduce.simulated import mean_of
from plait.reproduce.stages import Lab
from plait.sched.multiplex.mechanisms import Mechanism
from plait.sched.multiplex.presets import BULLET, static_split

COUNT = 48
STATIC = (72, 84, 96)
"""SMs of prompts."""
_SCHEDULER = (Mechanism.QUEUE_ORDER, Mechanism.DECODE_DELAY, Mechanism.HAND_OVER, Mechanism.BALANCE)
NAIVE, PARTITION, SCHEDULER, BOTH = "neither", "partition alone", "scheduler alone", "both"
PARTS = {
    NAIVE: Contestant(BULLET.without((Mechanism.PARTITION, *_SCHEDULER))),
    PARTITION: Contestant(BULLET.without((Mechanism.SHARES, *_SCHEDULER))),
    SCHEDULER: Contestant(BULLET.without((Mechanism.PARTITION,))),
    BOTH: Contestant(BULLET),
}
SPLITS = {f"{units} SMs": Contestant(static_split(108 - units)) for units in STATIC}
WORKLOADS = tuple(RATES)
TIE = 0.02


def played(workload: str, seed: int, count: int, contestants: Mapping[str, Contestant]) -> dict[str, Played]:
    lab = Lab(with_launches(one_a100()), seed)
    load = arrivals(lengths(workload, count, seed), RATES[workload], seed, lab.stage.program.vocab_size)
    return {name: play(lab, one, load, TARGETS[workload]) for name, one in contestants.items()}


# Static splits.


def _splits(seed: int, count: int) -> Mapping[str, float]:
    found = {workload: played(workload, seed, count, {BOTH: PARTS[BOTH], **SPLITS}) for workload in WORKLOADS}
    answers = {
        _over_best(workload): one[BOTH].attainment / max(one[name].attainment for name in SPLITS)
        for workload, one in found.items()
    }
    for name in SPLITS:
        worst = min(WORKLOADS, key=lambda workload: found[workload][name].attainment)
        answers[_over_worst(name)] = found[worst][BOTH].attainment / max(found[worst][name].attainment, 1 / count)
    wide, ours = found["sharegpt"]["84 SMs"].report, found["sharegpt"][BOTH].report
    return {**answers, WIDE_TTFT: mean_of(wide.ttft_s) / mean_of(ours.ttft_s)}


def _over_best(workload: str) -> str:
    return f"{NAMES[workload]}, requests within targets, over the best static split"


def _over_worst(name: str) -> str:
    return f"requests within targets, over {name} of prompts on its worst workload"


WIDE_TTFT = "ShareGPT, TTFT of 84 SMs over ours"


def splits_out(seeds: Sequence[int] = SEEDS, count: int = COUNT) -> Answers:
    return over_seeds(lambda seed: _splits(seed, count), seeds)


DISJOINT = (
    "prompts have so many SMs while both run and decode the others; in the paper's static splits decode may use all, "
    "which steps of one device cannot do here; prompts on all of them beside decode on all is bullet-ablation's neither"
)
_figure = partial(Figure, evidence=Evidence.SIMULATED, calibrated_on=(*LAW_8B, *LAUNCHES))
ABOUT = f"{LOADS}; {COUNT} requests of each; {LEARNED}; {LAUNCHED}"


def _split_figures() -> tuple[Figure, ...]:
    static = partial(Reference, PAPER, "4.4")
    note = f"{ABOUT}; {DISJOINT}"
    ties = [
        _figure(_over_best(one), static(f"static splits, {one}"), "no static count is best", Between(low=1 - TIE), "x")
        for one in WORKLOADS
    ]
    beats = [
        _figure(_over_worst(name), static(f"static splits, {name}"), "no static count is best", Between(low=1.0), "x")
        for name in SPLITS
    ]
    wide = _figure(WIDE_TTFT, static("static splits, 84 SMs: TTFT"), "worse", Between(low=1.0), "x", note=note)
    return (*ties, *beats, wide)


SPLIT_CASE = Case("bullet-splits", "static splits of the device beside one that follows the load", PAPER,
                  _split_figures(), splits_out)  # fmt: skip


# The ablation.


def _parts(seed: int, count: int) -> Mapping[str, float]:
    found = {workload: played(workload, seed, count, PARTS) for workload in ("sharegpt", "azure_code")}
    code = found["azure_code"]

    def ttft(name: str) -> float:
        return mean_of(code[name].report.ttft_s)

    def tpot(name: str) -> float:
        return mean_of(code[name].report.tpot_s)

    answers = {
        PART_TPOT: tpot(PARTITION) / tpot(NAIVE),
        PART_TTFT: ttft(PARTITION) / ttft(BOTH),
        NAIVE_TPOT: tpot(NAIVE) / tpot(PARTITION),
        SCHEDULED: ttft(SCHEDULER) / ttft(NAIVE),
    }
    for other in (NAIVE, PARTITION, SCHEDULER):
        answers[_over(other)] = fmean(one[BOTH].attainment for one in found.values()) / fmean(
            one[other].attainment for one in found.values()
        )
    return answers


PART_TPOT = "Azure-code, TPOT of partition alone over neither"
PART_TTFT = "Azure-code, TTFT of partition alone over both"
NAIVE_TPOT = "Azure-code, TPOT of neither over partition alone"
SCHEDULED = "Azure-code, TTFT of scheduler alone over neither"


def _over(other: str) -> str:
    return f"ShareGPT and Azure-code, requests within targets, both over {other}"


def parts_out(seeds: Sequence[int] = SEEDS, count: int = COUNT) -> Answers:
    return over_seeds(lambda seed: _parts(seed, count), seeds)


MAPPED = (
    "neither: both on all units, first come first; partition alone: half of the device each, first come first; "
    "scheduler alone: order of the queue, delay of decode and hand-over without a partition"
)


def _part_figures() -> tuple[Figure, ...]:
    def figure(name: str, published: str, band: Band) -> Figure:
        reference = Reference(PAPER, "4.4", f"ablation: {name}")
        return _figure(name, reference, published, band, "x", note=f"{MAPPED}; {ABOUT}")

    return (
        figure(PART_TPOT, "better", Between(high=1.0)),
        figure(PART_TTFT, "unacceptable", Between(low=2.0)),
        figure(NAIVE_TPOT, "high", Between(low=1.0)),
        figure(SCHEDULED, "kept", Between(high=1.0 + TIE)),
        *(
            figure(_over(other), "only both are good on all", Between(low=1.0))
            for other in (NAIVE, PARTITION, SCHEDULER)
        ),
    )


PART_CASE = Case("bullet-ablation", "partition and scheduler, each without the other", PAPER,
                 _part_figures(), parts_out)  # fmt: skip
