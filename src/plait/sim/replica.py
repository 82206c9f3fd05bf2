"""Replica: one engine on one simulated device, put together for the driver.

Owns the simulated executor, priced by the roofline; the scheduler, memory and engine above it are those that serve
(`plait.assembly`). Needs a Program and numbers, no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from plait.assembly import Drafting, EngineParts, Policy, assemble
from plait.core.clock import Clock
from plait.core.errors import UsageError
from plait.core.executor import ExecutorInfo, StepForm
from plait.core.ids import GroupId, LaneId, SeqId
from plait.core.request import NO_SLO, ServiceClass, Slo
from plait.cost.calibrated import CalibratedModel, cost_model
from plait.cost.calibration import margin_of
from plait.cost.hardware import HardwareSpec
from plait.cost.interleaved import InterleavedModel
from plait.cost.model import CostModel
from plait.cost.roofline import RooflineModel
from plait.cost.scatter import Replay
from plait.draft.depth import Depth, PricedDepth
from plait.engine.engine import Engine, EngineConfig, Ports
from plait.exec.roster import slots_of
from plait.exec.simulated import QUANTA, SimulatedExecutor
from plait.kv.cache import KVCache
from plait.kv.checkpoints import BY_USE, CheckpointPolicy
from plait.kv.keeps import Keeps
from plait.kv.rules import ALL_RULES, MemoryRules
from plait.model.cache_layout import CacheLayout, plan_layout
from plait.model.cache_type import CacheType
from plait.model.cost import Formats, Parallel
from plait.model.program import Program
from plait.model.shard import shard
from plait.sched.colocation.policy import COLOCATED, ColocationConfig
from plait.sched.multiplex.presets import CHUNKED, Preset
from plait.sched.multiplex.scheduler import Observer, unobserved
from plait.sim.drafts import Record, RecordedDrafts

STEP_LIMIT_S = 1e9
"""A simulated step may be long, as of a million tokens of a large model on a small processor; but a lane that never
ends one is a fault all the same.
"""


@dataclass(frozen=True, slots=True)
class SimulatedMemory:
    """The memory of a replica where it is not just what its program says."""

    layout: CacheLayout
    rules: MemoryRules = ALL_RULES
    keeps: Mapping[GroupId, Keeps] = field(default_factory=dict)
    """Of groups whose kind says too little."""


@dataclass(frozen=True, slots=True)
class SimulatedDrafts:
    """Guesses like those that were recorded. `acceptance`: the part of the right ones that is still right."""

    records: tuple[Record, ...]
    acceptance: float = 1.0
    depth: Callable[[], Depth] = PricedDepth
    """What decides how many are verified, unless a policy has prices."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    program: Program
    formats: Formats
    hardware: HardwareSpec
    cache_bytes: int
    """Memory of the cache pool."""
    cache_type: CacheType = CacheType.F16
    tokens_per_block: int = 32
    max_step_tokens: int = 512
    max_rows: int = 64
    max_model_tokens: int = 8192
    enable_prefix: bool = True
    alpha: float | None = None
    """Calibration factor of the roofline; None: the prices of the hardware's own calibration, or bare ones."""
    tensor_parallel: int = 1
    """Devices that a replica is cut over; the pool is that of one of them."""
    preset: Preset = CHUNKED
    """How prompts and decode share the device."""
    interference: float | None = None
    """Run the attention of decode beside products, which costs this part of the shorter one's time; None: one after the
    other.
    """
    slo: Slo = NO_SLO
    """Targets of requests that bring none: what a policy works for."""
    observe: Observer = unobserved
    """Told of every decision of a policy that prices."""
    prices: CostModel | None = None
    """What a policy takes steps to last; None: as `alpha` or the hardware's calibration says."""
    device: CostModel | None = None
    """How long steps take in truth, where that is not what they are priced at."""
    check_plans: bool = True
    """Let the simulated executor look for faults in every plan, as others do; costs about a third of the time."""
    memory: SimulatedMemory | None = None
    """Instead of `cache_bytes` cut into pages for the program's groups."""
    checkpoints: CheckpointPolicy = BY_USE
    """Where the states of a program that has some are kept."""
    colocation: ColocationConfig | None = COLOCATED
    """How offline work goes beside online traffic, in chunks; None: as one more row behind it."""
    end_tokens: tuple[int, ...] = ()
    """Tokens of prompts that end a message."""
    seed: int = 0
    """Of how steps depart from their prices, where the hardware's calibration has that, and of drafts."""
    drafts: SimulatedDrafts | None = None
    """Guesses that decode steps may verify; None: there are none."""

    @property
    def runs_aside(self) -> bool:
        """Whether prompts get steps of their own, which hold them whole."""
        return not self.preset.is_fused

    @property
    def device_step_tokens(self) -> int:
        return max(self.max_step_tokens, self.max_model_tokens) if self.runs_aside else self.max_step_tokens


def replica(spec: ReplicaSpec) -> Callable[[Clock, Ports], Engine]:
    """What `simulate` needs to run a trace on one replica under the chunked scheduler."""
    return lambda clock, ports: replica_parts(spec, clock, ports).engine


def watched_replica(spec: ReplicaSpec, watch: Callable[[KVCache], None]) -> Callable[[Clock, Ports], Engine]:
    """The same, and `watch` is told of its memory."""

    def make(clock: Clock, ports: Ports) -> Engine:
        parts = replica_parts(spec, clock, ports)
        watch(parts.kv)
        return parts.engine

    return make


def replica_parts(
    spec: ReplicaSpec, clock: Clock, ports: Ports, horizon: Callable[[], float] | None = None
) -> EngineParts:
    """A replica, and what it is made of. Starts nothing. `horizon` says before when nothing will arrive, so that equal
    steps may be planned as runs; None: they are not.
    """
    memory = spec.memory or SimulatedMemory(
        plan_layout(
            shard(spec.program, spec.tensor_parallel),
            memory_bytes=spec.cache_bytes,
            tokens_per_block=spec.tokens_per_block,
            cache_type=spec.cache_type,
        )
    )
    cost = spec.prices or _cost(spec)
    info = _info(spec, runs=horizon is not None and spec.preset == CHUNKED and spec.drafts is None)
    tokens = AnyTokens(spec.program.vocab_size)
    num_spans = len(spec.program.spans)
    # Steps that run side by side change their shares between layers, as they do on a GPU.
    quanta = num_spans if spec.runs_aside else QUANTA
    replay = _replay(spec)
    executor = SimulatedExecutor(
        info,
        slots_of(memory.layout),
        clock,
        spec.device or cost,
        tokens,
        quanta,
        horizon=horizon,
        check_plans=spec.check_plans,
        replay=replay,
    )
    slos = {} if spec.slo == NO_SLO else dict.fromkeys(ServiceClass, spec.slo)
    limits = EngineConfig(spec.program.vocab_size, spec.max_model_tokens, step_limit_s=STEP_LIMIT_S, slos=slos)
    policy = Policy(
        spec.preset,
        cost,
        spec.hardware.granule,
        num_spans,
        max_step_tokens=spec.max_step_tokens,
        observe=spec.observe,
        runs_ahead=replay is not None,
        margin_s=None if replay is None else margin_of(spec.hardware.calibration),
        colocation=spec.colocation,
    )
    return assemble(
        limits,
        memory.layout,
        executor,
        clock,
        ports,
        eos_token_ids=spec.end_tokens,
        enable_prefix=spec.enable_prefix,
        foresight=executor if spec.drafts is None else None,
        rules=memory.rules,
        policy=policy,
        checkpoints=spec.checkpoints,
        keeps=memory.keeps,
        drafting=_drafting(spec, tokens),
    )


def _drafting(spec: ReplicaSpec, tokens: AnyTokens) -> Drafting | None:
    if spec.drafts is None:
        return None
    drafts, vocab_size = spec.drafts, spec.program.vocab_size
    source = RecordedDrafts(drafts.records, tokens.behind, vocab_size, spec.seed, drafts.acceptance)
    return Drafting(source, drafts.depth())


def _replay(spec: ReplicaSpec) -> Replay | None:
    """Where prices are those that were measured, steps depart from them as they did then."""
    calibration = spec.hardware.calibration
    if calibration is None or calibration.scatter is None or spec.alpha is not None or spec.device is not None:
        return None
    return Replay(calibration.scatter, spec.seed)


class AnyTokens:
    """Tokens for requests whose text does not matter: each (sequence, position) has its own, spread over all ids."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __call__(self, seq: SeqId, position: int) -> int:
        # Two odd multipliers; neighbouring positions and sequences land far apart.
        return (int(seq) * 2654435761 + position * 40503 + 1) % self._vocab_size

    def run(self, seq: SeqId, first: int, count: int) -> tuple[int, ...]:
        begin, size = int(seq) * 2654435761 + first * 40503 + 1, self._vocab_size
        return tuple([number % size for number in range(begin, begin + count * 40503, 40503)])

    def behind(self, token: int, count: int) -> tuple[int, ...]:
        """What comes behind one that was sampled."""
        return tuple([(token + place * 40503) % self._vocab_size for place in range(1, count + 1)])


def _cost(spec: ReplicaSpec) -> RooflineModel | CalibratedModel | InterleavedModel:
    parallel = Parallel(spec.tensor_parallel)
    if spec.interference is None and spec.alpha is None:
        return cost_model(spec.program, spec.formats, spec.hardware, parallel)
    if spec.interference is not None and spec.hardware.calibration is not None:
        raise UsageError(
            f"hardware {spec.hardware.name} has prices that were measured with steps one after the other; interleaved "
            "steps are priced on devices without them"
        )
    roofline = RooflineModel(spec.program, spec.formats, spec.hardware, parallel, spec.alpha or 1.0)
    return roofline if spec.interference is None else InterleavedModel(roofline, spec.interference)


def _info(spec: ReplicaSpec, *, runs: bool) -> ExecutorInfo:
    return ExecutorInfo(
        name="simulated",
        lanes=(LaneId(0), LaneId(1), LaneId(2)),
        share_units=spec.hardware.share_units,
        forms=(StepForm.FUSED, StepForm.LANES, *(() if spec.interference is None else (StepForm.INTERLEAVED,))),
        queue_depth=2,
        max_step_tokens=spec.device_step_tokens,
        max_rows=spec.max_rows,
        memory_bytes=spec.cache_bytes,
        formats=(),
        fingerprint=f"simulated-{spec.hardware.name}-{spec.program.name}",
        bit_exact=False,
        imports=True,
        runs=runs,
        drafts=True,
    )
