"""Presets: the published policies as settings of one decision procedure.

Owns what each of them allows and prefers, which of its mechanisms can be left out, and which shares decode may have.
Decides nothing (`plait.sched.multiplex.decide`).
Invariant: a preset differs from another in its fields alone; leaving a mechanism out changes fields, never code.

Sources: Bullet (ASPLOS 2026, sections 2.4 to 2.6), MuxWise (ASPLOS 2026, sections 3.2 to 3.4), XY-Serve (section 2.5).
What a paper leaves open, and what was chosen, is in docs/concepts/scheduling.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from plait.core.errors import UsageError
from plait.cost.partitions import GRANULARITY, splits
from plait.sched.multiplex.mechanisms import Mechanism
from plait.sched.multiplex.situation import Form
from plait.sched.multiplex.targets import Credit

EVERY_MEAN = Credit()


class Prefers(StrEnum):
    """Which of the candidates that hold the targets of decode is taken."""

    LEAST_DECODE = "least decode"
    """The one with the fewest units of decode."""
    PROGRESS = "progress"
    """The one under which prompts go on fastest."""


class Grid(StrEnum):
    """Which shares decode may have."""

    PARTITIONS = "partitions"
    """MuxWise's: whole granules of 16 units for prompts."""
    UNITS = "units"
    """Every multiple of what a share is made of: Bullet's pairs of SMs."""


class Queue(StrEnum):
    ARRIVAL = "arrival"
    SHORTEST = "shortest"
    """Shortest predicted prefill first, unless that makes somebody miss a target who would have met it (Bullet)."""


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    forms: frozenset[Form]
    prefers: Prefers = Prefers.LEAST_DECODE
    grid: Grid = Grid.PARTITIONS
    is_partitioned: bool = True
    """False: nobody says which units are whose, so each side has them in proportion to its blocks."""
    fixed_units: int | None = None
    """Units of decode whatever happens, while both run."""
    credit: Credit = EVERY_MEAN
    is_guarded: bool = True
    """Whether a step counts as long as it may last at worst; else as long as is to be expected."""
    queue: Queue = Queue.ARRIVAL
    fills: bool = False
    """Whether prompts are taken together only until compute bounds them; else as many as the tokens allow."""
    batch_tokens: int = 16_384
    """Of prompts that are begun together."""
    delays: bool = False
    """Whether a decode step may be put off when prompts are late (never that of a sequence with a bound on gaps)."""
    hand_over_spans: int = 0
    """In the last so many spans of the last prompt decode already gets half of its units."""
    balances: bool = False
    overtakes: bool = False
    is_layered: bool = True
    polls: bool = True
    overlaps: bool = True
    dead_band: float = 0.0
    admits_by_time: bool = False
    """Whether a prompt is begun only if decode steps with its sequence hold what everybody was promised."""
    refuses: bool = False
    """Whether who would have his first token too late is sent away."""
    leases: bool = False
    """Whether prefixes that those who wait will want are evicted last."""
    is_paced: bool = False
    """Whether the guard goes by how steps go now, where they are watched; else by how they were measured."""
    chunk_tokens: int | None = None
    """Prompt tokens of a fused step; None: as many as time allows, or the step holds."""
    chunk_s: float | None = None
    """Time that a fused step may be expected to take; None: until the deadline of its decode rows."""
    is_timed: bool = True
    """Whether fused steps are bounded by time at all."""
    reserve: float | None = None
    """Part of a step's slots kept for decode (XY-Serve); None: decode goes first."""
    joins_depth: bool = True
    """Whether the share is chosen together with the number of drafts; else as if there were none."""

    def without(self, mechanisms: Sequence[Mechanism]) -> Preset:
        """`UsageError` for a mechanism that this preset does not have."""
        preset = self
        for one in mechanisms:
            if one not in _LEAVING_OUT.get(self.name, {}):
                known = ", ".join(_LEAVING_OUT.get(self.name, {})) or "none"
                raise UsageError(f"scheduler {self.name} has no mechanism '{one}' to leave out; it has: {known}")
            preset = _LEAVING_OUT[self.name][one](preset)
        return preset

    @property
    def is_fused(self) -> bool:
        """Whether everything is one step at a time."""
        return self.forms == {Form.FUSED}


ASIDE = frozenset({Form.LANES, Form.DECODE, Form.PREFILL})
TURNS = frozenset({Form.DECODE, Form.PREFILL})
EVERY = frozenset(Form)
TOGETHER = frozenset({Form.FUSED})

L_STEP = 4
"""Layers between two looks of Bullet; its figure 12 shows groups of four to five."""
MOST_GAP = 4.0
PLAIT_DEAD_BAND = 0.05
XYSERVE_RESERVE = 0.5
"""Part of a step's slots; the paper gives none."""

CHUNKED = Preset("chunked", TOGETHER, is_timed=False)
BULLET = Preset(
    "bullet",
    ASIDE,
    grid=Grid.UNITS,
    credit=Credit(part=0.9),
    is_guarded=False,
    queue=Queue.SHORTEST,
    fills=True,
    delays=True,
    hand_over_spans=L_STEP,
    balances=True,
)
MUXWISE = Preset("muxwise", ASIDE, credit=Credit(is_mean=False), overtakes=True)
XYSERVE = Preset("xyserve", TOGETHER, is_timed=False, reserve=XYSERVE_RESERVE)
TEMPORAL = Preset("temporal", TURNS, credit=Credit(is_mean=False))
PLAIT = Preset(
    "plait",
    EVERY,
    prefers=Prefers.PROGRESS,
    credit=Credit(most_gap=MOST_GAP),
    queue=Queue.SHORTEST,
    fills=True,
    balances=True,
    overtakes=True,
    dead_band=PLAIT_DEAD_BAND,
    admits_by_time=True,
    refuses=True,
    leases=True,
    is_paced=True,
)
PRESETS: Mapping[str, Preset] = {one.name: one for one in (CHUNKED, BULLET, MUXWISE, XYSERVE, TEMPORAL, PLAIT)}


def static_split(units: int) -> Preset:
    """Decode has so many units whenever both run."""
    return Preset("static", ASIDE, fixed_units=units, credit=Credit(is_mean=False))


UNPARTITIONED = Preset("unpartitioned", ASIDE, is_partitioned=False, credit=Credit(is_mean=False))
"""Both run on the whole device, and the device takes their blocks as they come."""


def timed_chunks(seconds: float) -> Preset:
    """Chunked prefill with a time for each step instead of a number of tokens."""
    return Preset("chunked", TOGETHER, chunk_s=seconds)


Change = Callable[[Preset], Preset]


def _with(**fields: object) -> Change:
    return lambda preset: replace(preset, **fields)  # type: ignore[arg-type]  # names and types of Preset's own fields


def _forms_without(*forms: Form) -> Change:
    return lambda preset: replace(preset, forms=preset.forms - set(forms))


_GUARD = {Mechanism.GUARD: _with(is_guarded=False)}
_LEAVING_OUT: Mapping[str, Mapping[Mechanism, Change]] = {
    "bullet": {
        Mechanism.PARTITION: _with(is_partitioned=False),
        Mechanism.SHARES: _with(fixed_units=0),
        Mechanism.QUEUE_ORDER: _with(queue=Queue.ARRIVAL),
        Mechanism.DECODE_DELAY: _with(delays=False),
        Mechanism.HAND_OVER: _with(hand_over_spans=0),
        Mechanism.BALANCE: _with(balances=False),
        Mechanism.OVERLAP: _with(overlaps=False),
    },
    "muxwise": {
        **_GUARD,
        Mechanism.PARTITION: _with(is_partitioned=False),
        Mechanism.SHARES: _with(fixed_units=0),
        Mechanism.LAYERS: _with(is_layered=False),
        Mechanism.POLLING: _with(polls=False),
        Mechanism.PREEMPTION: _with(overtakes=False),
    },
    "temporal": _GUARD,
    "xyserve": {Mechanism.RESERVE: _with(reserve=0.0)},
    "plait": {
        **_GUARD,
        Mechanism.FUSED: _forms_without(Form.FUSED),
        Mechanism.LANES: _forms_without(Form.LANES),
        Mechanism.SLICES: _forms_without(Form.PREFILL),
        Mechanism.DEAD_BAND: _with(dead_band=0.0),
        Mechanism.JOINT_DEPTH: _with(joins_depth=False),
        Mechanism.PACE: _with(is_paced=False),
        Mechanism.QUEUE_ORDER: _with(queue=Queue.ARRIVAL),
        Mechanism.BALANCE: _with(balances=False),
        Mechanism.PREEMPTION: _with(overtakes=False),
        Mechanism.ADMISSION: _with(admits_by_time=False),
        Mechanism.REFUSAL: _with(refuses=False),
        Mechanism.LEASES: _with(leases=False),
    },
}


def preset_of(name: str, ablations: Sequence[str], *, chunk_s: float | None = None, units: int | None = None) -> Preset:
    """The preset that a user names, without the mechanisms that it is to do without. `chunk_s`: of chunks cut by time;
    `units`: of decode in a static split.
    """
    if units is not None:
        preset = static_split(units)
    elif name == UNPARTITIONED.name:
        preset = UNPARTITIONED
    elif chunk_s is not None:
        preset = timed_chunks(chunk_s)
    else:
        preset = PRESETS[name]
    return preset.without([Mechanism(one) for one in ablations])


def mechanisms_of(name: str) -> tuple[Mechanism, ...]:
    """What can be left out of a preset."""
    return tuple(_LEAVING_OUT.get(name, {}))


def shares_of(preset: Preset, units: int, granule: int = 1) -> tuple[int, ...]:
    """Units that decode may have beside a prefill, ascending; `granule`: what shares are made of."""
    if preset.fixed_units is not None:
        fixed = preset.fixed_units or units // 2 // granule * granule
        if not 0 < fixed < units:
            way_out = f"static:1 to static:{units - 1} do" if units > 1 else "one unit cannot be split"
            said = f"a split (static) gives decode {fixed} of {units} units; leave some for prompts and for decode"
            raise UsageError(f"{said}: {way_out}")
        return (fixed,)
    if not preset.is_partitioned:
        return tuple(range(1, units))
    if preset.grid is Grid.UNITS or units < 2 * GRANULARITY:
        return tuple(range(granule, units, granule))
    return tuple(split.decode for split in splits(units))


def restricted(preset: Preset, *, has_lanes: bool) -> Preset:
    """What an executor leaves of it: without lanes every step is fused, and as long as decode's targets allow."""
    if has_lanes or preset.is_fused:
        return preset
    return replace(preset, forms=TOGETHER, overtakes=False, delays=False)
