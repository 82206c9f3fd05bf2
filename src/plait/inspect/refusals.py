"""Refusals: what of a question about memory `plait serve` would not run, and why.

Owns the lines. Memory can be reckoned for models, sizes and layouts that no engine of ours serves; who plans by such a
table must not find that out at the start of a server.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.config.engine_options import EngineOptions
from plait.config.option import options_of
from plait.config.resolve import block_size_fault
from plait.inspect.facts import ModelFacts
from plait.inspect.known import known_models
from plait.inspect.layers import NumberType
from plait.kv.layouts.groups import MemoryGroup
from plait.kv.layouts.serving import vllm_fault
from plait.model.cache_type import INT8_TOKENS


def serving_refusals(
    model: ModelFacts,
    groups: Sequence[MemoryGroup],
    *,
    draft_windows: bool,
    cache: NumberType,
    tokens_per_block: int,
    ranks: int,
    layouts: Sequence[str],
) -> tuple[str, ...]:
    """One line each; nothing: it could be served as asked."""
    found = [_of_model(model)]
    if draft_windows:
        found.append("windows of a model for drafts: it keeps every token, so it takes more than this")
    if str(cache) not in _served_numbers():
        found.append(f"keys and values in {cache}: --kv-cache-dtype has {', '.join(_served_numbers())}")
    found.append(block := _of_block(tokens_per_block, cache))
    if ranks > 1:
        found.append(f"{ranks} ranks: one machine's cores compute all of a model (plait sim takes several devices)")
    if "vllm" in layouts and len(groups) > 1 and block is None:
        found.append(_of_vllm(groups, tokens_per_block))
    return tuple(line for line in found if line is not None)


def _of_model(model: ModelFacts) -> str | None:
    refusal = model.refusal
    known = known_models().get(model.name.lower()) if refusal is None else None
    if known is not None:
        from plait.inspect.served import served_from_hf  # All families come with it.

        refusal = served_from_hf(model, known.config).refusal
    # What is supported instead is a long list, and which file said so is told above.
    return f"this model: {refusal.partition('; supported')[0].removeprefix('config.json: ')}" if refusal else None


def _of_block(tokens_per_block: int, cache: NumberType) -> str | None:
    fault = block_size_fault(tokens_per_block)
    if fault is None and cache is NumberType.INT8 and tokens_per_block % INT8_TOKENS:
        fault = f"keys and values in int8 need {INT8_TOKENS} or a multiple of that"
    return None if fault is None else f"blocks of {tokens_per_block} tokens: {fault}"


def _of_vllm(groups: Sequence[MemoryGroup], tokens_per_block: int) -> str | None:
    fault = vllm_fault(groups, tokens_per_block)
    return None if fault is None else f"--kv-layout vllm: {fault}"


def _served_numbers() -> tuple[str, ...]:
    spec = next(one for one in options_of(EngineOptions) if one.flag == "kv-cache-dtype")
    return tuple(spec.choices)
