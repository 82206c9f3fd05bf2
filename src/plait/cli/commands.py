"""Commands: the table of what `plait` can do.

Owns names, options and where the work is. Invariant: a command's own imports, which take most of the start, happen only
when it is chosen, so that --help, --version and mistakes are answered at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from plait.cli.arguments import Command
from plait.config.batch_options import BatchOptions
from plait.config.bench_options import BenchOptions
from plait.config.engine_options import EngineOptions
from plait.config.inspect_options import InspectMemoryOptions, InspectOptions
from plait.config.option import OptionSources
from plait.config.serve_options import ServeOptions
from plait.config.tune_options import TuneOptions
from plait.config.verify_options import VerifyOptions

COMMANDS = (
    Command("serve", "Serve the OpenAI API over HTTP.", (ServeOptions, EngineOptions), "model"),
    Command("batch", "Answer a file of OpenAI Batch lines.", (BatchOptions, EngineOptions)),
    Command("verify", "Check that answers do not depend on the load.", (VerifyOptions, EngineOptions), "model"),
    Command("bench", "Measure what this machine can do at most.", (BenchOptions, EngineOptions), "subject"),
    Command("tune", "Look for better sizes of units of work on this machine.", (TuneOptions, EngineOptions), "model"),
    Command("inspect", "Say what a model is and needs, without its weights.", (InspectOptions,), "model"),
    Command("inspect memory", "Say where memory goes under several layouts.", (InspectMemoryOptions,), "model"),
)

Work: TypeAlias = Callable[[OptionSources], int]
"""Does what a command is for and returns the exit code."""


def _load_serve() -> Work:
    from plait.cli.serve import run_serve

    return run_serve


def _load_batch() -> Work:
    from plait.cli.batch import run_batch_command

    return run_batch_command


def _load_verify() -> Work:
    from plait.cli.verify import run_verify

    return run_verify


def _load_bench() -> Work:
    from plait.cli.bench import run_bench

    return run_bench


def _load_tune() -> Work:
    from plait.cli.tune import run_tune

    return run_tune


def _load_inspect() -> Work:
    from plait.cli.inspect import run_inspect

    return run_inspect


def _load_inspect_memory() -> Work:
    from plait.cli.inspect_memory import run_inspect_memory

    return run_inspect_memory


LOAD: dict[str, Callable[[], Work]] = {
    "serve": _load_serve,
    "batch": _load_batch,
    "verify": _load_verify,
    "bench": _load_bench,
    "tune": _load_tune,
    "inspect": _load_inspect,
    "inspect memory": _load_inspect_memory,
}
