"""Simulated: experiments that run the real engine in simulated time, several settings under equal loads.

Owns the shape of such an experiment: each load is played once under each setting, and every figure is read off the
reports of one load, so that settings are compared like with like. Prices, engine and clock are `plait.sim`'s.
Invariant: equal settings and loads give equal numbers; a run that refuses or fails a request gives none.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from itertools import accumulate
from typing import Protocol, TypeAlias

from plait.core.errors import InvariantError
from plait.reproduce.figure import Sampled
from plait.sim.arrivals import TraceRow, arrivals_of
from plait.sim.driver import simulate
from plait.sim.replica import ReplicaSpec, replica
from plait.sim.report import Report

Reports: TypeAlias = Mapping[str, Report]
"""Of one load, by the name of the setting."""
Reading: TypeAlias = Callable[[Reports], float]
"""A figure of one load."""


def compare(
    settings: Mapping[str, ReplicaSpec], loads: Sequence[Sequence[TraceRow]], readings: Mapping[str, Reading]
) -> dict[str, Sampled]:
    """Every reading over all loads, which usually differ in their seed alone."""
    found = [{name: run(spec, load) for name, spec in settings.items()} for load in loads]
    return {name: Sampled(tuple(read(reports) for reports in found)) for name, read in readings.items()}


def run(spec: ReplicaSpec, load: Sequence[TraceRow]) -> Report:
    report = simulate(arrivals_of(load, spec.program.vocab_size), replica(spec))
    if report.num_failed or report.num_refused:
        raise InvariantError(
            f"{report.num_failed} requests of an experiment failed and {report.num_refused} were refused; its memory "
            f"or its limit of tokens is too small"
        )
    return report


def poisson(lengths: Sequence[TraceRow], requests_per_s: float, seed: int) -> list[TraceRow]:
    """The lengths of a trace in its order, arriving independently at a mean rate."""
    rng = random.Random(seed)
    times = accumulate(rng.expovariate(requests_per_s) for _ in lengths)
    return [TraceRow(at_s, row.num_prompt, row.num_output) for at_s, row in zip(times, lengths, strict=True)]


def at_once(lengths: Sequence[TraceRow]) -> list[TraceRow]:
    """All of them waiting from the start: what the setting can do at most."""
    return [TraceRow(0.0, row.num_prompt, row.num_output) for row in lengths]


def sample_trace(name: str) -> list[TraceRow]:
    """A trace that comes with Plait: input_tokens,output_tokens, behind arrival_s where that is known."""
    text = resources.files("plait").joinpath("resources", name).read_text(encoding="utf-8")
    rows = [row if len(row) == 3 else ["0", *row] for row in csv.reader(text.splitlines()[1:])]
    return [TraceRow(float(at_s), int(num_prompt), int(num_output)) for at_s, num_prompt, num_output in rows]


class HasMean(Protocol):
    @property
    def mean(self) -> float: ...


def mean_of(samples: HasMean | None) -> float:
    """Of latencies that at least one request has."""
    if samples is None:
        raise InvariantError("no request of an experiment has the latency that it reads")
    return samples.mean
