"""Options: the keywords of `LLM`, as engine options.

Owns which of vLLM's keywords are taken, under which of our names, and which are refused. The values and their limits
are those of `plait.config.engine_options`, whose every option is a keyword too.
Invariant: a keyword has an effect, is harmless and said to be, or is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources, OptionSpec, nearest, options_of, with_values
from plait.core.errors import UsageError

OptionValue: TypeAlias = "str | int | float | bool | Path | Mapping[str, OptionValue] | None"

_RENAMED: Mapping[str, str] = {"quantization": "quantize", "kv_cache_memory_bytes": "kv_cache_memory"}
"""Of vLLM -> ours, where the meaning is the same."""

_DTYPES: Mapping[str, str] = {"float32": "f32", "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16"}

_HALVES = ("float16", "half", "bfloat16")
"""Of what a device would compute in; here weights are multiplied as they are stored."""

_FLAG = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


@dataclass(frozen=True, slots=True)
class _Known:
    """A keyword of vLLM without an option of ours. `harmless`: values that ask for nothing that is not so anyway;
    None: every value. `otherwise`: why any other is refused. `note`: what to tell who gives it.
    """

    harmless: tuple[OptionValue, ...] | None
    otherwise: str = ""
    note: str = ""


_CPU = "Plait computes on processor cores"
_ONE = "one process serves one model; leave it out"
_KNOWN: Mapping[str, _Known] = {
    "gpu_memory_utilization": _Known(None, note=f"{_CPU}; use kv_cache_memory, e.g. '1GiB'"),
    "enforce_eager": _Known(None),
    "disable_log_stats": _Known(None),
    "disable_custom_all_reduce": _Known(None),
    "max_seq_len_to_capture": _Known(None),
    "compilation_config": _Known(None, note=f"{_CPU}, nothing is compiled"),
    "swap_space": _Known(None, note="nothing is swapped: a preempted sequence is computed again"),
    "trust_remote_code": _Known(None, note="code that comes with a model is never run"),
    "runner": _Known(("auto", "generate", "pooling")),
    "task": _Known(("auto", "generate", "embed"), "this engine generates and embeds"),
    "convert": _Known(("auto", "none", "embed"), "this engine generates and embeds"),
    "tokenizer_mode": _Known(("auto",), "there is one way to read a tokenizer; leave it out"),
    "skip_tokenizer_init": _Known((False,), "the engine needs the tokenizer for stop strings; leave it out"),
    "load_format": _Known(("auto",), "a model file says itself what it is; leave it out"),
    "device": _Known((None, "auto", "cpu"), f"{_CPU}; leave it out"),
    "tensor_parallel_size": _Known((1,), _ONE),
    "pipeline_parallel_size": _Known((1,), _ONE),
    "data_parallel_size": _Known((1,), _ONE),
    "distributed_executor_backend": _Known((None, "uni", "mp"), _ONE),
    "cpu_offload_gb": _Known((0,), f"{_CPU}; leave it out"),
    "enable_chunked_prefill": _Known((True, None), "prompts longer than a step are always cut; leave it out"),
    "enable_lora": _Known((False,), "adapters are not supported; leave it out"),
    "revision": _Known((None,), "give the path of the file that you mean"),
    "tokenizer_revision": _Known((None,), "the tokenizer comes with the model; leave it out"),
    "hf_overrides": _Known((None, {}), "a model is what its file says; leave it out"),
    "speculative_config": _Known(
        (None,),
        "give speculative='ngram', or 'model' with draft_model, instead; how many tokens are drafted follows from what "
        "they cost",
    ),
    "max_logprobs": _Known((20,), "at most 20 alternatives are reported; leave it out"),
    "limit_mm_per_prompt": _Known((None, {}), "this engine reads text only; leave it out"),
}


@dataclass(frozen=True, slots=True)
class LLMOptions:
    engine: EngineOptions
    notes: tuple[str, ...]
    """What was accepted and has no effect, one line each."""


def read_options(model: str | Path, keywords: Mapping[str, OptionValue]) -> LLMOptions:
    """`UsageError` for the first keyword that cannot be honoured. What is not given is as the environment says, or the
    default.
    """
    specs = {spec.field: spec for spec in options_of(EngineOptions)}
    given: dict[str, object] = {"model": _parsed(specs["model"], "model", model)}
    notes: list[str] = []
    for name, value in keywords.items():
        field = _RENAMED.get(name, name)
        if name == "tokenizer":
            _check_tokenizer(value, model)
        elif name in _KNOWN:
            notes += _accepted(name, value, _KNOWN[name])
        elif name == "dtype" and str(value) in _HALVES:
            notes.append(f"dtype {value} has no effect: weights stay as they are in the file")
        elif field not in specs:
            close = nearest(name, [*specs, *_KNOWN, *_RENAMED, "tokenizer"])
            raise UsageError(f"{name!r} is not an option of LLM{close or '; see docs/guides/python.md'}")
        elif value is not None:
            given[field] = _parsed(specs[field], name, value)
    otherwise = OptionSources(list(specs.values()), {}).read(EngineOptions)
    return LLMOptions(with_values(otherwise, given), tuple(notes))


def in_python(error: UsageError) -> UsageError:
    """The same trouble with options named as keywords."""
    return UsageError(_FLAG.sub(lambda found: found[1].replace("-", "_"), str(error)))


def _parsed(spec: OptionSpec, name: str, value: OptionValue) -> object:
    """Through the parser of the command line, so that "1GiB" and limits are the same everywhere."""
    text = _text(name, value)
    if spec.choices and text not in spec.choices:
        raise UsageError(f"{name} is {value!r}; choose one of {', '.join(spec.choices)}{nearest(text, spec.choices)}")
    try:
        return spec.parse(text)
    except ValueError as error:
        raise UsageError(f"{name} is {value!r}; {error}") from None


def _text(name: str, value: OptionValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}; one value is expected")
    text = str(value)
    if name in ("dtype", "kv_cache_dtype"):
        return _DTYPES.get(text, text)
    return text


def _check_tokenizer(value: OptionValue, model: str | Path) -> None:
    if value is not None and str(value) != str(model):
        raise UsageError(f"tokenizer is {str(value)!r}; the tokenizer comes with the model: leave it out")


def _accepted(name: str, value: OptionValue, known: _Known) -> list[str]:
    if known.harmless is not None and value not in known.harmless:
        raise UsageError(f"{name} is {value!r}; {known.otherwise or 'leave it out'}")
    return [f"{name} has no effect: {known.note}"] if known.note else []
