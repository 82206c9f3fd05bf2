"""Plait beside other engines: workloads W1 to W5 in the order Plait, peer, peer, Plait, again and again.

W1 one stream 128/128; W2 a prompt of 1,024 tokens; W3 64 requests at once 128/128; W4 64 at once, 768 tokens shared
and 32 of their own, 64 out; W5 Poisson arrivals, lognormal lengths. Greedy, exact token counts, new words each time.
Plait runs in process, peers behind HTTP or as their own programs: the table says which. Prints a table and, as its
last line, one JSON object. Without a peer it measures Plait alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from serving.comparison import Ratio, fraction_of, headlines, ratio, turns
from serving.contenders import Contender, Facts, PlaitContender, Sample, Task
from serving.figures import Figures
from serving.limits import MachineLimits, Weights, bound, measure, read_limits
from serving.peers import contender_of, parse_peer
from serving.plait_engine import engine_options, open_model, running
from serving.prompts import whole_words
from serving.quiet import QUIET_FRACTION, busy_fraction
from serving.workloads import QUICK_SIZES, Sizes, Workload, workloads_named

from plait.build import LoadedModel
from plait.cli.limits import native_limits
from plait.config.engine_options import EngineOptions
from plait.core.errors import PlaitError
from plait.weights.gguf import read_gguf

VOCABULARY_KEY = "tokenizer.ggml.tokens"
Cycles = list[list[Sample]]
"""The samples of each cycle."""


def main() -> int:
    given = _arguments()
    # Whoever ends this run ends the servers that it started, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        workloads = workloads_named(given.workloads)
        peers = [parse_peer(text) for text in given.peer]
        options = engine_options(dict(pair.split("=", 1) for pair in ["max-num-seqs=64", *given.plait]))
        limits = read_limits(given.limits) if given.limits else _measured_limits(quick=given.quick)
        model = open_model(options)
        vocabulary = read_gguf(model.weights.source).metadata[VOCABULARY_KEY]
        assert isinstance(vocabulary, Sequence)
        words = whole_words([str(one) for one in vocabulary])
        task = Task(workloads, QUICK_SIZES if given.quick else Sizes(), words, given.seed)
        with ExitStack() as keep:
            logs = Path(given.logs or tempfile.mkdtemp(prefix="plait-bench-"))
            until = keep if given.keep else None
            theirs = [contender_of(peer, logs / f"peer-{place}.log", until) for place, peer in enumerate(peers)]
            ours = PlaitContender(_facts_of_plait(options, model, given.plait), options, model, keep=until)
            cycles = 1 if given.quick else given.cycles
            busy: list[float | None] = []
            pairs = [_in_turn(ours, one, task, cycles, busy) for one in theirs] or [([ours.visit(task, 0, 1)], [])]
    except (ValueError, OSError, RuntimeError, PlaitError) as error:
        # A wrong argument, a model or a command that is not there, a server that does not start.
        print(f"beside_peers: {error}", file=sys.stderr)
        return 2
    report(ours, theirs, pairs, task, model, limits, max((one for one in busy if one is not None), default=None))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peer", action="append", default=[], metavar="JSON", help="a peer, or a file with one; may be given again"
    )
    parser.add_argument(
        "--plait", action="append", default=[], metavar="OPTION=VALUE", help="an option of plait, e.g. model=FILE"
    )
    parser.add_argument("--workloads", default="w1,w2,w3,w4")
    parser.add_argument("--cycles", type=int, default=3, help="how often Plait, peer, peer, Plait [3]")
    parser.add_argument(
        "--keep", action="store_true", help="start each engine once; while others are measured it is frozen, Plait idle"
    )
    parser.add_argument("--limits", type=Path, metavar="FILE", help="what `plait bench limits` printed")
    parser.add_argument("--logs", metavar="DIR", help="where the words of servers go")
    parser.add_argument("--seed", type=int, default=1, help="of lengths and arrivals in W5")
    parser.add_argument("--quick", action="store_true", help="one cycle of tiny workloads: does everything run?")
    return parser.parse_args()


def _measured_limits(*, quick: bool) -> MachineLimits | None:
    try:
        return measure(native_limits(), quick=quick)
    except PlaitError as error:
        print(f"no fractions of the limits: {error}", file=sys.stderr)
        return None


def _facts_of_plait(options: EngineOptions, model: LoadedModel, flags: Sequence[str]) -> Facts:
    with running(options, model) as engine:
        executor = engine.executor
    arithmetic = "f32" if executor.name == "reference" or _is_float(model) else "int8"
    return Facts(
        label=f"plait {executor.name}",
        way="in process",
        file=model.weights.source.name,
        precision=executor.fingerprint,
        flags=" ".join(["max-num-seqs=64", *flags]),
        weights=Weights(model.weights.total_bytes, arithmetic),
    )


def _is_float(model: LoadedModel) -> bool:
    numbers = sum(spec.num_elements for spec in model.program.weights.values())
    return model.weights.total_bytes >= 2 * numbers


def _in_turn(
    ours: Contender, theirs: Contender, task: Task, num_cycles: int, busy: list[float | None]
) -> tuple[Cycles, Cycles]:
    """Before each turn, while nothing of ours runs, `busy` gets what others make of the machine."""
    both: tuple[Cycles, Cycles] = ([[] for _ in range(num_cycles)], [[] for _ in range(num_cycles)])
    for turn in turns(num_cycles):
        contender = (ours, theirs)[turn.contender]
        busy.append(busy_fraction())
        print(f"cycle {turn.cycle + 1} of {num_cycles}: {contender.facts.label}", file=sys.stderr, flush=True)
        both[turn.contender][turn.cycle] += contender.visit(task, turn.cycle, turn.times)
    return both


def report(
    ours: Contender,
    theirs: Sequence[Contender],
    pairs: Sequence[tuple[Cycles, Cycles]],
    task: Task,
    model: LoadedModel,
    limits: MachineLimits | None,
    busy: float | None,
) -> None:
    """The table and the JSON object."""
    rows: list[dict[str, object]] = []
    ratios: list[dict[str, object]] = []
    print(f"{'engine':<28}{'way':<12}{'':<4}{'median':>10}{'least':>10}{'most':>10}  {'unit':<9}{'of limit':>8}  n")
    for workload in task.workloads:
        our_samples = [figures for mine, _ in pairs for figures in _flat(mine, workload)]
        rows.append(_row(ours.facts, workload, our_samples, _bound(ours.facts, workload, task.sizes, model, limits)))
        for contender, (mine, others) in zip(theirs, pairs, strict=False):
            limit = _bound(contender.facts, workload, task.sizes, model, limits)
            rows.append(_row(contender.facts, workload, _flat(others, workload), limit))
            found = ratio(workload, _by_cycle(mine, workload), _by_cycle(others, workload))
            ratios.append(_ratio_row(ours.facts, contender.facts, workload, found))
    if busy is not None and busy > QUIET_FRACTION:
        print(f"NOT QUIET: others used up to {busy:.0%} of the machine before a turn; these figures compare nothing")
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "busy_fraction": busy}
    known = None if limits is None else asdict(limits)
    print(json.dumps({"rows": rows, "ratios": ratios, "limits": known, "sizes": asdict(task.sizes), **machine}))


def _by_cycle(cycles: Cycles, workload: Workload) -> list[list[Figures]]:
    return [[sample[workload.name] for sample in cycle if workload.name in sample] for cycle in cycles]


def _flat(cycles: Cycles, workload: Workload) -> list[Figures]:
    return [figures for cycle in _by_cycle(cycles, workload) for figures in cycle]


def _bound(
    facts: Facts, workload: Workload, sizes: Sizes, model: LoadedModel, limits: MachineLimits | None
) -> float | None:
    if limits is None or facts.weights.num_bytes == 0:
        return None
    return bound(workload, sizes, model.program, facts.weights, limits)


def _row(facts: Facts, workload: Workload, samples: Sequence[Figures], limit: float | None) -> dict[str, object]:
    """Print a row of the table and return it for the JSON object."""
    values = headlines(workload, samples)
    errors = sum(one.num_errors for one in samples)
    short = sum(one.num_short for one in samples)
    median = statistics.median(values) if values else None
    of_limit = None if median is None or limit is None else fraction_of(workload, median, limit)
    name = f"{facts.label:<28}{facts.way:<12}{workload.name:<4}"
    if median is None:
        reason = next((one.first_error for one in samples if one.first_error), "")
        print(name + ("not measured" if not samples else f"{errors} errors, {short} short answers: {reason[:80]}"))
    else:
        part = f"{of_limit:>8.0%}" if of_limit is not None else f"{'-':>8}"
        numbers = f"{median:>10.4g}{min(values):>10.4g}{max(values):>10.4g}"
        print(f"{name}{numbers}  {workload.unit:<9}{part}  {len(values)}")
    return {
        **asdict(facts),
        "workload": workload.name,
        "figure": workload.headline,
        "median": median,
        "least": min(values, default=None),
        "most": max(values, default=None),
        "limit": limit,
        "of_limit": of_limit,
        "errors": errors,
        "short": short,
        "first_error": next((one.first_error for one in samples if one.first_error), ""),
        "samples": [one.values for one in samples],
    }


def _ratio_row(ours: Facts, theirs: Facts, workload: Workload, found: Ratio | None) -> dict[str, object]:
    if found is not None:
        print(
            f"{'':<4}{ours.label} is {found.median:.2f} times as good as {theirs.label} in {workload.name} "
            f"({found.least:.2f} to {found.most:.2f} in {found.num_cycles} cycles)"
        )
    return {"peer": theirs.label, "workload": workload.name, "ratio": None if found is None else asdict(found)}


if __name__ == "__main__":
    sys.exit(main())
