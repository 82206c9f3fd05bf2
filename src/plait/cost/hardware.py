"""Hardware: what a device can do at best, as numbers, and the JSON files in which devices are kept.

Owns `HardwareSpec`, the roofs of a device, and the form of a file with its schema version. Rates are sustained peaks;
how far a real step stays behind them is measured apart (`plait.cost.calibration`) and may come along in a file.
Invariant: every figure of a file says where it comes from; a file is taken whole or refused with the field and its
limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from plait.core.errors import UsageError
from plait.cost.calibration import Calibration, read_calibration
from plait.cost.fields import Fields, write_json

GIB = 2**30
ATTENTION = "attention"
"""The number format under which `rates` has the rate of attention where its kernels have one of their own."""
SCHEMA = "plait.hardware/1"
NUMBERS = ("f32", "bf16", "f16", "fp8", "int8", "int4", ATTENTION)
"""Formats in which a device multiplies: that of the products, whatever weights are stored in."""
FILE_BEGINNING = b'{\n "schema": "plait.hardware/'
"""Of a file that was written here, by which it is known and may be replaced."""
_SUFFIX = ".json"


class Basis(StrEnum):
    """Where a figure comes from."""

    MEASURED = "measured"
    VENDOR = "vendor"
    PUBLISHED = "published"
    """By others, in a paper."""
    ASSUMED = "assumed"


LEAST_RATE = 1e6
"""Operations or bytes a second; a smaller number in a file is a slip in the unit, and steps would take years."""


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    basis: Basis
    source: str


@dataclass(frozen=True, slots=True)
class Tiles:
    """How kernels cut their work into blocks, for wave quantisation."""

    gemm_rows: int
    gemm_columns: int
    attention_rows: int
    """Query rows of one head that a block takes."""
    blocks_per_unit: int = 1
    """Blocks that a share unit runs at once."""


@dataclass(frozen=True, slots=True)
class HardwareSpec:
    """One device. A share is a number of units (cores, SMs) out of `share_units`."""

    name: str
    flops_per_s: float
    """Multiply and add count as two; all units together, in the number format `numbers`."""
    bytes_per_s: float
    """Read bandwidth of main memory, all units together."""
    memory_bytes: int
    share_units: int
    memory_knee_units: float
    """Units that saturate memory; fewer get bandwidth in proportion."""
    step_overhead_s: float
    """Control, launch and bookkeeping of one step, on whatever share."""
    seq_overhead_s: float
    """Further overhead of each chunk."""
    comm_bytes_per_s: float = 0.0
    """Bandwidth to the other devices of a tensor-parallel group; 0: there is none."""
    comm_knee_units: float = 1.0
    """Units that saturate the link."""
    unit: str = "unit"
    """What a share unit is called: core, SM."""
    granule: int = 1
    """Units that a share is made of at least and in steps of (two SMs to a TPC)."""
    numbers: str = "f32"
    rates: Mapping[str, float] = field(default_factory=dict, hash=False)
    """FLOP/s by number format, where it differs; a format that is not here is computed in `numbers`."""
    tiles: Tiles | None = None
    worst_slowdown: float | None = None
    """Of decode beside a prefill on the other units, the largest that was ever seen; None: not known."""
    figures: Mapping[str, Figure] = field(default_factory=dict, hash=False, compare=False)
    """Where the numbers above come from, by their place in the file."""
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        positive = ("flops_per_s", "bytes_per_s", "memory_bytes", "share_units", "memory_knee_units", "comm_knee_units")
        for name in positive:
            self._check(name, getattr(self, name), may_be_zero=False)
        for name in ("step_overhead_s", "seq_overhead_s", "comm_bytes_per_s"):
            self._check(name, getattr(self, name), may_be_zero=True)
        for name, rate in self.rates.items():
            self._check(f"rates[{name}]", rate, may_be_zero=False)

    def _check(self, name: str, value: float, *, may_be_zero: bool) -> None:
        if not (value > 0 or (value == 0 and may_be_zero)):
            raise UsageError(f"hardware {self.name}: {name} is {value}; give a positive number")

    def compute_rate(self, share: int, numbers: str | None = None) -> float:
        """FLOP/s of `share` units in a number format (None: the device's usual one): linear."""
        peak = self.flops_per_s if numbers is None else self.rates.get(numbers, self.flops_per_s)
        return peak * share / self.share_units

    def relative_rate(self, numbers: str | None) -> float:
        """How fast a number format is computed, by the device's usual one."""
        return 1.0 if numbers is None else self.rates.get(numbers, self.flops_per_s) / self.flops_per_s

    def memory_rate(self, share: int) -> float:
        """Bytes/s of `share` units: linear up to the knee, then flat."""
        return self.bytes_per_s * min(1.0, share / self.memory_knee_units)

    def comm_rate(self, share: int) -> float:
        """Bytes/s on the link of `share` units: linear up to its knee, then flat."""
        return self.comm_bytes_per_s * min(1.0, share / self.comm_knee_units)


def known_hardware() -> tuple[str, ...]:
    """Names of the devices that come with Plait."""
    return tuple(sorted(one.name.removesuffix(_SUFFIX) for one in _folder().iterdir() if one.name.endswith(_SUFFIX)))


def find_hardware(name_or_path: str) -> HardwareSpec:
    """The known device of that name, or the one that a file describes. A path has a slash or ends in .json."""
    if name_or_path in known_hardware():
        return read_hardware(_folder().joinpath(name_or_path + _SUFFIX), name_or_path)
    if "/" in name_or_path or name_or_path.endswith(_SUFFIX):
        return read_hardware(Path(name_or_path).expanduser(), name_or_path)
    known = ", ".join(known_hardware())
    raise UsageError(f"hardware {name_or_path!r} is not known; choose one of {known}, or give a path to a .json file")


def read_hardware(file: Path | Traversable, source: str) -> HardwareSpec:
    """The device of a file. `UsageError` names the field and what it must be."""
    fields = Fields.read(file, source)
    if fields.text("schema") != SCHEMA:
        raise fields.fault("schema", f"this Plait reads {SCHEMA}")
    fields.only("schema", "name", "title", "share", "compute", "memory", "link", "overhead", "tiles", "contention",
                "calibration")  # fmt: skip
    figures: dict[str, Figure] = {}
    share = fields.part("share")
    share.only("units", "unit", "granule")
    units = share.whole("units", least=1, most=1 << 20)
    memory = fields.part("memory")
    memory.only("bytes", "bytes_per_s", "knee_units")
    link = _optional(fields, "link", "bytes_per_s", "knee_units")
    overhead = fields.part("overhead")
    overhead.only("step_s", "seq_s")
    contention = _optional(fields, "contention", "worst_slowdown")
    numbers, rates = _read_compute(fields.part("compute"), figures)

    def figure(part: Fields, name: str, *, least: float = 0.0, above: bool = True, most: float = 1e18) -> float:
        return _figure(part, name, figures, least=least, above=above, most=most)

    calibration = read_calibration(fields.part("calibration")) if fields.has("calibration") else None
    return HardwareSpec(
        name=fields.text("name"),
        flops_per_s=rates[numbers],
        bytes_per_s=figure(memory, "bytes_per_s", least=LEAST_RATE, above=False),
        memory_bytes=int(figure(memory, "bytes", least=1.0, above=False)),
        share_units=units,
        memory_knee_units=figure(memory, "knee_units", most=units),
        step_overhead_s=figure(overhead, "step_s", above=False, most=60.0),
        seq_overhead_s=figure(overhead, "seq_s", above=False, most=60.0),
        comm_bytes_per_s=0.0 if link is None else figure(link, "bytes_per_s", least=LEAST_RATE, above=False),
        comm_knee_units=1.0 if link is None else figure(link, "knee_units", most=units),
        unit=share.text("unit"),
        granule=share.whole("granule", least=1, most=units) if share.has("granule") else 1,
        numbers=numbers,
        rates=rates,
        tiles=_read_tiles(fields.part("tiles")) if fields.has("tiles") else None,
        worst_slowdown=None if contention is None else figure(contention, "worst_slowdown", least=1.0, above=False),
        figures=figures,
        calibration=calibration,
    )


def write_hardware(spec: HardwareSpec, path: Path, title: str) -> None:
    """`UsageError`: it cannot be written there."""
    write_json(path, hardware_object(spec, title))


def hardware_object(spec: HardwareSpec, title: str) -> dict[str, object]:
    """The file of a device. Figures whose source is not known are written as assumed."""

    def figure(place: str, value: float) -> dict[str, object]:
        known = spec.figures.get(place, Figure(value, Basis.ASSUMED, "not said"))
        return {"value": value, "basis": known.basis.value, "source": known.source}

    rates = dict(spec.rates) or {spec.numbers: spec.flops_per_s}
    found: dict[str, object] = {
        "schema": SCHEMA,
        "name": spec.name,
        "title": title,
        "share": {"units": spec.share_units, "unit": spec.unit, "granule": spec.granule},
        "compute": {
            "numbers": spec.numbers,
            "flops_per_s": {name: figure(f"compute.flops_per_s.{name}", rate) for name, rate in rates.items()},
        },
        "memory": {
            "bytes": figure("memory.bytes", spec.memory_bytes),
            "bytes_per_s": figure("memory.bytes_per_s", spec.bytes_per_s),
            "knee_units": figure("memory.knee_units", spec.memory_knee_units),
        },
        "overhead": {
            "step_s": figure("overhead.step_s", spec.step_overhead_s),
            "seq_s": figure("overhead.seq_s", spec.seq_overhead_s),
        },
    }
    if spec.comm_bytes_per_s:
        found["link"] = {
            "bytes_per_s": figure("link.bytes_per_s", spec.comm_bytes_per_s),
            "knee_units": figure("link.knee_units", spec.comm_knee_units),
        }
    if spec.tiles is not None:
        found["tiles"] = {
            "gemm": [spec.tiles.gemm_rows, spec.tiles.gemm_columns],
            "attention_rows": spec.tiles.attention_rows,
            "blocks_per_unit": spec.tiles.blocks_per_unit,
        }
    if spec.worst_slowdown is not None:
        found["contention"] = {"worst_slowdown": figure("contention.worst_slowdown", spec.worst_slowdown)}
    return found if spec.calibration is None else {**found, "calibration": spec.calibration.json_object()}


def _folder() -> Traversable:
    return resources.files("plait").joinpath("resources", "hardware")


def _read_compute(fields: Fields, figures: dict[str, Figure]) -> tuple[str, Mapping[str, float]]:
    fields.only("numbers", "flops_per_s")
    by_format = fields.part("flops_per_s")
    by_format.only(*NUMBERS)
    rates = {name: _figure(by_format, name, figures, least=LEAST_RATE, above=False) for name in by_format.names()}
    numbers = fields.text("numbers", NUMBERS)
    if numbers not in rates:
        raise fields.fault("numbers", f"it must be a format that has a rate: {', '.join(rates) or 'there is none'}")
    return numbers, rates


def _read_tiles(fields: Fields) -> Tiles:
    fields.only("gemm", "attention_rows", "blocks_per_unit")
    rows, columns = fields.numbers("gemm", least=1, count=2)
    return Tiles(
        int(rows),
        int(columns),
        fields.whole("attention_rows", least=1, most=1 << 20),
        fields.whole("blocks_per_unit", least=1, most=64) if fields.has("blocks_per_unit") else 1,
    )


def _figure(
    part: Fields,
    name: str,
    figures: dict[str, Figure],
    *,
    least: float = 0.0,
    above: bool = True,
    most: float = 1e18,
) -> float:
    one = part.part(name)
    one.only("value", "basis", "source")
    value = one.number("value", least=least, above=above, most=most)
    figures[one.path] = Figure(value, Basis(one.text("basis", tuple(Basis))), one.text("source"))
    return value


def _optional(fields: Fields, name: str, *names: str) -> Fields | None:
    if not fields.has(name):
        return None
    found = fields.part(name)
    found.only(*names)
    return found
