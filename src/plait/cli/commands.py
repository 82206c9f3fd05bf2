"""Commands: the table of what `plait` can do.

Owns names, options and where the work is. Invariant: a command's own imports, which take most of the start, happen only
when it is chosen, so that --help, --version and mistakes are answered at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias

from plait.cli.table import Command
from plait.config.batch_options import BatchOptions
from plait.config.bench_options import LimitsOptions, QualityOptions, SpeculationOptions
from plait.config.calibrate_options import CalibrateOptions
from plait.config.chat_options import ChatOptions
from plait.config.completion_options import CompletionOptions
from plait.config.doctor_options import DoctorOptions
from plait.config.engine_options import EngineOptions
from plait.config.inspect_options import InspectMemoryOptions, InspectOptions
from plait.config.load_options import CompareOptions, KernelsOptions, ServingOptions
from plait.config.models_options import ModelsOptions
from plait.config.option import OptionSources
from plait.config.reproduce_options import ReproduceOptions
from plait.config.serve_options import ServeOptions
from plait.config.sim_options import GoodputOptions, SimCardsOptions, SimImportOptions, SimOptions
from plait.config.tune_options import TuneOptions
from plait.config.verify_options import VerifyOptions

COMMANDS = (
    Command("serve", "Serve the OpenAI API over HTTP.", (ServeOptions, EngineOptions), "model"),
    Command("chat", "Talk with a model in the terminal.", (ChatOptions, EngineOptions), "model"),
    Command("batch", "Answer a file of OpenAI Batch lines.", (BatchOptions, EngineOptions)),
    Command("verify", "Check that answers do not depend on the load.", (VerifyOptions, EngineOptions), "model"),
    Command("models", "List models: by name, and those on this machine.", (ModelsOptions,), "folder"),
    Command(
        "doctor", "Look at this machine: what it can serve, and how fast.", (DoctorOptions, EngineOptions), "model"
    ),
    Command("bench limits", "Measure what this machine can do at most.", (LimitsOptions, EngineOptions), "model"),
    Command("bench kernels", "Measure a model's products beside the limits.", (KernelsOptions, EngineOptions), "model"),
    Command(
        "bench serving", "Send requests to an engine, and see how it answers.", (ServingOptions, EngineOptions), "model"
    ),
    Command(
        "bench compare", "Compare two engines in turn, with the same load.", (CompareOptions, EngineOptions), "model"
    ),
    Command("bench quality", "Measure what number schemes cost.", (QualityOptions, EngineOptions), "model"),
    Command("bench speculation", "Measure what drafts are worth here.", (SpeculationOptions, EngineOptions), "model"),
    Command("tune", "Look for better sizes of units of work on this machine.", (TuneOptions, EngineOptions), "model"),
    Command("calibrate", "Measure steps of a model for the cost model.", (CalibrateOptions, EngineOptions), "model"),
    Command("inspect", "Say what a model is and needs, without its weights.", (InspectOptions,), "model"),
    Command("inspect memory", "Say where memory goes under several layouts.", (InspectMemoryOptions,), "model"),
    Command("sim", "Simulate a workload on hardware that is not here.", (SimOptions,), "model"),
    Command("sim goodput", "Find the highest rate that keeps its targets.", (GoodputOptions, SimOptions), "model"),
    Command("sim import", "Turn a log or a trace into a trace of our own.", (SimImportOptions,), "input"),
    Command("sim cards", "List workloads that are known by published moments.", (SimCardsOptions,)),
    Command("reproduce", "Work out published figures, and how close ours come.", (ReproduceOptions,), "case"),
    Command("completion", "Print a script that completes commands in a shell.", (CompletionOptions,), "shell"),
)
GROUPS: Final[Mapping[str, str]] = MappingProxyType({"bench": "Measure this machine, and servers side by side."})

Work: TypeAlias = Callable[[OptionSources], int]
"""Does what a command is for and returns the exit code."""


def _load_serve() -> Work:
    from plait.cli.serve import run_serve

    return run_serve


def _load_chat() -> Work:
    from plait.cli.chat import run_chat

    return run_chat


def _load_batch() -> Work:
    from plait.cli.batch import run_batch_command

    return run_batch_command


def _load_verify() -> Work:
    from plait.cli.verify import run_verify

    return run_verify


def _load_models() -> Work:
    from plait.cli.models import run_models

    return run_models


def _load_doctor() -> Work:
    from plait.cli.doctor import run_doctor

    return run_doctor


def _load_limits() -> Work:
    from plait.cli.limits import run_limits

    return run_limits


def _load_kernels() -> Work:
    from plait.cli.kernels import run_kernels

    return run_kernels


def _load_serving() -> Work:
    from plait.cli.serving import run_serving

    return run_serving


def _load_compare() -> Work:
    from plait.cli.compare import run_compare

    return run_compare


def _load_quality() -> Work:
    from plait.cli.quality import run_quality

    return run_quality


def _load_speculation() -> Work:
    from plait.cli.speculation import run_speculation

    return run_speculation


def _load_tune() -> Work:
    from plait.cli.tune import run_tune

    return run_tune


def _load_calibrate() -> Work:
    from plait.cli.calibrate import run_calibrate

    return run_calibrate


def _load_inspect() -> Work:
    from plait.cli.inspect import run_inspect

    return run_inspect


def _load_inspect_memory() -> Work:
    from plait.cli.inspect_memory import run_inspect_memory

    return run_inspect_memory


def _load_sim() -> Work:
    from plait.cli.sim import run_sim

    return run_sim


def _load_goodput() -> Work:
    from plait.cli.sim_goodput import run_goodput

    return run_goodput


def _load_import() -> Work:
    from plait.cli.sim_import import run_import

    return run_import


def _load_cards() -> Work:
    from plait.cli.sim_cards import run_cards

    return run_cards


def _load_reproduce() -> Work:
    from plait.cli.reproduce import run_reproduce

    return run_reproduce


def _load_completion() -> Work:
    from plait.cli.completion import run_completion

    return partial(run_completion, COMMANDS)


LOAD: dict[str, Callable[[], Work]] = {
    "serve": _load_serve,
    "chat": _load_chat,
    "batch": _load_batch,
    "verify": _load_verify,
    "models": _load_models,
    "doctor": _load_doctor,
    "bench limits": _load_limits,
    "bench kernels": _load_kernels,
    "bench serving": _load_serving,
    "bench compare": _load_compare,
    "bench quality": _load_quality,
    "bench speculation": _load_speculation,
    "tune": _load_tune,
    "calibrate": _load_calibrate,
    "inspect": _load_inspect,
    "inspect memory": _load_inspect_memory,
    "sim": _load_sim,
    "sim goodput": _load_goodput,
    "sim import": _load_import,
    "sim cards": _load_cards,
    "reproduce": _load_reproduce,
    "completion": _load_completion,
}
