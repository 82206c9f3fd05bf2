"""Mixtures: K7, steps of prefill, decode and verify rows together, in one call and in other ways; K8's planner.

Owns the steps, which come from lengths of two recorded traces (bench/data), served by a small made-up scheduler: a
budget of rows, decode and drafts first, prompts in order of arrival.
Invariant: equal seeds make equal steps; every way computes the same rows of the same step.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from .library import Attention, CacheType, Stage, Way
from .report import Section
from .setting import Setting, measure
from .turns import Take, geomean

TRACES = Path(__file__).resolve().parents[1] / "data"
FILES = {"code": "azure2023_code.csv", "conversation": "azure2023_conv.csv"}
BARS = {"code": 1.11, "conversation": 1.20}
MAX_TOKENS = 8192
ROWS_PER_STEP = (64, 256)
MAX_SEQUENCES = 16
WARM_UP_STEPS = 200
GEOMETRY = (9, 3, 64)
NUM_LAYERS = 30
"""Of a model whose plan is made once for all of them."""
SIMULATED_CORES = (8, 24)

Segments = list[tuple[Stage, int, int]]


@dataclass(frozen=True, slots=True)
class Lengths:
    prompt_tokens: int
    output_tokens: int


def read_lengths(trace: str) -> list[Lengths]:
    """Of requests of one trace, no longer together than a model takes."""
    with (TRACES / FILES[trace]).open(encoding="ascii", newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        output = max(2, min(int(row["output_tokens"]), MAX_TOKENS // 4))
        found.append(Lengths(min(int(row["input_tokens"]), MAX_TOKENS - output), output))
    return found


@dataclass(slots=True)
class _Sequence:
    lengths: Lengths
    computed: int = 0

    @property
    def is_prefilling(self) -> bool:
        return self.computed < self.lengths.prompt_tokens

    @property
    def is_finished(self) -> bool:
        return self.computed >= self.lengths.prompt_tokens + self.lengths.output_tokens


def steps(requests: Sequence[Lengths], rows_per_step: int, seed: int) -> Iterator[Segments]:
    """Steps without end. Every second sequence has drafts: one to seven rows more than one each time, all accepted."""
    rng = random.Random(seed)
    running: list[_Sequence] = []
    while True:
        running = [one for one in running if not one.is_finished]
        while len(running) < MAX_SEQUENCES:
            running.append(_Sequence(rng.choice(requests)))
        segments: Segments = []
        left = rows_per_step
        for place, one in enumerate(running):
            if not one.is_prefilling:
                rows = 1 + (rng.randint(1, 7) if place % 2 else 0)
                segments.append((Stage.VERIFY if rows > 1 else Stage.DECODE, one.computed, rows))
                one.computed += rows
                left -= rows
        for one in running:
            if one.is_prefilling and left > 0:
                rows = min(left, one.lengths.prompt_tokens - one.computed)
                segments.append((Stage.PREFILL, one.computed, rows))
                one.computed += rows
                left -= rows
        yield segments


def mixed_steps(trace: str, rows_per_step: int, count: int, seed: int = 1) -> list[Segments]:
    """Steps of the middle of a run, every seventh that has rows of at least two stages."""
    chosen: list[Segments] = []
    for number, segments in enumerate(steps(read_lengths(trace), rows_per_step, seed)):
        if number >= WARM_UP_STEPS and number % 7 == 0 and len({stage for stage, _, _ in segments}) > 1:
            chosen.append(segments)
            if len(chosen) == count:
                break
    return chosen


def k7(setting: Setting) -> Section:
    section = Section("K7", "mixed steps of two traces: time of other ways by that of one call, same kernel")
    threads = max(setting.threads)
    with setting.machine(threads) as machine:
        attention = Attention(
            machine, GEOMETRY, CacheType.F16, num_layers=2, num_tokens=MAX_SEQUENCES * (MAX_TOKENS + 64), max_rows=1024
        )
        with attention:
            for trace, least in BARS.items():
                for rows in ROWS_PER_STEP:
                    name = f"{trace}, {rows} rows"
                    chosen = mixed_steps(trace, rows, 4 if setting.quick else 16)
                    section.detail[name] = _compare(setting, attention, chosen, section, name, least)
                    _simulate(attention, chosen[: 2 if setting.quick else 8], section, name)
    return section


def _compare(
    setting: Setting, attention: Attention, chosen: Sequence[Segments], section: Section, trace: str, least: float
) -> list[object]:
    ways = (Way.ONE_CALL, Way.SEPARATE, Way.GATHERED, Way.PADDED)
    totals = dict.fromkeys(ways, 0.0)
    ratios: dict[Way, list[float]] = {way: [] for way in ways}
    plan_shares = []
    detail: list[object] = []
    for segments in chosen:
        with attention.batch(segments) as batch:
            takes: dict[object, Take] = {way: _take(batch.attend, way) for way in ways}
            takes["plan"] = lambda calls: sum(batch.plan_s() for _ in range(calls))
            found, _ = measure(attention.machine, takes, setting.effort)
        for way in ways:
            totals[way] += found[way].seconds
            ratios[way].append(found[way].seconds / found[Way.ONE_CALL].seconds)
        plan_shares.append(found["plan"].seconds / (NUM_LAYERS * found[Way.ONE_CALL].seconds))
        times = {way.name.lower(): found[way].seconds for way in ways} | {"plan": found["plan"].seconds}
        detail.append({"segments": [(stage.name[0], start, rows) for stage, start, rows in segments], **times})
    one = totals[Way.ONE_CALL]

    def add(what: str, way: Way, **bars: float) -> None:
        note = f"steps {min(ratios[way]):.2f} to {max(ratios[way]):.2f}, geometric mean {geomean(ratios[way]):.2f}"
        section.add(f"{trace}: {what}", totals[way] / one, note=note, **bars)

    add("all gathered, rows padded to 64 and 16", Way.PADDED, at_least=least)
    add("prefill and verify gathered, exact rows", Way.GATHERED)
    add("stage by stage, nothing gathered", Way.SEPARATE)
    share = sum(plan_shares) / len(plan_shares)
    section.add(f"{trace}: planner, share of {NUM_LAYERS} layers' attention (K8)", share, at_most=0.01)
    return detail


def _take(attend: object, way: Way) -> Take:
    assert callable(attend)
    return lambda calls: float(attend(calls, way))


def _simulate(attention: Attention, chosen: Sequence[Segments], section: Section, trace: str) -> None:
    """What stage by stage would cost on more cores: measured units, given to whichever core is free."""
    for cores in SIMULATED_CORES:
        with ExitStack() as stack:
            batches = [stack.enter_context(attention.batch(segments, cores)) for segments in chosen]
            gains = []
            for batch in batches:
                batch.attend(1)
                one, *separate = batch.unit_seconds()
                gains.append(sum(makespan(units, cores) for units in separate) / makespan(one, cores))
        section.add(f"{trace}: stage by stage on {cores} simulated cores", geomean(gains))


def makespan(units: Sequence[float], cores: int) -> float:
    """Seconds until the last unit is done if units are claimed in order."""
    free = [0.0] * cores
    for unit in units:
        free[free.index(min(free))] += unit
    return max(free)
