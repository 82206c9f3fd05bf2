"""Bullet's roofline that scales with SMs, on an A100 of nominal peaks and with the published knee.

Owns the values at 20, 30, 54 and 108 SMs, worked out by hand from nominal peaks, and the two shapes: a memory-bound
kernel is flat above the knee, a compute-bound one takes time in inverse proportion.
"""

from __future__ import annotations

from plait.cost.hardware import HardwareSpec, find_hardware
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import BULLET, Figure, Reference

SMS = (20, 30, 54, 108)
TFLOPS = ("57.8", "86.7", "156", "312")
TERABYTES = ("1.36", "2.04", "2.04", "2.04")
RIDGES = {54: "76", 108: "153"}
GATE_AND_UP = (4096, 28672)
"""Inner and outer width of Llama-3.1-8B's largest product."""
KNEE = Reference(BULLET, "2.3", "the A100's memory knee is 30 SMs")
FLAT = Reference(BULLET, "2.3", "a partition of 54 SMs has full bandwidth")
LOSES = Reference(BULLET, "2.3", "a partition of 20 SMs loses bandwidth")
LINEAR = Reference(BULLET, "2.3", "computing is linear in SMs")


def _formula(what: str) -> Reference:
    return Reference(BULLET, "2.3", what)


def _figures() -> tuple[Figure, ...]:
    compute = [
        Figure(f"compute, {sms} SMs", _formula(f"compute, {sms} SMs"), "", unit=" TFLOP/s", worked_out=number)
        for sms, number in zip(SMS, TFLOPS, strict=True)
    ]
    memory = [
        *(_on_knee(f"bandwidth, {sms} SMs", " TB/s", number) for sms, number in zip(SMS, TERABYTES, strict=True)),
        *(_on_knee(f"ridge, {sms} SMs", " FLOP/B", number) for sms, number in RIDGES.items()),
        _on_knee("1 row, 30 SMs over 108", "x", "1.000", FLAT),
        _on_knee("1 row, 54 SMs over 108", "x", "1.000", FLAT),
        _on_knee("1 row, 20 SMs over 108", "x", "1.500", LOSES),
    ]
    shapes = (
        Figure("4,096 rows, 54 SMs over 108", LINEAR, "", unit="x", worked_out="2.000"),
        Figure("4,096 rows, 30 SMs over 108", LINEAR, "", unit="x", worked_out="3.600"),
    )
    return (*compute, *memory, *shapes)


def _on_knee(name: str, unit: str, worked_out: str, reference: Reference | None = None) -> Figure:
    """A figure that the published knee decides."""
    where = _formula(name) if reference is None else reference
    return Figure(name, where, "", unit=unit, worked_out=worked_out, calibrated_on=(KNEE,))


def _work_out() -> Answers:
    device = find_hardware("a100-80g")
    found = {f"compute, {sms} SMs": device.compute_rate(sms) / 1e12 for sms in SMS}
    found |= {f"bandwidth, {sms} SMs": device.memory_rate(sms) / 1e12 for sms in SMS}
    found |= {f"ridge, {sms} SMs": device.compute_rate(sms) / device.memory_rate(sms) for sms in RIDGES}
    for rows, shares in ((1, (30, 54, 20)), (4096, (54, 30))):
        for sms in shares:
            ratio = kernel_s(device, rows, sms) / kernel_s(device, rows, 108)
            found[f"{rows:,} row{'s' if rows > 1 else ''}, {sms} SMs over 108"] = ratio
    return found


def kernel_s(device: HardwareSpec, rows: int, share: int) -> float:
    """T' of one product in bf16: flops / min(flops / bytes * D, C)."""
    inner, outer = GATE_AND_UP
    flops = 2 * rows * inner * outer
    moved = 2 * (rows * inner + inner * outer + rows * outer)
    return flops / min(flops / moved * device.memory_rate(share), device.compute_rate(share))


CASE = Case("bullet-roofline", "roofline of a share of an A100, nominal peaks", BULLET, _figures(), _work_out)
