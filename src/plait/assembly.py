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
from plait.draft.round_times import RoundTimes
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
from plait.sched.rounds import Rounds, RoundsConfig
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
    runs_ahead: bool = False
    """Whether steps of the whole device are planned behind the one in flight, where the executor takes them. Nothing
    lies between two steps of a simulated device that keeps to its prices.
    """
    margin_s: float | None = None
    """What all but one in a hundred ends come late by, where steps depart from their prices; None: they do not."""
    colocation: ColocationConfig | None = COLOCATED
    """How offline work goes beside online traffic, in chunks; None: as one more row behind it."""
    priced_units: int | None = None
    """The most share units that prices are known of; None: of all that the executor has."""


CHUNKS = Policy()


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A model that guesses, as far as steps and memory are concerned."""

    layout: CacheLayout
    """Its groups, numbered from 0, on the pages of the target's layout."""
    weight_share: float
    """Bytes of its weights, of the target's."""
    max_positions: int


@dataclass(frozen=True, slots=True)
class Drafting:
    """Who guesses, and who says how many guesses are verified."""

    source: DrafterSource
    depth: Depth
    model: DraftModel | None = None
    """Whose steps the source's guesses come from; the executor has its program."""


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
    kept; `keeps` has the rules of groups whose kind says too little; `drafting` needs `info.drafts` and no
    foresight.
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
    model = None if drafting is None or drafting.model is None else drafting.model
    groups = tuple(one.group for one in layout.groups)
    kv = KVCache(layout, groups, enable_prefix, keeps, rules=rules, drafts=None if model is None else model.layout)
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
        scheduler = ChunkedScheduler(limits, kv, ports.events, _speculation(drafting, config, lives, info, kv))
    else:
        if model is not None:
            raise UsageError(
                f"a draft model guesses under --scheduler chunked alone so far, not {policy.preset.name}; "
                "--speculative ngram guesses under every one"
            )
        scheduler = _multiplex(policy, lives, info, kv, ports, _speculation(drafting, config, lives, info, kv))
    return EngineParts(Engine(config, clock, scheduler, executor, ports), scheduler, kv)


def _speculation(
    drafting: Drafting | None, config: EngineConfig, lives: LivesConfig, info: ExecutorInfo, kv: KVCache
) -> Speculation | None:
    if drafting is None:
        return None
    if not info.drafts:
        raise InvariantError(f"executor {info.name} was given drafts to verify, which it does not")
    rounds, model = None, drafting.model
    if model is not None:
        times = RoundTimes(model.weight_share)
        limits = RoundsConfig(
            info.lanes[0],
            info.max_rows,
            info.max_step_tokens,
            info.queue_depth,
            model.max_positions,
            lives.eos_token_ids,
        )
        rounds = Rounds(limits, kv.drafts, times)
    return Speculation(drafting.source, drafting.depth, config.vocab_size, rounds)


def check_priced(priced_units: int, units: int) -> None:
    """`UsageError` where steps on some shares were never measured."""
    if priced_units < units:
        raise UsageError(
            f"steps were measured on {priced_units} cores, but {units} compute here; measure again with plait "
            "calibrate, or lower --threads"
        )


def _multiplex(
    policy: Policy,
    lives: LivesConfig,
    info: ExecutorInfo,
    kv: KVCache,
    ports: Ports,
    speculation: Speculation | None,
) -> MultiplexScheduler:
    if policy.cost is None:
        raise InvariantError(f"scheduler {policy.preset.name} prices steps, but was given no prices")
    if policy.priced_units is not None:
        check_priced(policy.priced_units, info.share_units)
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
        policy.runs_ahead and info.queue_depth > 1,
        policy.margin_s,
    )
    return MultiplexScheduler(config, kv, ports.events, policy.cost, speculation)
