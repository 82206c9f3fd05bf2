"""Machine rates: which loops are run, and what is remembered of them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from plait.cli.machine_rates import (
    MachineRates,
    measure_rates,
    rates_file,
    read_rates,
    remembered_rates,
    write_rates,
)

RATES = MachineRates(2, 100e9, 400e9, 20e9, 12e9)


class Loops:
    """Answers what a machine with these rates would; the best sample is the last."""

    def limits_loops(self) -> tuple[tuple[str, str], ...]:
        return (("f32", "baseline"), ("f32", "avx2"), ("int8", "avx2"), ("bf16", "avx512"))

    def limits_compute(
        self, kind: str, target: str, num_threads: int, num_samples: int, sample_s: float
    ) -> list[float]:
        best = {"f32": 50e9, "int8": 200e9, "bf16": 999e9}[kind] * (0.5 if target == "baseline" else 1.0)
        return [best * num_threads * 0.9, best * num_threads]

    def limits_read(self, num_bytes: int, num_threads: int, num_samples: int, sample_s: float) -> list[float]:
        return [10e9, 20e9 if num_threads > 1 else 12e9]


def test_the_best_of_the_best_instructions_counts() -> None:
    assert measure_rates(Loops(), 2) == RATES
    assert measure_rates(Loops(), 1) == MachineRates(1, 50e9, 200e9, 12e9, 12e9)


def test_the_cost_model_gets_the_rate_of_the_models_numbers() -> None:
    assert RATES.hardware("here", 1 << 30, is_int8=True).flops_per_s == 400e9
    spec = RATES.hardware("here", 1 << 30, is_int8=False)
    assert (spec.flops_per_s, spec.share_units) == (100e9, 2)
    assert spec.memory_rate(1) == pytest.approx(12e9)
    assert spec.memory_rate(2) == pytest.approx(20e9)


def test_memory_is_saturated_by_no_fewer_units_than_one_and_no_more_than_there_are() -> None:
    """Noise may make two threads read more than twice what one does, or less than it."""
    knees = [
        replace(RATES, one_read_bytes_per_s=one).hardware("m", 1, is_int8=False).memory_knee_units
        for one in (12.5e9, 9e9, 25e9)
    ]
    assert knees == [1.6, 2.0, 1.0]


def test_rates_are_remembered_for_one_machine(tmp_path: Path) -> None:
    path = rates_file("a processor", 2, tmp_path)
    assert read_rates(path, 2) is None
    write_rates(path, RATES, "A processor")
    assert read_rates(path, 2) == RATES
    assert [one.name for one in path.parent.iterdir()] == [path.name], "nothing is left beside it"
    assert rates_file("another", 2, tmp_path) != path
    assert rates_file("a processor", 3, tmp_path) != path


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"threads": 2}', "not json", "\udcff"])
def test_a_file_that_is_no_rates_is_as_good_as_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_rates(path, 2) is None


@pytest.mark.parametrize("change", [{"threads": 3}, {"f32_per_s": 0}, {"f32_per_s": "fast"}, {"read_bytes_per_s": -1}])
def test_rates_that_cannot_be_are_measured_anew(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    write_rates(path, RATES, "A processor")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert read_rates(path, 2) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    write_rates(tmp_path / "file" / "rates.json", RATES, "A processor")


def test_the_newest_rates_of_this_processor_are_remembered(tmp_path: Path) -> None:
    assert remembered_rates("A processor", tmp_path) is None
    for build, processor, rates in (
        ("old", "A processor", replace(RATES, read_bytes_per_s=1e9)),
        ("new", "A processor", RATES),
        ("other", "Another", replace(RATES, read_bytes_per_s=2e9)),
    ):
        path = rates_file(build, RATES.threads, tmp_path)
        write_rates(path, rates, processor)
        os.utime(path, (0, 1 if build == "old" else 2))
    (tmp_path / "doctor" / "broken.json").write_text("[]")
    (tmp_path / "doctor" / "later.json").write_text("{")
    assert remembered_rates("A processor", tmp_path) == RATES
