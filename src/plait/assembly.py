"""Assembly: which scheduler, memory and engine work together, whatever the executor.

Owns that choice for serving and for simulation alike, so that what is simulated is what serves. Imports the control
plane alone: no NumPy, no text, no weights (`plait.build` brings those).
Invariant: the executor's info is the only source of its limits; nothing says twice how large a step may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plait.core.clock import Clock
from plait.core.executor import Executor, Foresight
from plait.core.ids import GroupId
from plait.engine.engine import Engine, EngineConfig, Ports
from plait.kv.cache import KVCache
from plait.kv.checkpoints import ByUse, CheckpointPolicy
from plait.kv.keeps import Keeps
from plait.kv.rules import ALL_RULES, MemoryRules
from plait.model.cache_layout import CacheLayout
from plait.sched.chunked import ChunkedConfig, ChunkedScheduler
from plait.sched.lives import LivesConfig


@dataclass(frozen=True, slots=True)
class EngineParts:
    """An engine, and what it works with, for those who look inside."""

    engine: Engine
    scheduler: ChunkedScheduler
    kv: KVCache


def assemble(
    config: EngineConfig,
    layout: CacheLayout,
    executor: Executor,
    clock: Clock,
    ports: Ports,
    *,
    eos_token_ids: tuple[int, ...] = (),
    enable_prefix: bool = True,
    foresight: Foresight | None = None,
    rules: MemoryRules = ALL_RULES,
    checkpoints: CheckpointPolicy = ByUse(),
    keeps: Mapping[GroupId, Keeps] | None = None,
) -> EngineParts:
    """An engine on an executor that has its programs, weights and memory. Starts nothing. `foresight` is for devices
    whose `info.runs`; `rules` switches off habits of the memory; `checkpoints` says where states are kept; `keeps` has
    the rules of groups whose kind says too little.
    """
    info = executor.info
    lives = LivesConfig(
        max_rows=info.max_rows,
        max_model_tokens=config.max_model_tokens,
        fingerprint=info.fingerprint,
        eos_token_ids=eos_token_ids,
        enable_prefix=enable_prefix,
        can_embed=info.pools,
        can_import=info.imports,
        checkpoints=checkpoints,
    )
    kv = KVCache(layout, tuple(one.group for one in layout.groups), enable_prefix, keeps, rules=rules)
    limits = ChunkedConfig(lives, info.max_step_tokens, queue_depth=info.queue_depth, foresight=foresight)
    scheduler = ChunkedScheduler(limits, kv, ports.events)
    return EngineParts(Engine(config, clock, scheduler, executor, ports), scheduler, kv)
