"""Depth and share: drafts beside prompts, their number chosen together with the share of decode, or one of both alone.

Owns the contestants, the targets and the search for the highest rate that holds. Guesses are as often right as those of
n-grams were on Spec-Bench (`plait.sim.drafts`). The hypotheses are Plait's own: MuxWise and Bullet have no drafts, and
XY-Serve no targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from plait.core.request import Slo
from plait.reproduce.band import Between
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.lanes_on_a100 import LAW_8B, LEARNED, lengths, one_a100, over_seeds
from plait.reproduce.contests import Contestant, Played, arrivals, play
from plait.reproduce.figure import PLAIT as OURS
from plait.reproduce.figure import Evidence, Figure, Reference
from plait.reproduce.simulated import mean_of
from plait.reproduce.stages import Lab
from plait.sched.multiplex.mechanisms import Mechanism
from plait.sched.multiplex.presets import PLAIT, static_split
from plait.sim.drafts import every_record
from plait.sim.replica import SimulatedDrafts

LASTS_S = 12.0
"""Of arrivals, at every rate: a fixed number of requests would be a short burst at high rates, which anybody holds."""
SEEDS = range(2)
TARGETS = (0.015, 0.030)
"""Seconds of a later token, on average."""
TTFT_S = 1.0
ATTAINMENT = 0.9
STEP = 1.2
RATES = tuple(4.0 * STEP**place for place in range(20))
"""Requests a second: 4 to 128, each a fifth above the one before."""
SPLITS = (32, 54)
"""Units of decode, of which depth alone has the best."""

SHARE, DEPTH, AFTER, JOINT = "share alone", "depth alone", "share, then depth", "both together"
DRAFTS = SimulatedDrafts(every_record())
NEVER_RIGHT = SimulatedDrafts(every_record(), acceptance=0.0)
CONTESTANTS: Mapping[str, Contestant] = {
    SHARE: Contestant(PLAIT),
    AFTER: Contestant(PLAIT.without((Mechanism.JOINT_DEPTH,)), drafts=DRAFTS),
    JOINT: Contestant(PLAIT, drafts=DRAFTS),
}
COST_RATE, COST_TPOT_S = 12.0, 0.015
E2E, TOKENS = "time of a request, nothing right", "time of a token, nothing right"


def goodput(lab: Lab, contestant: Contestant, tpot_s: float, start: float, lasts_s: float) -> float:
    """The highest rate of the grid that holds with none below it seen to fail; 0: not even the lowest does."""

    def holds(place: int) -> bool:
        one = played(lab, contestant, RATES[place], tpot_s, lasts_s)
        return one.attainment >= ATTAINMENT and one.is_steady

    place = min(range(len(RATES)), key=lambda one: abs(RATES[one] - start))
    if holds(place):
        while place + 1 < len(RATES) and holds(place + 1):
            place += 1
        return RATES[place]
    while place and not holds(place - 1):
        place -= 1
    return RATES[place - 1] if place else 0.0


def played(lab: Lab, contestant: Contestant, rate: float, tpot_s: float | None, lasts_s: float) -> Played:
    rows = lengths("sharegpt", round(rate * lasts_s), lab.seed)
    load = arrivals(rows, rate, lab.seed, lab.stage.program.vocab_size)
    return play(lab, contestant, load, Slo(ttft_s=TTFT_S, tpot_s=tpot_s))


def region(
    seed: int, targets: Sequence[float] = TARGETS, lasts_s: float = LASTS_S
) -> Mapping[float, Mapping[str, float]]:
    """Goodput by target and contestant. Searches begin where the ones before ended."""
    lab, start, found = Lab(one_a100(), seed), RATES[6], {}
    for tpot_s in targets:
        rates: dict[str, float] = {}
        for name, contestant in CONTESTANTS.items():
            start = rates[name] = goodput(lab, contestant, tpot_s, start, lasts_s)
        fixed = [Contestant(static_split(units), drafts=DRAFTS) for units in SPLITS]
        rates[DEPTH] = max(goodput(lab, one, tpot_s, start, lasts_s) for one in fixed)
        found[tpot_s] = rates
    return found


def cost_of_drafts(seed: int, lasts_s: float = LASTS_S) -> Mapping[str, float]:
    """What guesses cost of which none is right."""
    lab = Lab(one_a100(), seed)
    wrong = Contestant(PLAIT, drafts=NEVER_RIGHT)
    with_drafts, without = (
        played(lab, one, COST_RATE, COST_TPOT_S, lasts_s).report for one in (wrong, CONTESTANTS[SHARE])
    )
    return {
        E2E: mean_of(with_drafts.e2e_s) / mean_of(without.e2e_s),
        TOKENS: mean_of(with_drafts.tpot_s) / mean_of(without.tpot_s),
    }


def work_out(targets: Sequence[float] = TARGETS, seeds: Sequence[int] = SEEDS, lasts_s: float = LASTS_S) -> Answers:
    """The region is of the first seed."""
    found = region(seeds[0], targets, lasts_s)
    ratios = {
        _named(tpot_s, other): rates[JOINT] / max(rates[other], RATES[0] / STEP)
        for tpot_s, rates in found.items()
        for other in (SHARE, DEPTH, AFTER)
    }
    return {**ratios, **over_seeds(lambda seed: cost_of_drafts(seed, lasts_s), seeds)}


def _named(tpot_s: float, other: str) -> str:
    return f"{JOINT} over {other}, {tpot_s * 1e3:g} ms a token"


_figure = partial(Figure, unit="x", evidence=Evidence.SIMULATED, calibrated_on=LAW_8B)
GUESSES = (
    "guesses are as often right as n-grams were in 48 answers of SmolLM2-135M to prompts of Spec-Bench, token by "
    "token; a larger model says other things"
)
LOADS = (
    f"requests like ShareGPT's on one A100, for {LASTS_S:g} s at every rate, one seed; a rate holds where "
    f"{ATTAINMENT:.0%} have their first "
    f"token within {TTFT_S:g} s and their mean, and the queue is steady; rates lie a fifth apart; depth alone: "
    f"the best of two fixed splits; {LEARNED}"
)
_BARS = {SHARE: ("more", 1.05), DEPTH: ("more", 1.05), AFTER: ("no less", 1.0)}

CASE = Case(
    "depth-and-share",
    "drafts beside prompts: depth and share together, or one alone",
    OURS,
    (
        *(
            _figure(
                _named(tpot_s, other),
                Reference(OURS, "hypothesis", f"goodput at {tpot_s * 1e3:g} ms a token over {other}"),
                published,
                Between(low=low),
                note=f"{GUESSES}; {LOADS}",
            )
            for tpot_s in TARGETS
            for other, (published, low) in _BARS.items()
        ),
        *(
            _figure(
                name,
                Reference(OURS, "hypothesis", f"{name}, with guesses over without"),
                "no more than a hundredth",
                Between(high=1.01),
                note=f"{COST_RATE * LASTS_S:g} requests at {COST_RATE:g} a second, {COST_TPOT_S * 1e3:g} ms a token; "
                f"{LEARNED}",
            )
            for name in (E2E, TOKENS)
        ),
    ),
    work_out,
)
