"""Resolve: from what the user left open to numbers, with a reason for each.

Owns every automatic choice. Nothing later in the program chooses again. The limits of single options are checked
where they are read (`engine_options`). Invariant: the memory holds at least one sequence of `max_model_tokens`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from plait.config.engine_options import KEY_TILE, MIN_CONTEXT, EngineOptions
from plait.config.kv_layouts import MANUAL
from plait.core.errors import UsageError

FREE_SHARE = 4
"""A quarter of the free memory goes to the KV cache unless the user says otherwise."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What sizes depend on."""

    max_positions: int
    cache_bytes_per_token: int
    sequence_bytes: Callable[[int], int] | None = None
    """What a sequence of so many tokens takes, where that is not `cache_bytes_per_token` times as much."""


@dataclass(frozen=True, slots=True)
class Sizes:
    memory_bytes: int
    """Of the KV cache, whole blocks."""
    max_model_tokens: int
    capacity_tokens: int
    """Tokens of sequences of the greatest length that fit at once; shorter ones may have fewer of them."""
    reasons: tuple[str, ...]
    """One line per choice, for the start-up report."""


def resolve_sizes(options: EngineOptions, facts: ModelFacts, available_bytes: int) -> Sizes:
    """Choose memory and context length; `UsageError` where the user's numbers contradict each other or the model."""
    if (fault := block_size_fault(options.block_size)) is not None:
        raise UsageError(fault)
    wanted = options.max_model_len or facts.max_positions
    if wanted > facts.max_positions:
        raise UsageError(
            f"--max-model-len is {wanted} but the model was made for {facts.max_positions} tokens; give at most that"
        )
    memory, reason = _memory(options, facts, available_bytes, wanted)
    capacity = _capacity(options, facts, memory, wanted)
    least = _bytes_for(MIN_CONTEXT, options, facts)
    if memory < least:
        whose = "--kv-cache-memory is" if options.kv_cache_memory is not None else "the share of free memory is"
        way_out = "give at least that with --kv-cache-memory"
        if options.kv_layout.startswith(MANUAL):
            way_out += f", or less uneven shares than {options.kv_layout}"
        raise UsageError(f"{whose} {memory} bytes but the smallest KV cache takes {least}; {way_out}")
    reasons = [reason]
    if capacity < wanted:
        needed = _bytes_for(wanted, options, facts)
        if options.max_model_len is not None:
            raise UsageError(
                f"--max-model-len {wanted} needs {needed} bytes of KV cache but there are {memory}; lower it to "
                f"{capacity} or raise --kv-cache-memory"
            )
        reasons.append(f"context length {capacity} tokens: what the KV cache holds (the model: {wanted})")
        wanted = capacity
    if facts.sequence_bytes is None:
        memory = _bytes_for(capacity, options, facts)
    return Sizes(memory, wanted, capacity, tuple(reasons))


def _bytes_for(num_tokens: int, options: EngineOptions, facts: ModelFacts) -> int:
    """What one sequence takes, in whole blocks."""
    whole = -(-num_tokens // options.block_size) * options.block_size
    return whole * facts.cache_bytes_per_token if facts.sequence_bytes is None else facts.sequence_bytes(whole)


def _capacity(options: EngineOptions, facts: ModelFacts, memory: int, wanted: int) -> int:
    """Tokens in sequences of `wanted` tokens; of a single one, where not even that fits whole."""
    size = options.block_size
    if facts.sequence_bytes is None:
        return memory // (facts.cache_bytes_per_token * size) * size
    needed = _bytes_for(wanted, options, facts)
    if needed <= memory:
        return memory * wanted // needed
    blocks = range(1, -(-wanted // size) + 1)
    return size * bisect_right(blocks, memory, key=lambda count: _bytes_for(count * size, options, facts))


@dataclass(frozen=True, slots=True)
class Processors:
    """Logical processors that this process may run on, those of them that share no core, and control groups' limit."""

    usable: tuple[int, ...]
    separate: tuple[int, ...]
    quota: float | None


@dataclass(frozen=True, slots=True)
class Workers:
    """The processor of each worker; -1: it is bound to none."""

    cores: tuple[int, ...]
    reason: str


def resolve_workers(threads: int | None, found: Processors) -> Workers:
    """One worker on each core; `UsageError` for more than there are processors.

    Two workers on one core take turns on its multipliers and wait for each other. Under a quota binding is no good:
    every container would choose the same cores, while others rest.
    """
    allowed = len(found.separate) if found.quota is None else max(1, ceil(min(found.quota, len(found.separate))))
    count = threads or allowed
    if count > len(found.usable):
        raise UsageError(
            f"--threads is {count} but this process may use {len(found.usable)} processors; give at most that"
        )
    bound = found.quota is None or found.quota >= len(found.usable)
    rest = [one for one in found.usable if one not in found.separate]
    cores = tuple([*found.separate, *rest][:count]) if bound else (-1,) * count
    if threads is not None:
        return Workers(cores, "as given")
    if allowed < len(found.separate):
        return Workers(cores, f"the control group allows {found.quota:g} processors")
    return Workers(cores, "one on each core")


def _memory(options: EngineOptions, facts: ModelFacts, available_bytes: int, max_tokens: int) -> tuple[int, str]:
    if options.kv_cache_memory is not None:
        if options.kv_cache_memory > available_bytes:
            raise UsageError(
                f"--kv-cache-memory is {options.kv_cache_memory} bytes but only {available_bytes} are free; give less"
            )
        return options.kv_cache_memory, "KV cache memory: as given"
    share = available_bytes // FREE_SHARE
    useful = options.max_num_seqs * _bytes_for(max_tokens, options, facts)
    if useful <= share:
        return useful, f"KV cache memory: {options.max_num_seqs} sequences of full length cannot use more"
    return share, "KV cache memory: a quarter of what is free"


def block_size_fault(block_size: int) -> str | None:
    """What is wrong with blocks of so many tokens; None: nothing."""
    divides = KEY_TILE % block_size == 0
    return None if divides else f"--block-size is {block_size}; give a divisor of {KEY_TILE} (16, 32, 64, ...)"


def resolve_instruction_set(wanted: str, usable: Sequence[str]) -> str | None:
    """None: the best one. `UsageError` for one that is not among `usable`, which ends with the best."""
    if wanted == "auto":
        return None
    if wanted not in usable:
        raise UsageError(
            f"--instruction-set is {wanted} but this machine runs {', '.join(usable)}; auto takes the best of them"
        )
    return wanted
