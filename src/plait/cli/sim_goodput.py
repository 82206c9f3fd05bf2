"""Sim goodput: `plait sim goodput`, the highest rate of requests that keeps its targets.

Owns how a rate is tried, the sweep for people and the JSON. The search is `plait.sim.goodput`'s.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

from plait.cli.sim import evidence_words
from plait.cli.sim_page import goodput_page
from plait.cli.sim_setup import ARRIVAL, STDOUT, Setup, set_up, target_words, write_file
from plait.cli.streams import say, show
from plait.config.option import OptionSources
from plait.config.sim_options import GoodputOptions, SimOptions
from plait.core.errors import UsageError
from plait.sim.attainment import has_target
from plait.sim.goodput import Point, Search, search
from plait.sim.results import SCHEMA, SCHEMA_VERSION, result_object
from plait.sim.trial import Trial, run_trial

REQUESTS = 1000
"""Of each run at least, unless the user says otherwise: enough for the 99th percentile, few enough for thirty runs."""
MOST_REQUESTS = 20_000
WINDOW_S = 20.0
"""Arrivals last at least so long, and `ANSWERS` times as long as a slow answer takes where there is no crowd: before,
the batch has not grown to the size that it keeps, and every rate seems to hold.
"""
ANSWERS = 4.0
START = 1.0
FLOOR = 1.0 / 1024
"""Of the rate that the search begins with."""


def run_goodput(sources: OptionSources) -> int:
    options, how = sources.read(SimOptions), sources.read(GoodputOptions)
    if options.speed is not None:
        raise UsageError(
            "--speed is not for plait sim goodput, which plays the trace at rates of its own; leave it out"
        )
    if options.order != ARRIVAL:
        raise UsageError("--order is not for plait sim goodput, whose requests arrive at rates; leave it out")
    start = options.rate or START
    setup = set_up(replace(options, rate=start), default_requests=REQUESTS)
    if not has_target(setup.slo):
        raise UsageError("no target was given; say what must hold with --ttft-slo, --tpot-slo or --itl-slo")
    tries = _Tries(setup, how.repeats, options)
    found = search(tries, start, how.attainment, start * FLOOR)
    shown = next((point for point in found.points if point.rate == found.rate), found.points[0])
    ran = replace(setup, inputs={**setup.inputs, "rate": shown.rate, "requests": shown.num_requests})
    _report(options, ran, found, tries.first_runs[shown.rate], tries.repeats)
    return 0 if found.rate is not None else 1


class _Tries:
    """Runs a rate with every seed. What the first rate shows says how long all must last."""

    def __init__(self, setup: Setup, repeats: int, options: SimOptions) -> None:
        self._setup = setup
        self._options = options
        # Where nothing is drawn, a second run would be the first one again.
        self.repeats = repeats if setup.workload.extent.rate is None else 1
        self.first_runs: dict[float, Trial] = {}
        self._window_s = WINDOW_S

    def __call__(self, rate: float) -> Point:
        window_s = self._window_s
        # A rate is one of sessions where requests wait for answers.
        extent = self._setup.workload.extent
        per_s = rate * extent.num_requests / extent.num_openings
        count = max(self._setup.workload.num_requests, min(MOST_REQUESTS, math.ceil(per_s * window_s)))
        runs = [self._run(rate, count, self._options.seed + one) for one in range(self.repeats)]
        if not self.first_runs and (e2e_s := runs[0].cluster.whole.e2e_s) is not None:
            self._window_s = max(WINDOW_S, ANSWERS * e2e_s.p99)
        self.first_runs[rate] = runs[0]
        point = Point(
            rate,
            count,
            count >= per_s * window_s,
            tuple(run.attainment_fraction or 0.0 for run in runs),
            tuple(run.goodput_per_s or 0.0 for run in runs),
            tuple(run.latencies.is_steady for run in runs),
        )
        if not self._options.quiet:
            say(f"{rate:.4g} requests/s: {point.attainment:.2%} of {count:,} requests")
        return point

    def _run(self, rate: float, count: int, seed: int) -> Trial:
        setup, workload = self._setup, self._setup.workload
        pace = replace(workload.pace, rate=rate, requests=count, seed=seed)
        cluster = replace(setup.cluster, replica=replace(setup.cluster.replica, seed=seed))
        return run_trial(cluster, replace(workload, pace=pace, source=setup.source_of(seed, count)), setup.slo)


def _report(options: SimOptions, setup: Setup, found: Search, trial: Trial, repeats: int) -> None:
    if options.html is not None:
        write_file(options.html, goodput_page(setup, found, trial), "--html")
    if options.json is not None:
        text = json.dumps(search_object(setup, found, trial, options.seed, repeats), allow_nan=False)
        if options.json == STDOUT:
            show(text)
        else:
            write_file(options.json, f"{text}\n", "--json")
    if options.json != STDOUT:
        for line in lines(setup, found, repeats):
            show(line)


def search_object(setup: Setup, found: Search, trial: Trial, seed: int, repeats: int) -> Mapping[str, object]:
    """`run` is the report of the first run at the answer; at the lowest rate that was tried if none holds."""
    return {
        "schema": f"{SCHEMA}.goodput",
        "schema_version": SCHEMA_VERSION,
        "evidence": "simulated",
        "calibrated_on": setup.calibrated_on,
        "rate": found.rate,
        "attainment": found.attainment,
        "repeats": repeats,
        "is_monotone": found.is_monotone,
        "is_enclosed": found.is_enclosed,
        "points": [
            {**asdict(point), "attainment": point.attainment, "holds": point.holds(found.attainment)}
            for point in found.points
        ],
        "run": result_object(trial, setup.inputs, seed, setup.calibrated_on),
    }


def lines(setup: Setup, found: Search, repeats: int) -> Iterator[str]:
    """The sweep and the answer."""
    yield from setup.words
    yield f"evidence  {evidence_words(setup)}"
    yield (
        f"targets   {target_words(setup.slo)} for {found.attainment:.4g} of the requests; "
        f"{repeats} run{'s' if repeats > 1 else ''} of each rate"
    )
    yield ""
    yield f"{'rate':>10}{'requests':>10}{'attainment':>12}{'worst run':>12}{'goodput':>10}"
    for point in found.points:
        short = "" if point.is_long else ", but is too short to tell"
        verdict = "holds" if point.holds(found.attainment) else ("fails" if point.is_stable else "queue grows")
        yield (
            f"{point.rate:>10.4g}{point.num_requests:>10,}{point.attainment:>12.2%}{min(point.attainments):>12.2%}"
            f"{point.goodput_per_s:>10.4g}  {verdict}{short}"
        )
    yield ""
    if found.rate is None:
        yield "no rate that was tried holds: the targets cannot be met even when requests hardly meet each other"
    else:
        more = "" if found.is_enclosed else ", and so do all that were tried: the workload is too short to tell more"
        yield f"goodput   {found.rate:.4g} requests a second hold{more}"
    if not found.is_monotone:
        yield "warning   a higher rate holds where a lower one does not; more --requests or --repeats make it steadier"
