"""Speculation: `plait bench speculation`, what drafts are worth on this machine, set of prompts by set of prompts.

Owns the table and the JSON object; `speculation_rounds` has the prompts and the runs. Says of every set at every number
of streams how many times as fast it is with drafts, and within what, as the rounds differ.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from math import inf
from statistics import median

from plait.build import load_model, start_engine
from plait.cli.speculation_rounds import SURE, WARM_TOKENS, Cell, Counts, Rounds, shortened
from plait.cli.streams import say, show, show_json
from plait.cli.terminal import download_progress
from plait.config.bench_options import SpeculationOptions
from plait.config.engine_options import EngineOptions
from plait.config.machine import processor_model
from plait.config.option import OptionSources
from plait.config.schedulers import DEFAULT_SCHEDULER
from plait.core.errors import UsageError

SCHEMA = "plait.bench.speculation/1"
MODEL_TOKENS = 2048
"""Prompts and answers of every set fit."""
CELL_S = 25.0
"""Of a set at a number of streams, on average at most: what one does not need others have."""
QUICK_PROMPT, QUICK_TOKENS = 64, 12


def run_speculation(sources: OptionSources) -> int:
    options, engine_options = sources.read(SpeculationOptions), sources.read(EngineOptions)
    if engine_options.scheduler != DEFAULT_SCHEDULER:
        raise UsageError(
            f"--scheduler is {engine_options.scheduler}, under which drafts cannot be switched off and on; take "
            f"--scheduler {DEFAULT_SCHEDULER}"
        )
    if engine_options.speculative == "off":
        engine_options = replace(engine_options, speculative="ngram")
    with download_progress(engine_options.model, quiet=options.quiet) as progress:
        model = load_model(engine_options, progress, datetime.now)
    if engine_options.max_model_len is None:
        engine_options = replace(engine_options, max_model_len=min(MODEL_TOKENS, model.config.max_positions))
    counts = Counts()
    engine = start_engine(engine_options, model, counts, say)
    try:
        if engine.draft is None:
            raise UsageError(f"{engine.notes[-1]}, so there is nothing to measure; take another model")
        if not options.json:
            show(f"{model.name} on {processor_model()}, --speculative {engine_options.speculative}")
            show(_HEADING)
        rounds = Rounds(engine, engine.draft, counts, options.temperature)
        cells = _measure(rounds, options)
    finally:
        engine.close()
    if options.json:
        show_json(
            {
                "schema": SCHEMA,
                "model": model.name,
                "processor": processor_model(),
                "speculative": engine_options.speculative,
                "temperature": options.temperature,
                "quick": options.quick,
                "cells": [cell.json_object() for cell in cells],
            }
        )
    return 0


def _measure(rounds: Rounds, options: SpeculationOptions) -> list[Cell]:
    by_set = {name: rounds.requests(name) for name in options.sets}
    if options.quick:
        by_set = {name: [shortened(requests[0], QUICK_PROMPT, QUICK_TOKENS)] for name, requests in by_set.items()}
    cells = []
    with asyncio.Runner() as loop:
        if not options.quiet:
            say(f"warming up: {WARM_TOKENS} tokens of every prompt, with and without drafts")
        rounds.warm(loop, by_set, options.streams)
        asked = [(name, streams) for name in by_set for streams in options.streams]
        end_s = time.perf_counter() + (0.0 if options.quick else CELL_S * len(asked))
        for place, (name, streams) in enumerate(asked):
            most_s = (end_s - time.perf_counter()) / (len(asked) - place)
            cell = rounds.cell(loop, name, by_set[name], streams, most_s)
            cells.append(cell)
            if not options.json:
                show(_row(cell))
    if not (options.json or options.quiet):
        say(_confidence(cells))
    return cells


def _confidence(cells: Sequence[Cell]) -> str:
    unsure = [f"{one.name} at {one.streams}" for one in cells if one.ratio.error > SURE]
    if not unsure:
        return "+-: two standard errors; every difference of 2 % can be told"
    return f"+-: two standard errors; a difference of 2 % cannot be told of {', '.join(unsure)} streams"


_HEADING = (
    f"{'set':6} {'streams':>7} {'tokens/s':>17} {'drafts':>7} {'+-':>6} {'of rounds':>15} {'processor':>9} "
    f"{'steps':>13} {'proposed':>8} {'right':>6} {'depth':>5} {'ahead':>11} {'gap us':>7} {'engine us/step':>14}"
)


def _row(cell: Cell) -> str:
    ratios, off, on, rounds = cell.round_ratios, cell.off, cell.on, cell.rounds
    before, after = off.tally, on.tally
    speeds = f"{cell.tokens / off.total_s:.1f} -> {cell.tokens / on.total_s:.1f}"
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    steps = f"{before.steps // rounds} -> {after.steps // rounds}"
    ahead = f"{before.ahead / before.steps:.0%} -> {after.ahead / after.steps:.0%}"
    gap = f"{median(after.gaps_s) * 1e6:.0f}" if after.gaps_s else "-"
    engine = f"{off.engine_s / before.steps * 1e6:.0f} -> {on.engine_s / after.steps * 1e6:.0f}"
    ratio = cell.ratio
    error = "-" if ratio.error == inf else f"{2 * ratio.error * ratio.value:.3f}"
    return (
        f"{cell.name:6} {cell.streams:>7} {speeds:>17} {ratio.value:>6.3f}x {error:>6} {spread:>15} "
        f"{off.processor_s / on.processor_s:>8.3f}x {steps:>13} {after.draft_tokens // rounds:>8} "
        f"{after.accepted // rounds:>6} {cell.depth:>5.1f} {ahead:>11} {gap:>7} {engine:>14}"
    )
