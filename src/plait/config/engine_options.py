"""Engine options: what a user may say about model, memory and scheduling.

Owns the options shared by every command that runs a model. `None` means that `resolve` chooses and says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.ablations import ABLATIONS, some_of
from plait.config.kv_layouts import parse_served_layout
from plait.config.option import option
from plait.config.places import cache_dir
from plait.config.schedulers import DEFAULT_SCHEDULER, SCHEDULERS, UNPARTITIONED, SchedulerChoice, parse_scheduler
from plait.config.values import (
    count_between,
    count_from,
    parse_bytes,
    parse_flag,
    parse_path,
    parse_path_or,
    parse_seed,
    parse_text,
)

DEFAULT_CACHE_DIR = cache_dir()

MAX_SEQS = 65_536
"""More rows than this cost memory and time even if nobody takes them."""

MAX_THREADS = 1024
"""More than any machine has."""

MAX_STEP_TOKENS = 1_048_576
"""Far beyond what one step can use; more is a slip of the keyboard."""

MIN_CONTEXT = 2
"""One token of prompt and one of output."""

KEY_TILE = 256
"""Attention's key tile: a block must divide it (docs/concepts/numerics.md)."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    model: str = option(
        "smollm2",
        parse_text,
        "a GGUF file, a model directory, ORG/NAME of a hub, ollama:NAME, or a name of the catalogue",
        metavar="MODEL",
        short="-m",
    )
    revision: str | None = option(
        None, parse_text, "branch, tag or commit of a model of a hub; default: main", metavar="NAME", rare=True
    )
    executor: str = option(
        "auto",
        parse_text,
        "what computes; auto: native where it is installed",
        choices=("auto", "native", "reference"),
        rare=True,
    )
    threads: int | None = option(
        None, count_between(1, MAX_THREADS), "cores that compute; default: every usable one", metavar="N"
    )
    instruction_set: str = option(
        "auto",
        parse_text,
        "instructions to compute with; auto: the best that run here",
        choices=("auto", "avx512", "avx2", "baseline"),
        rare=True,
    )
    dtype: str = option(
        "auto",
        parse_text,
        "numbers of the weights; auto: as in the file, f32: the most exact",
        choices=("auto", "f32"),
        rare=True,
    )
    quantize: str = option(
        "none",
        parse_text,
        "round the weights of products when the model is loaded; none: as in the file",
        choices=("none", "int8", "int4"),
    )
    kv_cache_dtype: str = option(
        "auto",
        parse_text,
        "numbers of the KV cache; auto: f16 on native, f32 on reference",
        choices=("auto", "f32", "f16", "bf16", "int8"),
    )
    chat_template: Path | None = option(
        None, parse_path, "a Jinja file with the chat template; default: the model's own", metavar="FILE", rare=True
    )
    cache_dir: Path = option(DEFAULT_CACHE_DIR, parse_path, "where fetched models are kept", metavar="DIR", rare=True)
    kv_cache_memory: int | None = option(
        None, parse_bytes, "memory for the KV cache, e.g. 1GiB; default: a quarter of what is free", metavar="SIZE"
    )
    max_model_len: int | None = option(
        None,
        count_from(MIN_CONTEXT),
        "prompt and output tokens of one sequence at most; default: the model's",
        metavar="TOKENS",
    )
    max_num_seqs: int = option(64, count_between(1, MAX_SEQS), "sequences that run at once at most", metavar="N")
    max_num_batched_tokens: int = option(
        512, count_between(1, MAX_STEP_TOKENS), "tokens computed in one step at most", metavar="TOKENS", rare=True
    )
    block_size: int = option(
        32, count_between(1, KEY_TILE), "tokens of a cache block, a divisor of 256", metavar="TOKENS", rare=True
    )
    kv_layout: str = option(
        "paged",
        parse_served_layout,
        "how the cache is cut; paged: every kind of layer keeps what it needs; to compare: uniform (every layer every "
        "token), vllm, max-page, static or manual:GROUP=SHARE:GROUP=SHARE (a part of the memory for each kind)",
        metavar="LAYOUT",
        rare=True,
    )
    ablate: str = option(
        "none",
        some_of(ABLATIONS),
        "habits of the cache and the scheduler to do without, to see what they are worth: " + ", ".join(ABLATIONS),
        metavar="NAMES",
        rare=True,
    )
    scheduler: SchedulerChoice = option(
        DEFAULT_SCHEDULER,
        parse_scheduler,
        f"which tokens a step has: {', '.join(SCHEDULERS)}, chunked:TIME, static:UNITS, {UNPARTITIONED}; all but "
        "chunked need what plait calibrate measured here",
        metavar="NAME",
        rare=True,
    )
    speculative: str = option(
        "off",
        parse_text,
        "guess tokens and verify them, where that pays: by the text so far or by --draft-model; answers stay equal",
        choices=("off", "ngram", "model"),
    )
    draft_model: str | None = option(
        None,
        parse_text,
        "with --speculative model: a smaller model of the same vocabulary, named as --model is",
        metavar="MODEL",
        rare=True,
    )
    enable_prefix_caching: bool = option(True, parse_flag, "reuse the cache of equal prompt beginnings", rare=True)
    profile: Path | None = option(
        None,
        parse_path,
        "measure where the time goes: a table at the end, and a Chrome trace in FILE",
        metavar="FILE",
        rare=True,
    )
    tune_table: str = option(
        "auto",
        parse_path_or("auto", "none"),
        "how operations are cut: auto: as plait tune measured it here, if it did; none; or a file. Answers stay equal",
        metavar="FILE",
        rare=True,
    )
    seed: int = option(0, parse_seed, "where the seeds of requests without one come from", metavar="N")
