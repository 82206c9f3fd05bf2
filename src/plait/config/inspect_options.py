"""Inspect options: what a user may ask about a model that is not loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.engine_options import DEFAULT_CACHE_DIR
from plait.config.option import option
from plait.config.values import count_between, parse_bytes, parse_flag, parse_path, parse_text

_MODEL = "a config.json, its folder, a GGUF file or the beginning of one, or a known name"
_NUMBERS = ("auto", "f32", "f16", "bf16", "fp8", "int8")


@dataclass(frozen=True, slots=True)
class InspectOptions:
    model: str | None = option(
        None, parse_text, f"{_MODEL}; without one, the known names are listed", metavar="MODEL", short="-m"
    )
    kv_cache_dtype: str = option("auto", parse_text, "numbers of keys and values; auto: bf16", choices=_NUMBERS)
    cache_dir: Path = option(
        DEFAULT_CACHE_DIR, parse_path, "where plait doctor keeps what it measured", metavar="DIR", rare=True
    )
    json: bool = option(False, parse_flag, "print one JSON object and no text")


@dataclass(frozen=True, slots=True)
class InspectMemoryOptions:
    model: str | None = option(
        None,
        parse_text,
        f"{_MODEL}; or http://HOST:PORT of a running server, whose memory is shown as it is now",
        metavar="MODEL",
        short="-m",
    )
    draft_model: str | None = option(None, parse_text, "a second model in the same memory", metavar="MODEL")
    lengths: str = option(
        "500,4K,32K",
        parse_text,
        "sequences: 2k,10x16k (ten of them), 43+6193 (text and images), or a file with one on each line",
    )
    memory: int | None = option(
        None, parse_bytes, "memory for the caches, e.g. 24GiB; default: what is free here", metavar="SIZE"
    )
    kv_layout: str = option(
        "uniform,vllm,jenga,plait",
        parse_text,
        "uniform, vllm, jenga, plait, max-page, static, buddy or manual:GROUP=SHARE:GROUP=SHARE, with commas",
        metavar="LAYOUTS",
    )
    compare: str | None = option(
        None, parse_text, "the layout that the others are compared with, e.g. vllm", metavar="LAYOUT"
    )
    kv_cache_dtype: str = option("auto", parse_text, "numbers of keys and values; auto: bf16", choices=_NUMBERS)
    block_size: int = option(16, count_between(1, 4096), "tokens of a block", metavar="TOKENS")
    tensor_parallel_size: int = option(
        1, count_between(1, 1024), "ranks that share the heads; all figures are of one rank", metavar="N"
    )
    api_key: str | None = option(None, parse_text, "sent to a server as a bearer token", metavar="KEY", rare=True)
    json: bool = option(False, parse_flag, "print one JSON object and no table")
