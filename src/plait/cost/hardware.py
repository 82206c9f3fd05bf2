"""Hardware: what a device can do at best, as numbers.

Owns `HardwareSpec` and the known devices. Rates are sustained peaks: measured where we could, else the vendor's dense
figures; how far a real step stays behind them is the calibration factor of the cost model, not part of a spec.
Invariant: every field is positive except the overheads and, on a device without links, the communication rate, which
may be 0.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from plait.core.errors import UsageError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class HardwareSpec:
    """One device. A share is a number of units (cores, SMs) out of `share_units`."""

    name: str
    flops_per_s: float
    """Multiply and add count as two; all units together, in the number type that the executor computes with."""
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

    def __post_init__(self) -> None:
        may_be_zero = ("step_overhead_s", "seq_overhead_s", "comm_bytes_per_s")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "name" and not (value > 0 or (value == 0 and field.name in may_be_zero)):
                raise UsageError(f"hardware {self.name}: {field.name} is {value}; give a positive number")

    def compute_rate(self, share: int) -> float:
        """FLOP/s of `share` units: linear."""
        return self.flops_per_s * share / self.share_units

    def memory_rate(self, share: int) -> float:
        """Bytes/s of `share` units: linear up to the knee, then flat."""
        return self.bytes_per_s * min(1.0, share / self.memory_knee_units)

    def comm_rate(self, share: int) -> float:
        """Bytes/s on the link of `share` units: linear up to its knee, then flat."""
        return self.comm_bytes_per_s * min(1.0, share / self.comm_knee_units)


ZEN3_2CORE = HardwareSpec(
    # Two cores at 2.85 GHz with AVX2 in a register loop; one core reads 10.8 GB/s from 1 GiB, two read 17.5.
    name="zen3-2core",
    flops_per_s=180e9,
    bytes_per_s=17.5e9,
    memory_bytes=24 * GIB,
    share_units=2,
    memory_knee_units=17.5 / 10.8,
    step_overhead_s=0.3e-3,
    seq_overhead_s=15e-6,
)

A100_80G = HardwareSpec(
    # Dense BF16 and nominal HBM2e. Bullet (ASPLOS'26) measures a knee of 30 of 108 SMs; the link is MuxWise's NVLink.
    name="a100-80g",
    flops_per_s=312e12,
    bytes_per_s=2.04e12,
    memory_bytes=80 * 10**9,
    share_units=108,
    memory_knee_units=30,
    step_overhead_s=0.5e-3,
    seq_overhead_s=0.0,
    comm_bytes_per_s=600e9,
    comm_knee_units=30,
)

H100_80G = HardwareSpec(
    # Dense BF16 and nominal HBM3. No knee is published: A100's share of the bandwidth per SM is assumed (3.35 / 2.04
    # times as much bandwidth from SMs of about the same reach).
    name="h100-80g",
    flops_per_s=989e12,
    bytes_per_s=3.35e12,
    memory_bytes=80 * 10**9,
    share_units=132,
    memory_knee_units=49,
    step_overhead_s=0.5e-3,
    seq_overhead_s=0.0,
    comm_bytes_per_s=600e9,
    comm_knee_units=49,
)

HARDWARE = {spec.name: spec for spec in (ZEN3_2CORE, A100_80G, H100_80G)}


def find_hardware(name: str) -> HardwareSpec:
    """The known device of that name."""
    if name not in HARDWARE:
        raise UsageError(f"hardware {name!r} is not known; choose one of {', '.join(HARDWARE)}")
    return HARDWARE[name]
