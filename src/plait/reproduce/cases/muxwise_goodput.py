"""MuxWise's goodput (figure of Tool&Agent): the highest rate at which P99 TBT holds and the queue is steady.

Owns the search over a grid of rates, the tuning of the baseline's chunk, and the claims for Llama-8B and Llama-70B on
eight A100. Two of the paper's baselines have stand-ins that are no worse than they: see `STANDINS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from plait.core.request import Slo
from plait.reproduce.band import Between
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.lanes_on_a100 import (
    LAUNCHED,
    LAUNCHES,
    LAW_8B,
    LAW_70B,
    LEARNED,
    SEEDS,
    eight_a100,
    eight_a100_70b,
    over_seeds,
    with_launches,
)
from plait.reproduce.contests import Contestant, Played, arrivals, card_lengths, play
from plait.reproduce.figure import MUXWISE as PAPER
from plait.reproduce.figure import Evidence, Figure, Reference
from plait.reproduce.stages import Lab, Stage
from plait.sched.multiplex.presets import MUXWISE
from plait.sim.form import Form

COUNT = 36
STEP = 1.25
RATES = tuple(0.25 * STEP**place for place in range(25))
"""Requests a second: 0.25 to 54, each a quarter above the one before."""
CHUNKS = (128, 256, 512)
OURS, CHUNKED, APART, NO_REUSE = "MuxWise", "chunked", "1:1 disaggregation", "no reuse"
ONE_TO_ONE, NO_CACHE = Contestant(engines=Form(1, 1)), Contestant(MUXWISE, shares_prefixes=False)
STANDINS = (
    "chunked: decode first and prompts up to the budget, of which the best of 128, 256 and 512 tokens was taken "
    "at one seed; 1:1 disaggregation: four devices each; no reuse: MuxWise's own engine without its prefix cache, one "
    "seed, where the paper has LoongServe"
)
WIDE = "rates of the grid lie a quarter apart"


@dataclass(frozen=True)
class Contest:
    """One model. `tbt_s`: the bound on gaps; `start`: the rate from which the search goes up or down."""

    name: str
    tbt_s: float
    start: float
    published: Mapping[str, str]
    bands: Mapping[str, Between]

    def stages(self, *, launches: bool) -> tuple[Stage, Stage]:
        """All eight devices, and half of them."""
        make = eight_a100 if self.name == "8B" else eight_a100_70b
        both = make(8), make(4)
        return (with_launches(both[0]), with_launches(both[1])) if launches else both

    @cached_property
    def slo(self) -> Slo:
        return Slo(itl_s=self.tbt_s)


MODELS = (
    Contest(
        "8B",
        0.050,
        14.0,
        {CHUNKED: "2.6", APART: "1.3", NO_REUSE: "2.0"},
        {CHUNKED: Between(low=2.0), APART: Between(low=1.2), NO_REUSE: Between(low=1.6)},
    ),
    Contest(
        "70B",
        0.100,
        1.3,
        {CHUNKED: "3.06", APART: "1.62", NO_REUSE: "2.62"},
        {CHUNKED: Between(low=2.0), APART: Between(low=1.2), NO_REUSE: Between(low=1.6)},
    ),
)
BARE = "no launches, over chunked"


class Search:
    """Of one seed: every rate is played once at most."""

    def __init__(self, contest: Contest, seed: int, count: int, *, launches: bool) -> None:
        whole, half = contest.stages(launches=launches)
        self._labs = {OURS: Lab(whole, seed), APART: Lab(half, seed)}
        self._contest, self._seed = contest, seed
        self._rows = card_lengths("toolagent", count, seed)

    def goodput(self, name: str, contestant: Contestant, start: float) -> float:
        """The highest rate of the grid that holds, with none below it seen to fail; 0: not even the lowest does."""
        place = min(range(len(RATES)), key=lambda one: abs(RATES[one] - start))
        if self._holds(name, contestant, place):
            while place + 1 < len(RATES) and self._holds(name, contestant, place + 1):
                place += 1
            return RATES[place]
        while place and not self._holds(name, contestant, place - 1):
            place -= 1
        return RATES[place - 1] if place else 0.0

    def _holds(self, name: str, contestant: Contestant, place: int) -> bool:
        one = self.played(name, contestant, RATES[place])
        return one.report.itl_s is not None and one.report.itl_s.p99 <= self._contest.tbt_s and one.is_steady

    def played(self, name: str, contestant: Contestant, rate: float) -> Played:
        lab = self._labs[APART if name == APART else OURS]
        load = arrivals(self._rows, rate, self._seed, lab.stage.program.vocab_size)
        return play(lab, contestant, load, self._contest.slo)


def tuned(contest: Contest, count: int, *, launches: bool) -> tuple[Contestant, float]:
    """The chunk with the highest goodput at seed 0."""
    search = Search(contest, 0, count, launches=launches)
    found = {chunk: search.goodput(CHUNKED, Contestant(step_tokens=chunk), contest.start / 4) for chunk in CHUNKS}
    best = max(found, key=lambda chunk: found[chunk])
    return Contestant(step_tokens=best), found[best]


CONTESTANTS = {OURS: Contestant(MUXWISE), APART: ONE_TO_ONE}


def _goodputs(search: Search, contestants: Mapping[str, Contestant], starts: Mapping[str, float]) -> dict[str, float]:
    return {name: search.goodput(name, one, starts[name]) for name, one in contestants.items()}


def _ratio(found: Mapping[str, float], name: str) -> float:
    return found[OURS] / max(found[name], RATES[0] / STEP)


def _bare(contest: Contest, count: int) -> float:
    """Roofs alone, one seed."""
    search = Search(contest, 0, count, launches=False)
    _, chunked = tuned(contest, count, launches=False)
    return search.goodput(OURS, Contestant(MUXWISE), contest.start) / max(chunked, RATES[0] / STEP)


def work_out(contest: Contest, seeds: Sequence[int] = SEEDS, count: int = COUNT) -> Answers:
    """Searches of later seeds begin where the first one's ended. That without reuse, the longest, is of one seed."""
    chunk, rate = tuned(contest, count, launches=True)
    contestants = {**CONTESTANTS, CHUNKED: chunk}
    starts = {OURS: contest.start, CHUNKED: rate, APART: contest.start / STEP}
    search = Search(contest, seeds[0], count, launches=True)
    first = _goodputs(search, contestants, starts)
    first[NO_REUSE] = search.goodput(NO_REUSE, NO_CACHE, first[OURS] / 2)

    def one_seed(seed: int) -> Mapping[str, float]:
        later = Search(contest, seed, count, launches=True)
        found = first if seed == seeds[0] else _goodputs(later, contestants, first)
        return {f"over {name}": _ratio(found, name) for name in (CHUNKED, APART)}

    # Of some seeds hardly any rate is held without MuxWise.
    ratios = {name: replace(found, by_median=True) for name, found in over_seeds(one_seed, seeds).items()}
    return {**ratios, f"over {NO_REUSE}": _ratio(first, NO_REUSE), BARE: _bare(contest, count)}


def _case(contest: Contest) -> Case:
    law = LAW_8B if contest.name == "8B" else LAW_70B
    note = f"{COUNT} requests like Tool&Agent's; {STANDINS}; {WIDE}; {LEARNED}; {LAUNCHED}"
    figures = [
        Figure(
            f"over {name}",
            Reference(PAPER, "4.3", f"goodput of {contest.name} over {name}"),
            contest.published[name],
            contest.bands[name],
            "x",
            Evidence.SIMULATED,
            calibrated_on=tuple(dict.fromkeys((*law, *LAUNCHES))),
            note=note,
        )
        for name in (CHUNKED, APART, NO_REUSE)
    ]
    bare = Figure(
        BARE,
        Reference(PAPER, "4.3", f"goodput of {contest.name} over {CHUNKED}, roofs alone"),
        contest.published[CHUNKED],
        contest.bands[CHUNKED],
        "x",
        Evidence.SIMULATED,
        calibrated_on=law,
        note=(
            "the same where launching a step costs nothing, one seed: small chunks lose little then, because 256 "
            "tokens already keep the device busy, so most of what MuxWise gains over chunks is launches that they pay "
            "and it does not"
        ),
    )
    return Case(
        f"muxwise-goodput-{contest.name.lower()}",
        f"goodput of Llama-{contest.name} on eight A100, Tool&Agent",
        PAPER,
        (*figures, bare),
        lambda: work_out(contest),
    )


CASES = tuple(_case(contest) for contest in MODELS)
