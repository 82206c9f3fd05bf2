"""Policies of prompts beside decode on this machine's cores: what each is worth, and what control costs.

Prints first what an ideal schedule of the steps measured here could give, and the floor: what gaps streams have with no
prompt beside them, so what this machine allows, and which bounds are below it. Then prompt tokens a second beside
streams that decode, and the streams' gaps, for every policy under two bounds on gaps, and what the longest of them
consist of; then a prompt of 4,096 tokens beside them, control latency, the cost of a choice and of planning, and
predicted against measured steps. Everything in one run, policies in turns,
once for each seed. Needs what `plait calibrate` measured on this machine, and a quiet machine.
The last line is one JSON object. --decisions: only what choosing costs on a simulated device of 108 units.

    .venv/bin/plait calibrate && .venv/bin/python bench/policies.py
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from statistics import mean, median

from lanes.decisions import show_decisions
from lanes.machine import Machine, measure_machine
from lanes.taken import watch_cores
from lanes.trial import CACHE_BYTES, Load, Trial, run_trial, with_scheduler

from plait.build import LoadedModel, choose_executor, load_model
from plait.cli.tune import QUIET_SHARE, others_share
from plait.config.engine_options import EngineOptions
from plait.config.machine import processor_seconds
from plait.config.places import calibration_file
from plait.core.errors import PlaitError
from plait.core.wakeups import wake_promptly
from plait.cost.calibrated import CalibratedModel, cost_model
from plait.cost.hardware import HardwareSpec, read_hardware
from plait.cost.roofline import RooflineModel
from plait.metrics.histogram import Histogram
from plait.model_formats import formats_of
from plait.server.running import SWITCH_INTERVAL_S

FACTORS = (1.5, 2.0)
"""Bounds on gaps, by `Bench.solo_s`."""
TOKEN_CHUNKS = (2, 4, 8, 16)
TIME_CHUNKS = (0.8, 0.95)
"""By the bound."""
HELD, MOST = 0.99, 0.9
"""Of the gaps, that must keep to the bound; 5 % beyond it are forgiven, as they are timers'."""
FORGIVEN = 1.05
RIVALS = ("token chunk", "time chunk", "lanes", "temporal")
TAKEN_S = 6.0
"""How long cores are watched."""
ALONE = "alone"
Trials = dict[str, dict[float, list[Trial]]]
"""By policy and bound, one for each seed."""


@dataclass(frozen=True, slots=True)
class Way:
    """A policy with its number, if it has one."""

    policy: str
    scheduler: str
    step_tokens: int | None = None

    @property
    def name(self) -> str:
        return f"{self.policy} {self.step_tokens or self.scheduler}"


@dataclass(frozen=True, slots=True)
class Score:
    """Of one way under one bound; tokens a second are the median over seeds, gaps those of all seeds together."""

    way: Way
    tokens_per_s: float
    gap_s: float
    """That `HELD` of the gaps keep to."""
    holds: bool
    holds_floor: bool
    """Beside what the streams' longer gaps have beyond their usual one when no prompt is there: in 99 of a hundred, and
    in nine of ten.
    """
    spread: float
    """Of tokens per second between seeds, by their median."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Gaps of the streams by themselves, of all seeds together."""

    usual_s: float
    most_s: float
    """That nine in ten keep to."""
    gap_s: float
    """That `HELD` of them keep to."""
    count: int

    @property
    def noise_s(self) -> float:
        """What no policy takes away."""
        return max(0.0, self.gap_s - self.usual_s)


@dataclass(slots=True)
class Bench:
    model: LoadedModel
    options: EngineOptions
    machine: Machine
    load: Load
    seeds: tuple[int, ...]
    only: tuple[str, ...] = ()
    """Policies that are run; none: all of them."""
    solo_s: float = 0.0
    """A decode step of the streams alone on all cores: their usual gap, in a trial of their own before all others. The
    machine's `decode_s` is of one length of context, and of another minute."""
    trials: dict[tuple[str, float], list[Trial]] = field(default_factory=dict)

    def limit_s(self, factor: float) -> float:
        return factor * self.solo_s

    def ideal(self, factor: float) -> dict[str, float]:
        """At the machine's own decode step, with which its other steps were measured in turns."""
        return self.machine.bounds(factor * self.machine.decode_s)

    def measure_solo(self) -> None:
        self.solo_s = gap_s([self.trial(Way(ALONE, "chunked"), 0.0, self.seeds[0])], 0.5)

    def run(self) -> None:
        for place, seed in enumerate(self.seeds):
            # The other way round every other time: what drifts meets the first and the last.
            jobs = list(self._jobs())
            for way, factor in jobs if place % 2 == 0 else reversed(jobs):
                self.trials.setdefault((way.name, factor), []).append(self.trial(way, factor, seed))
            print(f"seed {seed}: {len(jobs)} trials", file=sys.stderr)

    def trial(self, way: Way, factor: float, seed: int, *, window_s: float | None = -1.0) -> Trial:
        options = with_scheduler(self.options, way.scheduler, way.step_tokens)
        window = self.load.window_s if window_s == -1.0 else window_s
        limit_s = None if way.policy in ("token chunk", ALONE) else self.limit_s(factor)
        load = replace(self.load, seed=seed, window_s=window, is_alone=way.policy == ALONE)
        return run_trial(self.model, options, limit_s, load)

    def _jobs(self) -> Iterable[tuple[Way, float]]:
        """Chunks of tokens know no bound: one trial is for both."""
        yield Way(ALONE, "chunked"), 0.0
        for way in self.chunks:
            yield way, 0.0
        for factor in FACTORS:
            for way in self.timed(factor):
                yield way, factor

    def timed(self, factor: float) -> list[Way]:
        chunks = [f"chunked:{part * self.limit_s(factor) * 1e3:.1f}ms" for part in TIME_CHUNKS]
        named = [("lanes", "muxwise"), ("temporal", "temporal"), ("plait", "plait")]
        return self._wanted([*(Way("time chunk", one) for one in chunks), *(Way(*one) for one in named)])

    @property
    def chunks(self) -> list[Way]:
        return self._wanted(token_chunks(self.load.streams))

    def _wanted(self, ways: list[Way]) -> list[Way]:
        return [way for way in ways if not self.only or way.policy in self.only]

    def scores(self, factor: float) -> list[Score]:
        ways = [(way, 0.0) for way in self.chunks] + [(way, factor) for way in self.timed(factor)]
        return [self._score(way, self.trials[way.name, at], self.limit_s(factor)) for way, at in ways]

    @property
    def floor(self) -> Floor:
        trials = self.trials[Way(ALONE, "chunked").name, 0.0]
        return Floor(*(gap_s(trials, part) for part in (0.5, MOST, HELD)), sum(len(one.gaps) for one in trials))

    def _score(self, way: Way, trials: Sequence[Trial], limit_s: float) -> Score:
        rates = [one.prompt_tokens_per_s for one in trials]
        gap = gap_s(trials, HELD)
        spread = (max(rates) - min(rates)) / median(rates) if median(rates) else 0.0
        holds, floor = gap <= FORGIVEN * limit_s, self.floor
        # Both: a policy whose usual gap is beyond the bound has nothing to do with what cores that are away cost.
        beside = gap <= limit_s + floor.noise_s and gap_s(trials, MOST) <= limit_s + floor.most_s - floor.usual_s
        return Score(way, median(rates), gap, holds, holds or beside, spread)


def gap_s(trials: Sequence[Trial], part: float) -> float:
    """That this part of the gaps keeps to, of all trials together."""
    ordered = sorted(one for trial in trials for one in trial.gaps_s)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def token_chunks(streams: int) -> list[Way]:
    return [Way("token chunk", "chunked", streams + tokens) for tokens in TOKEN_CHUNKS]


def best(scores: Iterable[Score], policy: str, *, beside_floor: bool = False) -> Score | None:
    """Of its numbers the one with most tokens a second among those that hold the bound; None: none does."""
    held = [one for one in scores if one.way.policy == policy and (one.holds_floor if beside_floor else one.holds)]
    return max(held, key=lambda one: one.tokens_per_s, default=None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", action="store_true", help="what choosing costs on a simulated device, no more")
    parser.add_argument("--rows", type=int, default=64, help="of --decisions: sequences that run at once at most")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cache-dir", type=Path, default=None, help="where plait calibrate wrote")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--window-s", type=float, default=4.0, help="of a trial")
    parser.add_argument("--only", default="", help=f"policies to run, of {', '.join((*RIVALS, 'plait'))}; all of them")
    parser.add_argument("--quick", action="store_true", help="one seed, short windows: does everything run?")
    given = parser.parse_args()
    if given.decisions:
        show_decisions(given.rows)
        return 0
    try:
        return _real(given)
    except PlaitError as error:
        print(f"policies: {error}", file=sys.stderr)
        return 2


def _real(given: argparse.Namespace) -> int:
    cache = {} if given.cache_dir is None else {"cache_dir": given.cache_dir}
    options = EngineOptions(
        model=given.model,
        max_num_seqs=2 * given.streams,
        kv_cache_memory=CACHE_BYTES,
        enable_prefix_caching=False,
        **cache,
    )
    path = calibration_file(options.cache_dir)
    if not path.is_file():
        raise PlaitError(f"{path} is not there; run plait calibrate first")
    # As a server runs.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    wake_promptly()
    began_s, before = time.monotonic(), processor_seconds()
    model = load_model(options, lambda done, total: None, datetime.now)
    hardware = read_hardware(path, str(path))
    machine = measure_machine(model, options, given.streams, 1 if given.quick else 3)
    load = Load(given.streams, 1.0 if given.quick else given.window_s)
    only = tuple(one.strip() for one in given.only.split(",") if one.strip())
    seeds = tuple(range(1, 2 if given.quick else given.seeds + 1))
    bench = Bench(model, options, machine, load, seeds, only)
    bench.measure_solo()
    show_machine(machine, bench)
    taken = show_taken(machine, 1.0 if given.quick else TAKEN_S)
    bench.run()
    report: dict[str, object] = {"taken": taken, "floor": show_floor(bench)}
    for factor in FACTORS:
        report[f"{factor}x"] = show_scores(bench, factor)
    report["longest gaps"] = show_longest(bench, hardware)
    report["long"] = show_long(bench)
    report["control"] = show_control(bench)
    report["prediction"] = show_prediction(bench, hardware)
    others = others_share(before, processor_seconds(), time.monotonic() - began_s)
    if others > QUIET_SHARE:
        print(f"NOT QUIET: other programs used {others:.0%} of this machine, so this compares nothing")
    print(f"{time.monotonic() - began_s:.0f} s")
    fixed = {name: getattr(machine, name) for name in ("r_decode", "r_prefill", "ceiling", "overlap", "decode_s")}
    print(json.dumps({"machine": fixed, **report, "others": others}))
    return 0


def show_machine(machine: Machine, bench: Bench) -> None:
    streams = bench.load.streams
    print(f"{machine.units} cores; a decode step of {streams} streams takes {machine.decode_s * 1e3:.1f} ms on all of "
          f"them, {machine.r_decode:.2f} times as long on {machine.share}; a piece of a prompt {machine.r_prefill:.2f} "
          f"times as long on {machine.units - machine.share}")  # fmt: skip
    reach = 0.9 * machine.ceiling
    print(f"solo: the streams alone have a token every {bench.solo_s * 1e3:.1f} ms")
    print(f"side by side: {machine.overlap:.3f} of the work of all cores in turns; at best {machine.ceiling:.3f}, to "
          f"reach {reach:.3f}: {verdict(machine.overlap >= reach)}")  # fmt: skip
    if machine.ceiling < 1.05:
        print(f"lanes cannot help here by more than {machine.ceiling - 1:.1%}: both sides make use of every core")
    for factor in FACTORS:
        words = ", ".join(f"{name} {rate:.0f}" for name, rate in bench.ideal(factor).items())
        print(f"ideal at {factor}x: prompt tokens/s beside {streams} streams: {words}")
        if machine.decode_beside_s > factor * machine.decode_s:
            print(f"  side by side cannot hold it: one core is too coarse a share, decode takes "
                  f"{machine.decode_beside_s * 1e3:.1f} ms")  # fmt: skip


def show_taken(machine: Machine, seconds: float) -> dict[str, float]:
    """How often cores are away though nobody here computes, and what steps as long as decode lose by that."""
    taken = watch_cores(seconds)
    lengths_s, lost_s = taken.lengths_s, taken.lost_s(machine.decode_s, HELD)
    rate = sum(one >= 1e-3 for one in lengths_s) / seconds
    print(f"cores that nobody else here uses are away {rate:.1f} times a second for 1 ms and more, "
          f"{max(lengths_s, default=0.0) * 1e3:.1f} ms at most; a step of {machine.decode_s * 1e3:.1f} ms loses up to "
          f"{lost_s * 1e3:.1f} ms in {HELD:.0%} of times")  # fmt: skip
    return {"per_s": rate, "longest_s": max(lengths_s, default=0.0), "lost_s": lost_s}


def show_floor(bench: Bench) -> dict[str, object]:
    floor, solo_s = bench.floor, bench.solo_s
    times = ", ".join(
        f"{name} {seconds * 1e3:.1f} ms"
        for name, seconds in (("P50", floor.usual_s), ("P90", floor.most_s), ("P99", floor.gap_s))
    )
    print(f"\nfloor: {floor.count} gaps of the streams with no prompt beside them, {times} (P99 "
          f"{floor.gap_s / solo_s:.2f} x solo)")  # fmt: skip
    for factor in FACTORS:
        limit_s = bench.limit_s(factor)
        left_s, name = limit_s - floor.gap_s, f"{factor}x solo ({limit_s * 1e3:.1f} ms)"
        if floor.gap_s > FORGIVEN * limit_s:
            print(
                f"  {factor}x solo ({limit_s * 1e3:.1f} ms) is below this machine's own scatter: no policy can hold it"
            )
        elif left_s <= 0:
            print(f"  {name} leaves nothing to prompts but what is forgiven")
        else:
            print(f"  {name} leaves {left_s * 1e3:.1f} ms of a gap to prompts, "
                  f"{left_s / limit_s:.0%} of the time, if steps with them scatter no more")  # fmt: skip
    return {"usual_s": floor.usual_s, "most_s": floor.most_s, "gap_s": floor.gap_s, "count": floor.count}


def show_scores(bench: Bench, factor: float) -> dict[str, object]:
    limit_s, scores, floor = bench.limit_s(factor), bench.scores(factor), bench.floor
    print(f"\nbound on gaps {factor}x solo = {limit_s * 1e3:.1f} ms; {len(bench.seeds)} seeds")
    print(f"holds: P99 within {FORGIVEN} of it; beside the floor: within it and {floor.noise_s * 1e3:.1f} ms, by which "
          f"the floor's P99 is above its median, P90 too ({(floor.most_s - floor.usual_s) * 1e3:.1f} ms)")  # fmt: skip
    print(f"{'policy':28} {'prompt tok/s':>12} {'spread':>7} {'P99 gap':>9}  holds  beside the floor")
    for one in scores:
        print(f"{one.way.name:28} {one.tokens_per_s:12.0f} {one.spread:7.1%} {one.gap_s * 1e3:7.1f}ms  "
              f"{'yes' if one.holds else 'no':5}  {'yes' if one.holds_floor else 'no'}")  # fmt: skip
    found: dict[str, object] = {
        "limit_s": limit_s,
        "ideal": bench.ideal(factor),
        "scores": {
            one.way.name: [one.tokens_per_s, one.gap_s, one.holds, one.holds_floor, one.spread] for one in scores
        },
    }
    for beside_floor in (False, True):
        title = "beside the floor" if beside_floor else "holds"
        found[title] = show_comparison(bench, scores, factor, title, beside_floor=beside_floor)
    return found


def show_comparison(
    bench: Bench, scores: Sequence[Score], factor: float, title: str, *, beside_floor: bool
) -> dict[str, float]:
    """Goodput of plait by that of the others, among those that hold the bound in one of the two senses."""
    found: dict[str, float] = {}
    plait = best(scores, "plait", beside_floor=beside_floor)
    if plait is None:
        print(f"{title}: plait does not")
        return found
    bests = {name: best(scores, name, beside_floor=beside_floor) for name in RIVALS}
    rivals = [one.tokens_per_s for one in bests.values() if one is not None]
    if rivals and max(rivals) > 0:
        over_best = found["over_best"] = plait.tokens_per_s / max(rivals)
        print(f"{title}: plait over the best of {', '.join(RIVALS)}: {over_best:.3f} (reach 0.97): "
              f"{verdict(over_best >= 0.97)}")  # fmt: skip
    chunk, bound = bests["token chunk"], max(bench.ideal(factor).values())
    if chunk is None or chunk.tokens_per_s <= 0:
        print(f"{title}: no token chunk does: what plait is over it has no number")
        return found
    over_chunk = found["over_chunk"] = plait.tokens_per_s / chunk.tokens_per_s
    print(f"{title}: plait over the tuned token chunk ({chunk.way.name}): {over_chunk:.3f} (reach 1.10): "
          f"{verdict(over_chunk >= 1.10)}")  # fmt: skip
    gap = bound - chunk.tokens_per_s
    if gap > 0.05 * chunk.tokens_per_s:
        closed = found["closed"] = (plait.tokens_per_s - chunk.tokens_per_s) / gap
        print(f"{title}: of the way from there to the ideal: {closed:.0%} (reach 70 %): {verdict(closed >= 0.7)}")
    else:
        print(f"{title}: the ideal is {bound / chunk.tokens_per_s - 1:+.1%} of the tuned token chunk: nothing to gain")
    return found


def show_longest(bench: Bench, hardware: HardwareSpec) -> dict[str, list[float]]:
    """What gaps consist of: those in the middle, and the longest of a hundred."""
    cost, found = prices(bench.model, bench.options, hardware), dict[str, list[float]]()
    print("\ngaps in their parts, ms: before the step (prompts alone, the engine) + on the device (by its price on all "
          "cores) + seen later than the one before; of the middle fifth, and of the longest hundredth")  # fmt: skip
    for (name, factor), trials in bench.trials.items():
        gaps = sorted((one for trial in trials for one in trial.gaps), key=lambda one: one.whole_s)
        if not gaps:
            continue
        middle, longest = gaps[2 * len(gaps) // 5 : 3 * len(gaps) // 5 + 1], gaps[int(HELD * len(gaps)) :]
        units = trials[0].units
        parts = [
            mean(part) * 1e3
            for some in (middle, longest)
            for part in (
                [one.whole_s for one in some],
                [one.before_s for one in some],
                [one.device_s for one in some],
                [cost.price(one.step.shape, units).expected_s - cost.overhead_s(one.step.shape) for one in some],
                [one.late_s for one in some],
            )
        ]
        words = [f"{a:5.1f} = {b:4.1f} + {c:4.1f} ({d:4.1f}) + {e:4.1f}" for a, b, c, d, e in (parts[:5], parts[5:])]
        print(f"{name:28} {f'{factor}x' if factor else '':5} {words[0]}   {words[1]}")
        found[f"{name} {factor}"] = parts
    return found


def show_long(bench: Bench) -> dict[str, object]:
    """A prompt of 4,096 tokens beside the streams, under plait and the best other policy that holds 2x solo."""
    factor = FACTORS[-1]
    limit_s, scores = bench.limit_s(factor), bench.scores(factor)
    others = [one for name in RIVALS if (one := best(scores, name, beside_floor=True)) is not None]
    ways = [Way("plait", "plait")] + [one.way for one in sorted(others, key=lambda one: -one.tokens_per_s)[:1]]
    print(f"\na prompt of {bench.load.only} tokens beside {bench.load.streams} streams, bound {limit_s * 1e3:.1f} ms")
    found: dict[str, tuple[float, float]] = {}
    for way in ways:
        trials = [bench.trial(way, factor, seed, window_s=None) for seed in bench.seeds]
        gap, ttft_s = gap_s(trials, HELD), median(one.ttft_s or 0.0 for one in trials)
        found[way.name] = (gap, ttft_s)
        print(f"{way.name:28} TTFT {ttft_s:6.2f} s, P99 gap {gap * 1e3:.1f} ms "
              f"(reach {FORGIVEN * limit_s * 1e3:.1f}): {verdict(gap <= FORGIVEN * limit_s)}")  # fmt: skip
    if len(ways) > 1:
        ratio = found[ways[0].name][1] / found[ways[1].name][1]
        print(f"TTFT of plait by that of {ways[1].name}: {ratio:.3f} (reach 1.1): {verdict(ratio <= 1.1)}")
    return {name: list(pair) for name, pair in found.items()}


def show_control(bench: Bench) -> dict[str, object]:
    """From a decision to a worker that acts on it; what choosing, planning and committing cost."""
    trials = [one for (name, _), found in bench.trials.items() if not name.startswith("token") for one in found]
    delays = summed(trial.control.delays for trial in trials)
    own = summed(trial.control.own_delays for trial in trials)
    found: dict[str, object] = {}
    print()
    if delays is not None and delays.count:
        late = delays.at_most(0.99)
        mean_us = delays.total / delays.count * 1e6
        print(f"control latency, {delays.count} changes of shares: mean {mean_us:.0f} us, P99 {at_most(late)} (reach "
              f"0.5 ms): {verdict(late is not None and late <= 0.0005)}")  # fmt: skip
        found["delay_p99_s"] = late
    if own is not None and own.count:
        print(f"  of that workers ran, to the end of a unit: mean {own.total / own.count * 1e6:.0f} us, P99 "
              f"{at_most(own.at_most(0.99))}; the rest of it others had their cores")  # fmt: skip
        found["own_delay_p99_s"] = own.at_most(0.99)
    for policy in ("plait", "lanes", "temporal", "time chunk"):
        costs = sorted(
            second
            for (name, _), of in bench.trials.items()
            if name.startswith(policy)
            for one in of
            for second in one.control.decisions
        )
        if costs:
            middle, p99 = costs[len(costs) // 2], costs[int(0.99 * (len(costs) - 1))]
            print(f"a choice of {policy}: median {middle * 1e6:.0f} us, P99 {p99 * 1e6:.0f} us of {len(costs)} "
                  f"(reach 100 us): {verdict(middle < 1e-4)}")  # fmt: skip
            found[f"choice {policy}"] = [middle, p99]
    turns = [turn for one in trials for turn in one.control.turns if turn[1] == bench.load.streams]
    if turns:
        each = median(seconds / count for seconds, count in turns)
        print(f"planning and committing a decode step, the choice left out: {each * 1e6:.1f} us per sequence (reach "
              f"12 us): {verdict(each <= 12e-6)}")  # fmt: skip
        found["turn_s"] = each
    return found


def summed(histograms: Iterable[Histogram | None]) -> Histogram | None:
    found: Histogram | None = None
    for one in histograms:
        if one is not None and found is not None:
            found.counts = [a + b for a, b in zip(found.counts, one.counts, strict=True)]
            found.total += one.total
        elif one is not None:
            found = Histogram.of(one.bounds, one.counts, one.total)
    return found


def at_most(seconds: float | None) -> str:
    return "beyond the last bucket" if seconds is None else f"at most {seconds * 1e3:g} ms"


def show_prediction(bench: Bench, hardware: HardwareSpec) -> dict[str, object]:
    """Steps of the trials of token chunks, alone on all cores, by their price: none of them was calibrated with."""
    cost = prices(bench.model, bench.options, hardware)
    errors = sorted(
        abs(cost.price(step.shape, one.units).expected_s - cost.overhead_s(step.shape) - seconds) / seconds
        for (name, _), found in bench.trials.items()
        if name.startswith("token")
        for one in found
        for step in one.steps
        if (seconds := step.result.end_s - step.result.start_s) > 0
    )
    found: dict[str, object] = {}
    if errors:
        middle = errors[len(errors) // 2]
        print(f"predicted against measured, {len(errors)} steps: median error {middle:.1%} (reach 8 %): "
              f"{verdict(middle < 0.08)}")  # fmt: skip
        found["error"] = middle
    kept = None if hardware.calibration is None else hardware.calibration.held_out
    if kept is not None:
        is_kept = 0.001 <= kept.violations <= 0.01 and kept.tightness <= 1.4
        print(f"bound of decode beside a prompt, held out of plait calibrate: {kept.violations:.1%} of "
              f"{kept.num_bounded} took longer (reach 0.1 to 1 %), bound {kept.tightness:.2f} of what was measured "
              f"(reach 1.4): {verdict(is_kept)}")  # fmt: skip
        found |= {"violations": kept.violations, "tightness": kept.tightness, "num_bounded": kept.num_bounded}
    return found


def prices(model: LoadedModel, options: EngineOptions, hardware: HardwareSpec) -> CalibratedModel | RooflineModel:
    cache_type = choose_executor(options, model.program, None).cache_type
    return cost_model(model.program, formats_of(model, options, cache_type), hardware)


def verdict(holds: bool) -> str:
    return "reached" if holds else "NOT reached"


if __name__ == "__main__":
    sys.exit(main())
