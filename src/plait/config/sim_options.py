"""Sim options: what a user may say about a simulation: model, hardware, memory, load and targets.

Owns one class for each of `plait sim`, `plait sim goodput` and `plait sim import`. Names are those of `plait serve` and
`plait bench serving` where the meaning is equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.ablations import OF_SCHEDULERS, some_of
from plait.config.engine_options import KEY_TILE, MAX_SEQS, MAX_STEP_TOKENS, MIN_CONTEXT
from plait.config.load_options import MAX_PER_S
from plait.config.option import option
from plait.config.schedulers import DEFAULT_SCHEDULER, SCHEDULERS, SchedulerChoice, parse_simulated_scheduler
from plait.config.values import (
    count_between,
    count_from,
    number_between,
    parse_bytes,
    parse_flag,
    parse_path,
    parse_report,
    parse_seed,
    parse_target,
    parse_text,
)

FORMS = ("auto", "csv", "jsonl", "mooncake", "agents", "batch", "benchmark", "vllm-log", "sglang-log", "litellm")
MAX_SIMULATED = 100_000_000


@dataclass(frozen=True, slots=True)
class SimOptions:
    model: str = option(
        "meta-llama/Llama-3.1-8B",
        parse_text,
        "a known name (plait inspect lists them), a config.json, its folder, or a GGUF file; no weights are needed",
        metavar="MODEL",
        short="-m",
    )
    hardware: str = option("h100-80g", parse_text, "a known device, or a file that describes one", metavar="NAME")
    tensor_parallel_size: int = option(1, count_between(1, 1024), "devices that each replica is cut over", metavar="N")
    replicas: str = option(
        "1", parse_text, "how many, or disagg:PxD for P that compute prompts and D that continue them", metavar="N"
    )
    routing: str = option(
        "least-tokens",
        parse_text,
        "which replica gets a request; prefix: the one that had its beginning before",
        choices=("least-tokens", "round-robin", "prefix"),
        rare=True,
    )
    trace: Path | None = option(None, parse_path, "requests: a trace, a log or a file of batch lines", metavar="FILE")
    card: str | None = option(
        None, parse_text, "requests drawn from published moments; plait sim cards lists them", metavar="NAME"
    )
    format: str = option(
        "auto", parse_text, "form of the trace; auto: seen from its beginning", choices=FORMS, rare=True
    )
    rate: float | None = option(
        None, number_between(0, MAX_PER_S, above=True), "requests (sessions of agents) a second", metavar="R"
    )
    speed: float | None = option(
        None, number_between(0, MAX_PER_S, above=True), "play the trace so many times as fast", metavar="X"
    )
    requests: int | None = option(
        None,
        count_between(1, MAX_SIMULATED),
        "how many; a shorter trace is repeated; default: all of it, 1,000 of a card",
        metavar="N",
        short="-n",
    )
    length_divisor: int = option(
        1, count_between(1, 1 << 16), "divide all lengths, for models with a short context", metavar="N", rare=True
    )
    seed: int = option(0, parse_seed, "for whatever is drawn", metavar="N")
    ttft_slo: float | None = option(
        None, parse_target, "time to the first token, e.g. 500ms; a number alone is seconds", metavar="TIME"
    )
    itl_slo: float | None = option(None, parse_target, "longest time between two tokens", metavar="TIME")
    tpot_slo: float | None = option(None, parse_target, "mean time of a later token", metavar="TIME")
    kv_cache_memory: int | None = option(
        None,
        parse_bytes,
        "memory for the KV cache of each device; default: what 90 % of it hold beside the weights",
        metavar="SIZE",
    )
    kv_cache_dtype: str = option(
        "auto",
        parse_text,
        "numbers of the KV cache; auto: f16",
        choices=("auto", "f32", "f16", "bf16", "int8"),
        rare=True,
    )
    max_model_len: int | None = option(
        None,
        count_from(MIN_CONTEXT),
        "tokens of one sequence at most; default: the model's",
        metavar="TOKENS",
        rare=True,
    )
    max_num_seqs: int | None = option(
        None,
        count_between(1, MAX_SEQS),
        "sequences that run at once at most; default: 256 on a GPU, 64 on a processor",
        metavar="N",
    )
    max_num_batched_tokens: int | None = option(
        None,
        count_between(1, MAX_STEP_TOKENS),
        "tokens computed in one step at most; default: 2,048 on a GPU, 512 on a processor",
        metavar="TOKENS",
    )
    order: str = option(
        "arrival",
        parse_text,
        "other than arrival: an offline job, all requests there from the start; blend: as plait batch --order",
        choices=("arrival", "input", "blend", "dfs", "bfs", "density", "random"),
        rare=True,
    )
    scheduler: SchedulerChoice = option(
        DEFAULT_SCHEDULER,
        parse_simulated_scheduler,
        f"how prompts and decode share a device: {', '.join(SCHEDULERS)}, chunked:TIME, static:UNITS, interleaved",
        metavar="NAME",
        rare=True,
    )
    ablate: str = option(
        "none",
        some_of(OF_SCHEDULERS),
        "mechanisms of the scheduler to do without, to see what they are worth: " + ", ".join(OF_SCHEDULERS),
        metavar="NAMES",
        rare=True,
    )
    speculative: str = option(
        "off",
        parse_text,
        "verify guesses where that pays; ngram: as often right as on Spec-Bench with SmolLM2-135M",
        choices=("off", "ngram"),
        rare=True,
    )
    block_size: int = option(32, count_between(1, KEY_TILE), "tokens of a cache block", metavar="TOKENS", rare=True)
    enable_prefix_caching: bool = option(True, parse_flag, "reuse the cache of equal prompt beginnings", rare=True)
    json: Path | None = option(None, parse_report, "write the report as JSON; - is standard output", metavar="FILE")
    html: Path | None = option(None, parse_path, "write a page with plots that needs nothing else", metavar="FILE")
    quiet: bool = option(False, parse_flag, "no bar, no word about progress")


@dataclass(frozen=True, slots=True)
class GoodputOptions:
    attainment: float = option(
        0.99, number_between(0, 1, above=True), "part of the requests that must meet every target", metavar="PART"
    )
    repeats: int = option(3, count_between(1, 100), "runs of each rate, with seeds that follow --seed", metavar="N")


@dataclass(frozen=True, slots=True)
class SimImportOptions:
    input: Path | None = option(None, parse_path, "a trace or a log in any known form", metavar="FILE", short="-i")
    output: Path | None = option(
        None, parse_path, "a file that ends in .csv or .jsonl, perhaps .gz", metavar="FILE", short="-o"
    )
    format: str = option("auto", parse_text, "form of the input; auto: seen from its beginning", choices=FORMS)
    seed: int = option(0, parse_seed, "for arrivals that the input leaves to chance", metavar="N", rare=True)
    quiet: bool = option(False, parse_flag, "no word about what was read")


@dataclass(frozen=True, slots=True)
class SimCardsOptions:
    json: bool = option(False, parse_flag, "print one JSON object and no text")
