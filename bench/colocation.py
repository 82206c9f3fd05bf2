"""A batch beside online traffic on this machine: what it costs those who wait, and what of the idle time it gets.

    .venv/bin/python bench/colocation.py [--model MODEL] [--seconds 22] [--load 0.5] [--turns 1] [--no-kill]

Online requests come at random times, at half the rate that the engine could answer with all of them there. The bound is
printed first: the batch's rate alone, times the part of the time in which online traffic alone leaves the engine idle.
Then online alone, with the batch, with the batch, alone (ABBA, `--turns` times), and last the batch beside online
traffic in a process that is killed in the middle and started again. Every answer of every run is compared. Under four
minutes on two cores, nothing else should run beside it. Prints a table, what each run's steps were like and, as its
last line, one JSON object. In 22 s the idle time is too uneven for anybody to foretell the batch's end: that takes
minutes. And a machine drifts by more than the batch costs: `--turns 3` takes five minutes and shows both.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from batch_lines import completion, drawn_words
from serving.plait_engine import engine_options, open_model
from serving.quiet import QUIET_FRACTION, busy_fraction
from step_records import Step, StepRecords, decode_ms, pauses_ms, thread_seconds

from plait.batch.config import BatchConfig
from plait.batch.progress import BatchProgress
from plait.batch.runner import BatchPorts, run_batch
from plait.build import LoadedModel, LocalEngine, start_engine
from plait.cli.offline import AUTO, hardware_here, lives_here, ordering_of
from plait.config.engine_options import EngineOptions
from plait.core.errors import PlaitError
from plait.core.events import Event
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.metrics.totals import Totals
from plait.sched.colocation.idle import IdleMeter

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 32
"""Of an online request."""
JOB_WORDS, JOB_TOKENS = 40, 48
"""Of a line of the batch."""
AT_ONCE = 48
"""Online requests that show what the engine can do at most."""
IN_FLIGHT = 256
"""Lines, as `plait batch` has them."""
TARGET = 2.0
"""Times the median of online traffic alone: until when a first token and the gaps behind it are on time."""


@dataclass(slots=True)
class Answered:
    arrival_s: float
    first_s: float
    last_s: float
    tokens: tuple[int, ...]

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrival_s

    @property
    def gap_s(self) -> float:
        return (self.last_s - self.first_s) / max(1, len(self.tokens) - 1)

    @property
    def whole_s(self) -> float:
        return self.last_s - self.arrival_s


@dataclass(slots=True)
class Phase:
    """What a run of one kind came to."""

    online: dict[str, Answered] = field(default_factory=dict)
    busy: float = 0.0
    """Part of the time in which a step ran."""
    seconds: float = 0.0
    job: dict[str, str] = field(default_factory=dict)
    """Answers of the batch by their ids."""
    job_tokens: int = 0
    job_s: float = 0.0
    eta_error: float | None = None
    """At a fifth of the batch's time, as a part of the whole."""
    steps: list[Step] = field(default_factory=list)
    cores: tuple[float, float] = (0.0, 0.0)
    """Kept busy by workers, and by all other threads."""


class Bench:
    def __init__(self, model: LoadedModel, options: EngineOptions, seed: int) -> None:
        self.model, self.options, self.seed = model, options, seed
        self.vocab = model.program.vocab_size

    def request(self, number: int) -> Request:
        dice = random.Random(f"{self.seed}/{number}")
        prompt = tuple(dice.randrange(100, self.vocab) for _ in range(PROMPT_TOKENS))
        sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
        return Request(RequestId(f"online-{number}"), prompt, sampling)

    def capacity(self) -> float:
        """Requests a second when all of them are there."""
        phase = Phase()
        with _Running(self, phase) as engine:

            async def all_at_once() -> float:
                begun = time.perf_counter()
                await asyncio.gather(*(self._ask(engine, number, phase) for number in range(AT_ONCE)))
                return time.perf_counter() - begun

            return AT_ONCE / asyncio.run(all_at_once())

    def alone(self, rate: float, seconds: float) -> Phase:
        phase = Phase()
        with _Running(self, phase) as engine:

            async def go() -> None:
                async with asyncio.timeout(seconds + 60):
                    await self.arrivals(engine, phase, rate, seconds)

            asyncio.run(go())
        return phase

    async def arrivals(self, engine: LocalEngine, phase: Phase, rate: float, seconds: float) -> None:
        """Those that come within so many seconds, to their last token."""
        dice, at_s, number = random.Random(self.seed), 0.0, 0
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            # The first comes at once: a job does not meet an engine that never saw anybody.
            while at_s < seconds:
                await asyncio.sleep(max(0.0, begun + at_s - time.perf_counter()))
                group.create_task(self._ask(engine, number, phase, begun + at_s))
                number += 1
                at_s += dice.expovariate(rate)

    async def _ask(self, engine: LocalEngine, number: int, phase: Phase, arrival_s: float | None = None) -> None:
        arrival_s = time.perf_counter() if arrival_s is None else arrival_s
        tokens: list[int] = []
        first_s = 0.0
        async for delta in engine.client.submit(self.request(number)):
            if delta.tokens and not tokens:
                first_s = time.perf_counter()
            tokens += delta.tokens
        phase.online[f"online-{number}"] = Answered(arrival_s, first_s, time.perf_counter(), tuple(tokens))

    def job(self, source: Path, output: Path, rate: float | None, seconds: float = 1e4) -> Phase:
        """The batch, beside online traffic of a rate if there is one, which comes until the batch has ended."""
        phase, told, tasks = Phase(), [], []
        running = _Running(self, phase)
        with running as engine:

            def progress(now: BatchProgress) -> None:
                if rate is not None and not tasks:
                    tasks.append(asyncio.get_running_loop().create_task(self.arrivals(engine, phase, rate, seconds)))
                told.append(now)

            offset_s = time.time() - engine.clock.now()
            # As a server has them.
            ordering = ordering_of(AUTO, self.options, engine, IN_FLIGHT, print)
            ports = BatchPorts(
                engine.client, engine.text, engine.clock, offset_s, progress, ordering, online=running.meter.online
            )
            begun = time.perf_counter()
            run_batch(BatchConfig(str(source), output, max_in_flight=IN_FLIGHT), ports)
            phase.job_s = time.perf_counter() - begun
        phase.job, phase.job_tokens = answers_of(output)
        whole_s = told[-1].elapsed_s
        fifth = next((one for one in told if one.elapsed_s >= whole_s / 5), None)
        if fifth is not None and fifth.left_s is not None:
            phase.eta_error = (fifth.left_s - (whole_s - fifth.elapsed_s)) / whole_s
        return phase


class _Running:
    """An engine of its own for a phase, so that none knows what was before; and how busy it was."""

    def __init__(self, bench: Bench, phase: Phase) -> None:
        self._bench, self._phase, self._totals = bench, phase, Totals()
        self._records = StepRecords()
        self.meter = IdleMeter(lives_here(hardware_here(bench.options, print), bench.options, bench.model))

    def __enter__(self) -> LocalEngine:
        self._begun_s, self._threads_s = time.perf_counter(), thread_seconds()
        self._engine = start_engine(self._bench.options, self._bench.model, self._tell, print)
        return self._engine

    def _tell(self, event: Event) -> None:
        self._totals(event)
        self._records(event)
        self.meter(event)

    def __exit__(self, *trouble: object) -> None:
        took_s = time.perf_counter() - self._begun_s
        # Its workers are the only ones: each phase has an engine of its own.
        (_, before), (workers, after) = self._threads_s, thread_seconds()
        self._phase.cores = (workers / took_s, (after - before - workers) / took_s)
        self._phase.steps = self._records.steps
        self._phase.seconds = self._totals.elapsed_s
        self._phase.busy = self._totals.busy_s / self._totals.elapsed_s if self._totals.elapsed_s else 0.0
        self._engine.close()


def lines(count: int, seed: int) -> str:
    dice = random.Random(seed)
    made = (completion(str(number), drawn_words(dice, JOB_WORDS), JOB_TOKENS) for number in range(count))
    return "".join(json.dumps(line) + "\n" for line in made)


def answers_of(output: Path) -> tuple[dict[str, str], int]:
    answers, tokens = {}, 0
    for line in output.read_text(encoding="utf-8").splitlines():
        answer = json.loads(line)
        body = answer["response"]["body"]
        answers[answer["custom_id"]] = body["choices"][0]["text"]
        tokens += body["usage"]["completion_tokens"]
    return answers, tokens


def percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]


def digest(answers: dict[str, object]) -> str:
    return hashlib.blake2b(repr(sorted(answers.items())).encode(), digest_size=8).hexdigest()


def killed(given: argparse.Namespace, source: Path, folder: Path, rate: float) -> tuple[dict[str, str], int, int]:
    """The batch in a process of its own that is killed at half and started again: answers, lines kept."""
    output = folder / "killed.jsonl"
    command = [sys.executable, __file__, "--child", str(source), str(output), "--rate", str(rate)]
    command += ["--seed", str(given.seed), *(["--model", given.model] if given.model else [])]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    partial, half = output.with_name(output.name + ".partial"), source.read_text().count("\n") // 2
    before = 0
    while child.poll() is None:
        before = partial.read_bytes().count(b"\n") if partial.exists() else 0
        if before >= half:
            break
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return answers_of(output)[0], before, int(json.loads(done.stdout.splitlines()[-1])["resumed"])


def child(given: argparse.Namespace) -> int:
    """One run of the batch beside online traffic, for whoever kills it."""
    options = engine_options({} if given.model is None else {"model": given.model})
    bench = Bench(open_model(options), options, given.seed)
    source, output = map(Path, given.child)
    resumed: list[int] = []
    phase = Phase()
    with _Running(bench, phase) as engine:

        def progress(now: BatchProgress) -> None:
            if not resumed:
                asyncio.get_running_loop().create_task(bench.arrivals(engine, phase, given.rate, 1e4))
            resumed.append(now.lines_resumed)

        ports = BatchPorts(engine.client, engine.text, engine.clock, time.time() - engine.clock.now(), progress)
        run_batch(BatchConfig(str(source), output), ports)
    print(json.dumps({"resumed": resumed[0] if resumed else 0}))
    return 0


def main() -> int:
    given = _arguments()
    try:
        return child(given) if given.child else measure(given)
    except PlaitError as error:
        print(f"colocation: {error}", file=sys.stderr)
        return error.exit_code


def measure(given: argparse.Namespace) -> int:
    options = engine_options({} if given.model is None else {"model": given.model})
    seconds = 3.0 if given.quick else given.seconds
    busy = busy_fraction()
    if busy is not None and busy > QUIET_FRACTION:
        print(f"warning: other work uses {busy:.0%} of this machine, so that these figures say little")
    bench = Bench(open_model(options), options, given.seed)
    # As a server does: looking through a vocabulary for garbage stops every thread.
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench.capacity()  # warm
        most = bench.capacity()
        rate = given.load * most
        (folder / "few.jsonl").write_text(lines(16 if given.quick else 160, given.seed + 1))
        solo = bench.job(folder / "few.jsonl", folder / "few.out.jsonl", None)
        solo_rate = solo.job_tokens / solo.job_s
        first = bench.alone(rate, seconds)
        bound = solo_rate * (1 - first.busy)
        print(
            f"online   {most:.2f} requests/s at most, {rate:.2f} asked ({given.load:.0%}); busy {first.busy:.1%} alone"
        )
        print(f"batch    {solo_rate:.1f} tokens/s alone")
        print(
            f"bound    {bound:.1f} tokens/s: alone, times the {1 - first.busy:.1%} that online leaves idle", flush=True
        )
        # It ends about when the online requests do.
        count = max(8, round(0.9 * bound * seconds / JOB_TOKENS))
        source = folder / "job.jsonl"
        source.write_text(lines(count, given.seed))
        alone, beside = [first], []
        for turn in range(given.turns):
            if turn:
                alone.append(bench.alone(rate, seconds))
            beside += [bench.job(source, folder / f"beside-{turn}-{half}.jsonl", rate) for half in range(2)]
            alone.append(bench.alone(rate, seconds))
        whole, before, resumed = ({}, 0, 0) if given.no_kill else killed(given, source, folder, rate)
    return _report(given, alone, beside, bound, solo_rate, whole, before, resumed)


def _report(
    given: argparse.Namespace,
    alone: list[Phase],
    beside: list[Phase],
    bound: float,
    solo_rate: float,
    whole: dict[str, str],
    before: int,
    resumed: int,
) -> int:
    everybody = {"alone": alone, "beside": beside}
    # The same requests on both sides: a batch that ends early sees fewer of them.
    common = set.intersection(*(set(phase.online) for phases in everybody.values() for phase in phases))
    by_kind = {
        kind: [phase.online[name] for phase in phases for name in sorted(common)] for kind, phases in everybody.items()
    }
    found: dict[str, float] = {}
    print(f"{len(common)} online requests that every run answered, {len(beside)} runs of each kind")
    print(f"{'online':<22}{'alone':>10}{'beside':>10}{'ratio':>8}")
    for name in ("whole_s", "ttft_s", "gap_s"):
        for part in (0.5, 0.99):
            one, other = (percentile([getattr(a, name) for a in by_kind[kind]], part) for kind in everybody)
            found[f"{name[:-2]} p{part * 100:g}"] = other / one
            print(
                f"{name[:-2] + f' p{part * 100:g}':<22}{1000 * one:>7.1f} ms{1000 * other:>7.1f} ms{other / one:>8.3f}"
            )
    ttft_s, gap_s = (
        TARGET * percentile([getattr(a, key) for a in by_kind["alone"]], 0.5) for key in ("ttft_s", "gap_s")
    )
    on_time = [100 * mean(one.ttft_s <= ttft_s and one.gap_s <= gap_s for one in by_kind[kind]) for kind in everybody]
    rate = sum(phase.job_tokens for phase in beside) / sum(phase.job_s for phase in beside)
    print(f"{'on time':<22}{on_time[0]:>8.1f} %{on_time[1]:>8.1f} %{on_time[1] - on_time[0]:>+8.2f}")
    print(
        f"batch beside           {rate:.1f} tokens/s, {rate / bound:.1%} of the bound, {rate / solo_rate:.1%} of alone"
    )
    etas = [phase.eta_error for phase in beside]
    print(
        f"time left at a fifth   off by {', '.join('?' if one is None else f'{one:+.1%}' for one in etas)} of the whole"
    )
    _tell_steps(alone, beside, common)
    jobs = {digest(dict(one)) for one in (*(phase.job for phase in beside), *([] if given.no_kill else [whole]))}
    online = _are_equal([*alone, *beside])
    if not given.no_kill:
        kept = f"{resumed} were kept, {len(whole)} of {len(beside[0].job)} answered in the end"
        print(f"killed at {before} lines    {kept}")
    print(f"answers                {'equal' if len(jobs) == 1 and online else 'DIFFERENT'} in all runs: {jobs}")
    checks = {
        "online p50 within 5 %": found["whole p50"] <= 1.05,
        "online p99 within 20 %": found["whole p99"] <= 1.2,
        "on time within a point": on_time[1] >= on_time[0] - 1,
        "batch 60 % of the bound": rate >= 0.6 * bound,
        "time left within 10 %": all(one is not None and abs(one) <= 0.1 for one in etas),
        "nothing lost": given.no_kill or (resumed >= before and len(whole) == len(beside[0].job)),
        "answers equal": len(jobs) == 1 and online,
    }
    for name, is_met in checks.items():
        print(f"{'met ' if is_met else 'MISS'}  {name}")
    told = {"ratios": found, "on_time": on_time, "bound": bound, "rate": rate, "solo": solo_rate, "eta": etas}
    print(json.dumps({**told, "busy": [one.busy for one in alone], "checks": checks, "quick": given.quick}))
    return 0 if checks["nothing lost"] and checks["answers equal"] else 1


def _tell_steps(alone: Sequence[Phase], beside: Sequence[Phase], common: set[str]) -> None:
    """Run by run: whether steps with the same in them took longer, whether the engine paused, and when who waited most
    came.
    """
    for place in range(0, len(alone), 2):
        (early, late), jobs = alone[place : place + 2], beside[place : place + 2]
        halves = [_median_s(runs, common) for runs in (jobs, (early, late))]
        print(f"turn {place // 2 + 1}: whole p50 {halves[0] / halves[1]:.3f} of online alone")
        _tell_runs([("alone", early), *(("beside", job) for job in jobs), ("alone", late)], common)


def _median_s(phases: Sequence[Phase], common: set[str]) -> float:
    return percentile([phase.online[name].whole_s for phase in phases for name in common], 0.5)


def _tell_runs(runs: Sequence[tuple[str, Phase]], common: set[str]) -> None:
    for kind, phase in runs:
        if not phase.steps:
            continue
        answers = [phase.online[name] for name in common]
        slowest = sorted(answers, key=lambda one: -one.whole_s)[:3]
        begun_s = min(one.arrival_s for one in answers)
        decode = "  ".join(f"{rows}: {ms:.2f} ({count})" for rows, (count, ms) in decode_ms(phase.steps).items())
        pauses = sorted(pauses_ms(phase.steps)) or [0.0]
        offline = [1000 * one.seconds for one in phase.steps if not one.rows and not one.prompt_tokens]
        both = [one for one in phase.steps if one.rows + one.prompt_tokens and one.offline_tokens]
        decoding = [one.rows for one in phase.steps]
        late = ", ".join(f"{one.whole_s:.2f} s at {one.arrival_s - begun_s:.1f}" for one in slowest)
        print(f"{kind:<7} whole p50 {1000 * percentile([one.whole_s for one in answers], 0.5):.0f} ms; slowest {late}")
        print(f"        decode ms by rows  {decode}")
        print(
            f"        pauses mean {mean(pauses):.2f}, p99 {percentile(pauses, 0.99):.2f}, most {pauses[-1]:.0f} ms; "
            f"{len(offline)} steps of the batch alone, mean {mean(offline or [0.0]):.1f}, most "
            f"{max(offline, default=0.0):.0f} ms; it rode with {len(both)} of {sum(map(bool, decoding))}"
        )
        print(f"        cores: workers {phase.cores[0]:.2f}, other threads {phase.cores[1]:.2f}")


def _are_equal(phases: Sequence[Phase]) -> bool:
    """Every online answer in every run that has it."""
    known: dict[str, tuple[int, ...]] = {}
    return all(
        known.setdefault(name, one.tokens) == one.tokens for phase in phases for name, one in phase.online.items()
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--seconds", type=float, default=22.0, help="of online traffic alone, and about of the batch")
    parser.add_argument("--load", type=float, default=0.5, help="part of what the engine can answer at most")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it run?")
    parser.add_argument("--no-kill", action="store_true", help="leave out the run that is killed")
    parser.add_argument("--child", nargs=2, metavar=("IN", "OUT"), help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=1.0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
