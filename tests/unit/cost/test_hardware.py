"""Hardware specs: what a share of a device can do, and specs that make no sense."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.core.errors import UsageError
from plait.cost.hardware import HardwareSpec, find_hardware, known_hardware

A100_80G = find_hardware("a100-80g")
ZEN3_2CORE = find_hardware("zen3-2core")


def test_compute_is_linear_in_the_share() -> None:
    assert [A100_80G.compute_rate(share) / 1e12 for share in (27, 54, 108)] == [78.0, 156.0, 312.0]


def test_bandwidth_is_linear_up_to_the_knee_and_flat_behind_it() -> None:
    """The worked example of Bullet's SM-scaling roofline on an A100, whose knee is 30 of 108 SMs."""
    rates = [A100_80G.memory_rate(share) / 1e12 for share in (20, 30, 54, 108)]
    assert rates == pytest.approx([1.36, 2.04, 2.04, 2.04])


def test_the_ridge_of_half_an_a100_is_half_of_the_whole_ones() -> None:
    ridge = [A100_80G.compute_rate(share) / A100_80G.memory_rate(share) for share in (54, 108)]
    assert ridge == pytest.approx([76.5, 152.9], rel=1e-3)


def test_one_of_two_cores_reads_what_was_measured_for_it() -> None:
    assert ZEN3_2CORE.memory_rate(1) == pytest.approx(10.8e9)
    assert ZEN3_2CORE.memory_rate(2) == 17.5e9


def test_a_link_has_a_knee_too() -> None:
    spec = replace(A100_80G, comm_bytes_per_s=600e9, comm_knee_units=20)
    assert [spec.comm_rate(share) for share in (10, 20, 100)] == [300e9, 600e9, 600e9]


@pytest.mark.parametrize("name", known_hardware())
def test_known_devices_are_found_by_name(name: str) -> None:
    spec = find_hardware(name)
    assert spec.name == name
    assert spec.memory_knee_units < spec.share_units


def test_an_unknown_device_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError,
        match=r"hardware 'tpu' is not known; choose one of a100-80g, h100-80g, .* or give a path to a \.json file",
    ):
        find_hardware("tpu")


@pytest.mark.parametrize("field", ["flops_per_s", "bytes_per_s", "share_units", "memory_knee_units", "comm_knee_units"])
def test_a_spec_without_a_rate_is_refused(field: str) -> None:
    for value in (0, -1, float("nan")):
        with pytest.raises(UsageError, match=f"{field} is {value}; give a positive number"):
            replaced(field, value)


def test_overheads_and_the_link_may_be_zero_but_not_negative() -> None:
    replace(ZEN3_2CORE, step_overhead_s=0.0, seq_overhead_s=0.0, comm_bytes_per_s=0.0)
    with pytest.raises(UsageError, match="step_overhead_s is -1"):
        replace(ZEN3_2CORE, step_overhead_s=-1.0)


def replaced(field: str, value: float) -> HardwareSpec:
    made = {name: getattr(ZEN3_2CORE, name) for name in HardwareSpec.__slots__} | {field: value}
    return HardwareSpec(**made)
