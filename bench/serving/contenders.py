"""Contenders: whoever is measured, as something that can be visited: started, warmed up, measured, stopped.

Owns the three kinds: Plait in this process, a peer behind HTTP, a peer's own benchmark program. Each says which it is,
because HTTP costs what a run in process does not.
Invariant: words are new in every visit, so that no cache of an earlier one answers.
"""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from plait.build import LoadedModel
from plait.config.engine_options import EngineOptions

from .driver import Engine, run_workload, warm_up
from .figures import Figures
from .limits import Weights
from .openai_server import OpenAiServer
from .plait_engine import PlaitEngine, running
from .prompts import Word, prompt
from .server_process import ServerProcess, serving
from .workloads import Sizes, Workload

START_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What a row of results says about its engine, beside the figure. `way`: in process, HTTP, or its own program."""

    label: str
    way: str
    file: str
    precision: str
    flags: str
    weights: Weights


@dataclass(frozen=True, slots=True)
class Task:
    """What is measured in every visit. Cycles with one number have equal lengths and arrivals."""

    workloads: Sequence[Workload]
    sizes: Sizes
    words: Sequence[Word]
    seed: int


Sample = dict[str, Figures]
"""By workload name."""


class Contender(Protocol):
    facts: Facts

    def visit(self, task: Task, cycle: int, times: int) -> list[Sample]:
        """Measure everything `times` times, one after the other."""


class PlaitContender:
    """`keep`: it is started once and idle between visits, in the event loop that it was started for."""

    def __init__(self, facts: Facts, options: EngineOptions, model: LoadedModel, *, keep: ExitStack | None) -> None:
        self.facts = facts
        self._options = options
        self._model = model
        self._keep = keep
        self._kept: tuple[PlaitEngine, asyncio.Runner] | None = None

    def visit(self, task: Task, cycle: int, times: int) -> list[Sample]:
        with ExitStack() as only_this:
            engine, runner = self._kept or self._started(self._keep or only_this)
            if self._keep is not None:
                self._kept = engine, runner
            return runner.run(_measure(engine, task, cycle, times))

    def _started(self, until: ExitStack) -> tuple[PlaitEngine, asyncio.Runner]:
        engine = until.enter_context(running(self._options, self._model))
        return PlaitEngine(engine), until.enter_context(asyncio.Runner())


class ServerContender:
    """`command` None: the server runs already. `keep`: it is started once and frozen between visits."""

    def __init__(
        self, facts: Facts, server: OpenAiServer, command: str | None, log: Path, *, keep: ExitStack | None
    ) -> None:
        self.facts = facts
        self._server = server
        self._command = command
        self._log = log
        self._keep = keep
        self._kept: ServerProcess | None = None

    def visit(self, task: Task, cycle: int, times: int) -> list[Sample]:
        if self._command is None:
            return asyncio.run(_measure(self._server, task, cycle, times))
        if self._keep is None:
            with serving(self._command, self._log) as process:
                process.wait_until(self._is_there, START_TIMEOUT_S)
                return asyncio.run(_measure(self._server, task, cycle, times))
        if self._kept is None:
            self._kept = self._keep.enter_context(serving(self._command, self._log))
        self._kept.thaw()
        self._kept.wait_until(self._is_there, START_TIMEOUT_S)
        samples = asyncio.run(_measure(self._server, task, cycle, times))
        self._kept.freeze()
        return samples

    def _is_there(self) -> bool:
        return asyncio.run(self._server.is_there())


class LlamaProgram:
    """llama.cpp's own benchmark programs: in process, without sampling or text, with their own random tokens.

    `llama-bench` for W1 and W2, `llama-batched-bench` for W3; the others have no counterpart.
    """

    def __init__(self, facts: Facts, bench: str, batched_bench: str) -> None:
        self.facts = facts
        self._bench = bench
        self._batched_bench = batched_bench

    def visit(self, task: Task, cycle: int, times: int) -> list[Sample]:
        return [self._once(task) for _ in range(times)]

    def _once(self, task: Task) -> Sample:
        sizes = task.sizes
        runs: dict[str, Callable[[], dict[str, float]]] = {}
        if self._bench:
            decode = f"{self._bench} -p 0 -n {sizes.output_tokens} -d {sizes.prompt_tokens} -r 1 -o json"
            prefill = f"{self._bench} -p {sizes.long_prompt_tokens} -n 0 -r 1 -o json"
            runs["W1"] = lambda: {"decode_tokens_per_s": bench_rate(_output(decode))}
            runs["W2"] = lambda: {"prompt_tokens_per_s": bench_rate(_output(prefill))}
        if self._batched_bench:
            tokens = sizes.num_requests * (sizes.prompt_tokens + sizes.output_tokens)
            shape = f"-npp {sizes.prompt_tokens} -ntg {sizes.output_tokens} -npl {sizes.num_requests} -c {tokens}"
            many = f"{self._batched_bench} {shape} --output-format jsonl"
            runs["W3"] = lambda: {"output_tokens_per_s": batched_rate(_output(many))}
        return {one.name: _figures(runs[one.name]) for one in task.workloads if one.name in runs}


def bench_rate(output: str) -> float:
    """Tokens a second of the one test that `llama-bench -o json` ran."""
    return float(json.loads(output)[0]["avg_ts"])


def batched_rate(output: str) -> float:
    """Output tokens by the whole time, of the last line that `llama-batched-bench --output-format jsonl` printed."""
    line = json.loads([line for line in output.splitlines() if line.startswith("{")][-1])
    return float(line["pl"] * line["tg"] / line["t"])


def _figures(run: Callable[[], dict[str, float]]) -> Figures:
    try:
        return Figures(run(), 0, 0, "")
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError, IndexError) as error:
        return Figures({}, 1, 0, f"{type(error).__name__}: {error}")


def _output(command: str) -> str:
    return subprocess.run(shlex.split(command), check=True, capture_output=True, text=True).stdout


async def _measure(engine: Engine, task: Task, cycle: int, times: int) -> list[Sample]:
    draw = partial(prompt, random.Random(time.time_ns()), task.words)
    error = await warm_up(engine, draw)
    if error:
        raise RuntimeError(f"the engine does not answer: {error}")
    samples: list[Sample] = []
    for _ in range(times):
        sample: Sample = {}
        for workload in task.workloads:
            shapes = random.Random(f"{task.seed}/{workload.name}/{cycle}")
            sample[workload.name] = await run_workload(engine, workload, task.sizes, shapes, draw)
        samples.append(sample)
    return samples
