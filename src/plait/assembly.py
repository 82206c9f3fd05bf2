"""Assembly: which scheduler, memory and engine work together, whatever the executor.

Owns that choice for serving and for simulation alike, so that what is simulated is what serves. Imports the control
plane alone: no NumPy, no text, no weights (`plait.build` brings those).
Invariant: the executor's info is the only source of its limits; nothing says twice how large a step may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plait.core.clock import Clock
from plait.core.errors import InvariantError, UsageError
from plait.core.executor import Executor, ExecutorInfo, Foresight, StepForm
from plait.core.ids import GroupId
from plait.cost.model import CostModel
from plait.draft.depth import Depth
from plait.draft.drafter import DrafterSource
from plait.engine.engine import Engine, EngineConfig, Ports
from plait.kv.cache import KVCache
from plait.kv.checkpoints import BY_USE, CheckpointPolicy
from plait.kv.keeps import Keeps
from plait.kv.rules import ALL_RULES, MemoryRules
from plait.model.cache_layout import CacheLayout
from plait.sched.chunked import ChunkedConfig, ChunkedScheduler
from plait.sched.colocation.policy import COLOCATED, ColocationConfig
from plait.sched.lives import LivesConfig
from plait.sched.multiplex.presets import CHUNKED, Preset, restricted
from plait.sched.multiplex.scheduler import MultiplexConfig, MultiplexScheduler, Observer, unobserved
from plait.sched.speculation import Speculation


@dataclass(frozen=True, slots=True)
class EngineParts:
    """An engine, and what it works with, for those who look inside."""

    engine: Engine
    scheduler: ChunkedScheduler | MultiplexScheduler
    kv: KVCache


@dataclass(frozen=True, slots=True)
class Policy:
    """How prompts and decode share the device. All but `preset` is for presets that price what they choose from."""

    preset: Preset = CHUNKED
    cost: CostModel | None = None
    granule: int = 1
    """Units that shares are made of."""
    num_spans: int = 1
    """Of the program: where a prefill can be interrupted."""
    stop_s: float | None = None
    """How soon one can be interrupted, where that is sooner than at the end of a span."""
    has_lanes: bool = True
    """Whether steps may run side by side, where the executor can do it."""
    max_step_tokens: int | None = None
    """Of a step of prompts and decode together; None: what the executor takes."""
    observe: Observer = unobserved
    colocation: ColocationConfig | None = COLOCATED
    """How offline work goes beside online traffic, in chunks; None: as one more row behind it."""
    priced_units: int | None = None
    """The most share units that prices are known of; None: of all that the executor has."""


CHUNKS = Policy()


@dataclass(frozen=True, slots=True)
class Drafting:
    """Who guesses, and who says how many guesses are verified."""

    source: DrafterSource
    depth: Depth


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
    policy: Policy = CHUNKS,
    checkpoints: CheckpointPolicy = BY_USE,
    keeps: Mapping[GroupId, Keeps] | None = None,
    drafting: Drafting | None = None,
) -> EngineParts:
    """An engine on an executor that has its programs, weights and memory. Starts nothing. `foresight` is for devices
    whose `info.runs`, and for chunks; `rules` switches off habits of the memory; `checkpoints` says where states are
    kept; `keeps` has the rules of groups whose kind says too little; `drafting` needs `info.drafts`, a model without
    states, and chunks without foresight.
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
    scheduler: ChunkedScheduler | MultiplexScheduler
    if policy.preset == CHUNKED:
        size = policy.max_step_tokens or info.max_step_tokens
        limits = ChunkedConfig(
            lives,
            size,
            queue_depth=info.queue_depth,
            foresight=foresight,
            colocation=policy.colocation,
            cost=policy.cost if policy.priced_units in (None, info.share_units) else None,
            units=info.share_units,
        )
        scheduler = ChunkedScheduler(limits, kv, ports.events, _speculation(drafting, config, info, kv))
    else:
        if drafting is not None:
            raise UsageError(f"drafts are verified by --scheduler chunked alone so far, not {policy.preset.name}")
        scheduler = _multiplex(policy, lives, info, kv, ports)
    return EngineParts(Engine(config, clock, scheduler, executor, ports), scheduler, kv)


def _speculation(
    drafting: Drafting | None, config: EngineConfig, info: ExecutorInfo, kv: KVCache
) -> Speculation | None:
    """None: there are no drafts, or this model's states could not be taken back behind rejected ones."""
    if drafting is None or kv.has_states:
        return None
    if not info.drafts:
        raise InvariantError(f"executor {info.name} was given drafts to verify, which it does not")
    return Speculation(drafting.source, drafting.depth, config.vocab_size)


def _multiplex(policy: Policy, lives: LivesConfig, info: ExecutorInfo, kv: KVCache, ports: Ports) -> MultiplexScheduler:
    if policy.cost is None:
        raise InvariantError(f"scheduler {policy.preset.name} prices steps, but was given no prices")
    if policy.priced_units is not None and policy.priced_units < info.share_units:
        raise UsageError(
            f"steps were measured on {policy.priced_units} cores, but {info.share_units} compute here; measure again "
            "with plait calibrate, or lower --threads"
        )
    can_run_aside = StepForm.LANES in info.forms and len(info.lanes) > 1 and info.share_units > 1
    config = MultiplexConfig(
        lives,
        restricted(policy.preset, has_lanes=policy.has_lanes and can_run_aside),
        info.lanes,
        info.share_units,
        policy.granule,
        policy.num_spans,
        policy.stop_s,
        policy.max_step_tokens or info.max_step_tokens,
        info.max_step_tokens,
        policy.observe,
    )
    return MultiplexScheduler(config, kv, ports.events, policy.cost)
