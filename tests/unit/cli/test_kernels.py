"""`plait bench kernels`: arithmetic that can be done by hand, and the whole command on a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait.cli.kernels import SCHEMA, product_of, row
from plait.cli.machine_rates import MachineRates
from plait.cli.main import main

Capture = pytest.CaptureFixture[str]
RATES = MachineRates(2, 100e9, 400e9, 20e9, 12e9)


def test_a_product_of_one_row_is_bound_by_its_reading() -> None:
    # 10 M numbers in 4 bytes: 40 MB, 2 ms at 20 GB/s; 20 MFLOP take 0.2 ms.
    one = product_of("p", 1, 4e-3, 10_000_000, 40_000_000, RATES, is_int8=False)
    assert (one.bound, one.of_limit) == ("memory", pytest.approx(0.5))
    assert (one.flops_per_s, one.weight_bytes_per_s) == pytest.approx((5e9, 10e9))
    assert row(one).endswith("50% (memory)")


def test_a_product_of_many_rows_is_bound_by_its_multiplications() -> None:
    rows = 100  # 2 GFLOP: 20 ms in float32, 5 ms in 8 bits
    assert product_of("p", rows, 40e-3, 10_000_000, 40_000_000, RATES, is_int8=False).of_limit == pytest.approx(0.5)
    one = product_of("p", rows, 40e-3, 10_000_000, 10_000_000, RATES, is_int8=True)
    assert (one.bound, one.of_limit) == ("compute", pytest.approx(0.125))


@pytest.fixture
def quick_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.cli.kernels.measure_rates", lambda native, threads: replace(RATES, threads=threads))


@pytest.mark.usefixtures("quick_rates")
def test_every_product_is_measured_at_every_number_of_rows(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("plait._native")
    model = write_tiny_model(tmp_path / "tiny.gguf")
    command = ["bench", "kernels", str(model), "--rows", "1,40", "--quiet"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["model"]) == (SCHEMA, "tiny")
    names = {one["name"] for one in found["products"]}
    assert len(names) >= 4
    assert [(one["name"], one["rows"]) for one in found["products"]] == [
        (name, rows) for name in dict.fromkeys(one["name"] for one in found["products"]) for rows in (1, 40)
    ]
    assert all(one["seconds"] > 0 for one in found["products"])
    assert main(command) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3 + len(found["products"])


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("1,many", "--rows is '1,many'; a whole number such as 4096"),
        ("0", "--rows is '0'; a number of at least 1 is expected"),
        ("600", "--rows has 600 but a step has 512; give less, or --max-num-batched-tokens"),
    ],
)
def test_rows_that_cannot_be_are_refused(rows: str, told: str, capsys: Capture) -> None:
    pytest.importorskip("plait._native")
    assert main(["bench", "kernels", "--rows", rows]) == 2
    assert told in capsys.readouterr().err
