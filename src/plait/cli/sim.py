"""Sim: `plait sim`, a workload on hardware that is not here: the engine itself, in simulated time.

Owns the table and where the JSON and the page go. The object is `plait.sim.results`', defined in docs/sim.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from plait.cli.sim_page import trial_page
from plait.cli.sim_setup import STDOUT, Setup, load_of, progress, set_up, target_words, write_file
from plait.cli.streams import show
from plait.config.option import OptionSources
from plait.config.sim_options import SimOptions
from plait.sim.results import result_object
from plait.sim.trial import Trial, run_trial

UNCALIBRATED = "simulated, not calibrated: prices are bare rooflines, which no device reaches; compare, do not promise"


def run_sim(sources: OptionSources) -> int:
    options = sources.read(SimOptions)
    setup = set_up(options)
    with progress(setup.workload.num_requests, quiet=options.quiet) as ended:
        trial = run_trial(setup.cluster, setup.workload, setup.slo, ended, load_of(setup, options))
    calibrated_on = setup.calibrated_on
    if options.html is not None:
        write_file(options.html, trial_page(setup, trial), "--html")
    if options.json is not None:
        text = json.dumps(result_object(trial, setup.inputs, options.seed, calibrated_on), allow_nan=False)
        if options.json == STDOUT:
            show(text)
        else:
            write_file(options.json, f"{text}\n", "--json")
    if options.json != STDOUT:
        for line in lines(setup, trial):
            show(line)
    return 0


def lines(setup: Setup, trial: Trial) -> Iterator[str]:
    """The table for people."""
    cluster, report = trial.cluster, trial.cluster.whole
    yield from setup.words
    yield f"evidence  {evidence_words(setup)}"
    yield ""
    # Of one engine; that of all together would be hundreds of percent.
    yield from replace(report, busy_fraction=report.busy_fraction / len(cluster.engines)).lines()
    memory = max((engine.memory for engine in cluster.engines), key=lambda one: one.most_used_fraction)
    yield (
        f"decode   {cluster.decode_batch_mean:.1f} sequences in a step on average; {cluster.prefill_share:.0%} of the "
        "time in steps went to prompts"
    )
    yield (
        f"cache    {memory.used_fraction:.0%} used on average, {memory.most_used_fraction:.0%} at most; "
        f"{memory.waste_fraction:.1%} of it held no token"
    )
    yield (
        f"optimum  {trial.optimum_s:.1f} s if nobody had to wait and every operation ran at its peak: "
        f"{trial.optimum_fraction:.0%} of the time it took"
    )
    if trial.attainment_fraction is not None:
        yield (
            f"targets  {target_words(trial.slo)}: {trial.attainment_fraction:.2%} of the requests met them, "
            f"{trial.goodput_per_s:.3g} requests/s"
        )
    if report.num_overloaded:
        yield f"refused  {report.num_overloaded} requests, because their first token would have come too late"
    if too_long := report.num_refused - report.num_overloaded:
        yield (
            f"refused  {too_long} requests are longer than a sequence may be, "
            f"{setup.cluster.replica.max_model_tokens:,} tokens; --length-divisor makes all of them shorter"
        )


def evidence_words(setup: Setup) -> str:
    return UNCALIBRATED if setup.calibrated_on is None else f"simulated, calibrated on {setup.calibrated_on}"
