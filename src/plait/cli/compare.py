"""Compare: `plait bench compare`, the same load on two engines in turn, ratios, and what may be said of them.

Owns who takes part, the check that both did the same work, the table and the JSON object, whose fields
docs/guides/benchmark.md defines. Workloads and verdicts are `load.contest`'s.
Invariant: a figure that rests on unequal work, or on work that nobody counted, is printed with a line that says so.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from plait.cli.load.asks import Answer, Ask
from plait.cli.load.contest import ORDER, QUICK, WORKLOADS, Sample, Sizes, Verdict, Workload, judge
from plait.cli.load.drive import at_times, run
from plait.cli.load.open import Opened, Reach, open_server, opened_engine
from plait.cli.load.words import prompt
from plait.cli.printable import printable
from plait.cli.streams import say, show, show_json
from plait.cli.tune import QUIET_SHARE
from plait.config.engine_options import EngineOptions
from plait.config.load_options import CompareOptions
from plait.config.machine import num_cores, processor_seconds
from plait.config.option import OptionSources
from plait.core.errors import PlaitError, UsageError

SCHEMA = "plait.bench.compare/1"
SAME_PROMPTS = 0.02
"""How far numbers of prompt tokens may be apart: one token at the beginning is nothing, another vocabulary is."""
LOOK_S = 1.0
WARM_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Contest:
    """Who was compared, with what, and every sample: by workload, then cycle, for the first and the other."""

    sides: tuple[Opened, Opened]
    sizes: Sizes
    samples: tuple[tuple[tuple[Sample, ...], ...], ...]
    """For each of `WORKLOADS` one entry for each cycle: first, other, other, first."""
    others: float | None
    """What part of the machine other programs used just before the run."""

    def side(self, workload: int, side: int) -> list[list[Sample]]:
        return [
            [sample for place, sample in zip(ORDER, cycle, strict=True) if place == side]
            for cycle in self.samples[workload]
        ]

    def verdict(self, workload: int) -> Verdict:
        first, other = ([[sample.value for sample in cycle] for cycle in self.side(workload, side)] for side in (0, 1))
        return judge(first, other, larger_is_better=WORKLOADS[workload].larger_is_better)

    def answers(self, workload: int, side: int) -> list[Answer]:
        return [one for cycle in self.side(workload, side) for sample in cycle for one in sample.answers]


def run_compare(sources: OptionSources) -> int:
    options, engine_options = sources.read(CompareOptions), sources.read(EngineOptions)
    if options.other is None:
        raise UsageError("no server to compare with was named; give its address with --other http://HOST:PORT")
    engine_options = replace(engine_options, max_num_seqs=max(engine_options.max_num_seqs, options.at_once))
    with ExitStack() as stack:
        first = None
        if options.url is None:
            first = stack.enter_context(opened_engine(engine_options, quiet=options.quiet))
        contest = run(_run(options, options.other, engine_options.seed, first))
    if options.json:
        show_json(json_object(contest, options))
    else:
        for line in lines(contest):
            show(line)
    return 0 if any(contest.verdict(place).ratio is not None for place in range(len(WORKLOADS))) else 1


async def _run(options: CompareOptions, other_url: str, seed: int, first: Opened | None) -> Contest:
    def reach(name: str | None) -> Reach:
        return Reach(name, "completions", options.api_key, options.patience)

    ours = first if first is not None else await open_server(options.url or "", reach(options.model_name))
    theirs = await open_server(other_url, reach(options.model_other))
    usual = QUICK if options.quick else Sizes(at_once=options.at_once, long_prompt=options.long_prompt)
    sizes = usual.fitted(ours.max_tokens)
    # Words that are one token each where a model is known; the same for both.
    words, sides = ours.words, (ours, theirs)
    # New words in every run, so that no cache of an earlier one answers.
    rng = random.Random(f"{seed} {time.time_ns()}")
    for side in sides:
        await _warm_up(side, words, rng)
    others = await _busy_share()
    samples: list[list[tuple[Sample, ...]]] = [[] for _ in WORKLOADS]
    for cycle in range(1 if options.quick else options.cycles):
        of_cycle: list[list[Sample]] = [[] for _ in WORKLOADS]
        for place in ORDER:
            if not options.quiet:
                say(f"cycle {cycle + 1}: {printable(sides[place].label)}")
            for kept, workload in zip(of_cycle, WORKLOADS, strict=True):
                kept.append(await workload.run(sides[place].target, sizes, words, rng))
        for all_of_it, part in zip(samples, of_cycle, strict=True):
            all_of_it.append(tuple(part))
    return Contest(sides, sizes, tuple(tuple(one) for one in samples), others)


async def _warm_up(side: Opened, words: list[str], rng: random.Random) -> None:
    answers = await at_times(side.target, [Ask(prompt(rng, words, 64), WARM_TOKENS) for _ in range(2)])
    if all(one.error for one in answers):
        raise PlaitError(f"{side.label} does not answer: {printable(answers[0].error)}")


async def _busy_share() -> float | None:
    """What part of this machine is used while neither engine has work: by others, or by an engine that idles badly."""
    before = processor_seconds()
    await asyncio.sleep(LOOK_S)
    after = processor_seconds()
    if before is None or after is None:
        return None
    return min(1.0, max(0.0, (after[0] - before[0]) / (LOOK_S * num_cores())))


def lines(contest: Contest) -> Iterator[str]:
    """The table for people."""
    first, other = contest.sides
    yield f"first: {printable(first.label)} ({first.way})"
    yield f"other: {printable(other.label)}, model {printable(other.model)} ({other.way})"
    yield f"{'':<58}{'first':>10}{'other':>10}{'ratio':>8}  {'cycles':<15}{'A/A spread':<15}"
    for place, workload in enumerate(WORKLOADS):
        yield _row(workload, contest.sizes, contest.verdict(place))
    yield (
        "ratio above 1: the first is better. A/A spread: how far two runs of one engine in a cycle were apart at most; "
        "what lies inside is no difference"
    )
    yield from warnings(contest)


def _row(workload: Workload, sizes: Sizes, verdict: Verdict) -> str:
    scale = 1e3 if workload.unit == "ms" else 1.0
    figures = "".join(
        f"{'-' if value is None else f'{value * scale:,.1f}':>10}" for value in (verdict.first, verdict.other)
    )
    name = f"{workload.title(sizes):<58}{figures}"
    if verdict.ratio is None or verdict.spread is None:
        return f"{name}{'-':>8}  {verdict.sentence()}"
    cycles = f"{verdict.least:.2f} to {verdict.most:.2f}"
    spread = f"{1 / verdict.spread:.2f} to {verdict.spread:.2f}"
    return f"{name}{verdict.ratio:>8.2f}  {cycles:<15}{spread:<15}{verdict.sentence()}"


def warnings(contest: Contest) -> Iterator[str]:
    """What must be known before the ratios are believed."""
    if contest.others is not None and contest.others > QUIET_SHARE:
        busy = f"{contest.others:.0%}"
        yield f"NOT QUIET: {busy} of this machine was used before anything was asked, so this compares little"
    for place, workload in enumerate(WORKLOADS):
        prompts: list[float | None] = []
        for side, name in enumerate(("first", "other")):
            answers = contest.answers(place, side)
            yield from (f"{workload.name}, {name}: {line}" for line in _answer_warnings(answers))
            prompts.append(_mean_prompt(answers))
        if prompts[0] and prompts[1] and abs(prompts[0] / prompts[1] - 1) > SAME_PROMPTS:
            yield (
                f"{workload.name}: UNEQUAL PROMPTS: {prompts[0]:,.0f} tokens a request for the first, "
                f"{prompts[1]:,.0f} for the other; is it the same model?"
            )


def _answer_warnings(answers: Sequence[Answer]) -> Iterator[str]:
    errors = Counter(one.error for one in answers if one.error)
    for error, count in errors.most_common(2):
        yield f"ERROR, {count} x {printable(error)}"
    if short := [one for one in answers if one.is_short]:
        came, wanted = sum(one.num_output for one in short), sum(one.wanted_output for one in short)
        yield (
            f"SHORT: {len(short)} of {len(answers)} answers ended after {came:,} of {wanted:,} tokens; it does not "
            "follow ignore_eos and min_tokens, so it had less to do"
        )
    if long := [one for one in answers if not one.error and one.num_output > one.wanted_output]:
        yield f"LONG: {len(long)} answers have more tokens than max_tokens; it counts otherwise or ignores it"
    if uncounted := sum(not one.is_counted for one in answers if not one.error):
        yield f"NOT COUNTED: {uncounted} answers came without usage; pieces stand for tokens"
    cached, total = sum(one.num_cached or 0 for one in answers), sum(one.num_prompt or 0 for one in answers)
    if cached > total // 20:
        yield f"CACHED: {cached:,} of {total:,} prompt tokens were not computed; was this text sent before?"


def _mean_prompt(answers: Sequence[Answer]) -> float | None:
    known = [one.num_prompt for one in answers if not one.error and one.num_prompt is not None]
    return sum(known) / len(known) if known else None


def json_object(contest: Contest, options: CompareOptions) -> dict[str, object]:
    rows = []
    for place, workload in enumerate(WORKLOADS):
        verdict = contest.verdict(place)
        rows.append(
            {
                "workload": workload.name,
                "title": workload.title(contest.sizes),
                "unit": "s" if workload.unit == "ms" else workload.unit,
                "larger_is_better": workload.larger_is_better,
                **asdict(verdict),
                "is_difference": verdict.is_difference,
                "verdict": verdict.sentence(),
                "samples": {
                    name: [[sample.value for sample in cycle] for cycle in contest.side(place, side)]
                    for side, name in enumerate(("first", "other"))
                },
                "tokens": {name: _tokens(contest.answers(place, side)) for side, name in enumerate(("first", "other"))},
            }
        )
    first, other = contest.sides
    return {
        "schema": SCHEMA,
        "first": first.json_object(),
        "other": other.json_object(),
        "sizes": asdict(contest.sizes),
        "quick": options.quick,
        "others_share": contest.others,
        "workloads": rows,
        "warnings": list(warnings(contest)),
    }


def _tokens(answers: Sequence[Answer]) -> dict[str, object]:
    good = [one for one in answers if not one.error]
    return {
        "requests": len(answers),
        "errors": len(answers) - len(good),
        "prompt": sum(one.num_prompt or 0 for one in good),
        "output": sum(one.num_output for one in good),
        "wanted_output": sum(one.wanted_output for one in good),
        "counted_by_engine": sum(one.is_counted for one in good),
    }
