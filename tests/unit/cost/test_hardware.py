"""Hardware specs: what a share of a device can do, and specs that make no sense."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from plait.core.errors import UsageError
from plait.cost.hardware import Basis, HardwareSpec, find_hardware, known_hardware, write_hardware

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


# Files:


def test_figures_say_where_they_come_from() -> None:
    for name in known_hardware():
        spec = find_hardware(name)
        assert {"memory.bytes", "memory.bytes_per_s", "memory.knee_units", "overhead.step_s"} <= set(spec.figures)
        assert all(figure.source for figure in spec.figures.values())
        assert spec.figures[f"compute.flops_per_s.{spec.numbers}"].value == spec.flops_per_s


def test_a_knee_that_nobody_published_is_said_to_be_assumed() -> None:
    assert find_hardware("a100-80g").figures["memory.knee_units"].basis is Basis.PUBLISHED
    assert find_hardware("h200-141g").figures["memory.knee_units"].basis is Basis.ASSUMED


def test_number_formats_have_rates_of_their_own() -> None:
    h20 = find_hardware("h20-96g")
    assert h20.compute_rate(39, "fp8") == 2 * h20.compute_rate(39) == 148e12
    assert h20.compute_rate(78, "int4") == 148e12


def test_a_device_goes_to_a_file_and_back(tmp_path: Path) -> None:
    for name in known_hardware():
        spec = find_hardware(name)
        path = tmp_path / f"{name}.json"
        write_hardware(spec, path, "a title")
        assert find_hardware(str(path)) == spec


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("schema", "plait.hardware/9", r'schema is "plait.hardware/9"; this Plait reads plait.hardware/1'),
        ("share.units", 0, r"share.units is 0; it must be a whole number from 1"),
        ("share.granule", 999, r"share.granule is 999; it must be a whole number from 1 to 108"),
        ("memory.bytes_per_s.value", 0, r"memory.bytes_per_s.value is 0; it must be a number above 0"),
        ("memory.knee_units.value", 109, r"memory.knee_units.value is 109; it must be .* at most 108"),
        ("memory.bytes", 5, r"memory.bytes is 5; it must be an object"),
        ("memory.bytes.basis", "rumour", r'basis is "rumour"; it must be one of measured, vendor'),
        ("memory.bytes.source", "", r"source is \"\"; it must be a text"),
        ("compute.numbers", "f32x", r'compute.numbers is "f32x"; it must be one of f32, bf16'),
        ("compute.numbers", "fp8", r'compute.numbers is "fp8"; it must be a format that has a rate: bf16'),
        ("compute.flops_per_s.q7", {}, r"compute.flops_per_s.q7 is not known; there can be f32"),
        ("tiles.gemm", [128], r"tiles.gemm has 1 entries; it must be a list of 2 numbers"),
        ("tiles.gemm", [128, True], r"tiles.gemm has an entry out of range"),
        ("contention.worst_slowdown.value", 0.5, r"worst_slowdown.value is 0.5; it must be a number of 1 or more"),
        ("overhead", None, r"overhead is null; it must be an object"),
        ("colour", "green", r"colour is not known; there can be schema, name"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_field_and_limit(
    tmp_path: Path, place: str, value: object, words: str
) -> None:
    path = tmp_path / "bad.json"
    write_hardware(A100_80G, path, "bad")
    found = json.loads(path.read_text())
    part = found
    *names, last = place.split(".")
    for name in names:
        part = part[name]
    part[last] = value
    path.write_text(json.dumps(found))
    with pytest.raises(UsageError, match=words):
        find_hardware(str(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON"),
        (b"[]", "holds no JSON object"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 99999, "is not JSON"),
    ],
)
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        find_hardware(str(path))


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone.json cannot be read: No such file"):
        find_hardware(str(tmp_path / "gone.json"))
    with pytest.raises(UsageError, match=r"cannot be written: .*; name another file"):
        write_hardware(A100_80G, tmp_path / "no" / "folder.json", "nowhere")
