"""Serve plan: what `plait serve --dry-run` prints: every choice that a start would make, with its reason.

Owns the form of it. Reads the model's header and asks the machine, as a start does; loads no
weights and starts nothing.
Invariant: the numbers are those that a start with the same options on the same machine comes to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

from plait.build import (
    choose_executor,
    cutting_of,
    drafting_of,
    fused_only,
    load_model,
    model_facts,
    native_config,
    policy_of,
)
from plait.cli.serve_parts import listed
from plait.cli.streams import say
from plait.cli.terminal import download_progress
from plait.config.engine_options import EngineOptions
from plait.config.machine import available_memory_bytes
from plait.config.resolve import resolve_sizes
from plait.config.serve_options import ServeOptions
from plait.exec.native import presence
from plait.loading import LoadedModel
from plait.model.cache_layout import token_bytes
from plait.text.tool_calls import tool_format_of


def plan_of(engine: EngineOptions, server: ServeOptions, *, has_keys: bool) -> Mapping[str, object]:
    """Fetches the model where it is not on this machine: nothing can be said without it."""
    with download_progress(engine.model, quiet=False) as progress:
        model = load_model(engine, progress, datetime.now)
    missing = None if engine.executor == "reference" else presence.missing()
    choice = choose_executor(engine, model.program, missing)
    # What a start would refuse is refused here, too.
    policy = policy_of(engine, model, say)
    drafting_of(engine, model)
    cutting = cutting_of(engine, model, choice.cache_type)
    model = replace(model, program=cutting.program)
    per_token = token_bytes(model.program, choice.cache_type)
    sizes = resolve_sizes(engine, model_facts(model, cutting), available_memory_bytes())
    layout = cutting.plan(sizes.memory_bytes)
    executor: dict[str, object] = {"name": "native" if choice.is_native else "reference", "notes": list(choice.notes)}
    num_workers = 1
    if choice.is_native:
        config, workers = native_config(engine, sizes.max_model_tokens)
        num_workers = len(workers.cores)
        executor |= {
            "workers": len(workers.cores),
            "workers_because": workers.reason,
            "target": config.target or "best",
        }
    executor["notes"] = [*choice.notes, *fused_only(policy.preset, num_workers, is_native=choice.is_native)]
    return {
        "model": _model(model, server),
        "executor": executor,
        "memory": {
            "kv_cache_bytes": sizes.memory_bytes,
            "kv_cache_dtype": choice.cache_type.value,
            "bytes_per_token": per_token,
            "capacity_tokens": sizes.capacity_tokens,
            "max_model_tokens": sizes.max_model_tokens,
            "sequences_of_full_length": round(sizes.capacity_tokens / sizes.max_model_tokens, 2),
            "because": list(sizes.reasons),
            "layout": engine.kv_layout,
            "geometry": cutting.described(),
            "groups": [
                {
                    "name": placed.group.name,
                    "tokens_per_block": placed.tokens_per_block,
                    "block_bytes": placed.block_bytes,
                }
                for placed in layout.groups
            ],
        },
        "limits": {
            "max_num_seqs": engine.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "answers_at_once": engine.max_num_seqs + server.max_num_queued_reqs,
            "answers_at_once_because": "--max-num-seqs that run and --max-num-queued-reqs that wait; more get 429",
        },
        "options": {
            "engine": _plain(asdict(engine)),
            # A key is not printed, only that there is one.
            "server": _plain(asdict(server) | {"api_key": has_keys}),
        },
    }


def _model(model: LoadedModel, server: ServeOptions) -> Mapping[str, object]:
    tools = None if model.template is None else tool_format_of(model.template.source)
    return {
        "name": model.name,
        "served_as": list(listed(server.served_model_name) or (model.name,)),
        "parameters": model.program.num_parameters,
        "weight_bytes": model.weights.total_bytes,
        "vocabulary": model.program.vocab_size,
        "made_for_tokens": model.config.max_positions,
        "chats": model.template is not None,
        "tool_calls": None if tools is None else tools.value,
        "warnings": [*model.notes, *model.tokenizer.warnings],
    }


def _plain(values: dict[str, object]) -> dict[str, object]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}
