"""Accuracy: which matrices are rounded to which format, and a whole run on a tiny model."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from bench import accuracy
from bench.accuracy import rounded
from tests.e2e.tiny_model import write_tiny_model

from plait.build import LoadedModel, load_model
from plait.config.engine_options import EngineOptions
from plait.exec.native import presence
from plait.weights import formats
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

Capture = pytest.CaptureFixture[str]

needs_native = pytest.mark.skipif(
    presence.missing() is not None, reason="needs the native runtime, and that a C++ compiler"
)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf")


def load(path: Path) -> LoadedModel:
    return load_model(EngineOptions(model=str(path)), lambda done, total: None, datetime.now)


def formats_of(model: LoadedModel) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, tensor in model.weights.items():
        kind = "table" if name == "embed" else "matrix" if len(tensor.shape) == 2 else "vector"
        found.setdefault(kind, set()).add(tensor.format.name)
    return found


def test_matrices_are_rounded_and_vectors_stay(tiny: Path) -> None:
    model = load(tiny)
    coarse = rounded(model, formats.Q8_0)
    assert formats_of(coarse) == {"table": {"F32"}, "matrix": {"Q8_0"}, "vector": {"F32"}}
    for name, tensor in coarse.weights.items():
        exact = model.weights[name].dequantize()
        np.testing.assert_allclose(tensor.dequantize(), exact, atol=np.abs(exact).max() / 127)


def test_a_table_keeps_a_format_that_is_finer(tiny: Path) -> None:
    model = load(tiny)
    table = model.weights["embed"]
    stored = np.zeros((table.num_rows, formats.Q8_0.bytes_of(table.shape[1])), np.uint8)
    tensors = {**model.weights, "embed": Tensor("embed", table.shape, formats.Q8_0, stored)}
    mixed = replace(model, weights=WeightTable(tensors, tiny, "mixed"))
    assert formats_of(rounded(mixed, formats.Q4_0)) == {"table": {"Q8_0"}, "matrix": {"Q4_0"}, "vector": {"F32"}}
    assert formats_of(rounded(mixed, formats.F16)) == {"table": {"F16"}, "matrix": {"F16"}, "vector": {"F32"}}


def test_other_weights_have_another_fingerprint(tiny: Path) -> None:
    model = load(tiny)
    names = [rounded(model, form).weights.sha256[:16] for form in (formats.Q4_0, formats.Q4_1)]
    assert len({*names, model.weights.sha256[:16]}) == 3


@needs_native
def test_every_format_is_measured_with_every_cache(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(sys, "argv", ["accuracy", str(tiny), "--tokens", "300", "--formats", "Q4_0", "F16"])
    assert accuracy.main() == 0
    *table, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)["schemes"]
    assert len(table) == 1 + len(found)
    caches = ["f16", "f32", "bf16", "int8"]
    assert [(one["weights"], one["rows"], one["cache"]) for one in found] == [
        (weights, rows, cache)
        for weights, rows in (("f32", "f32"), ("f32+q4_0", "f32+int8"), ("f16+f32", "f32"))
        for cache in caches
    ]
    # Only where rows are rounded or keys and values are does anything change.
    exact = [one for one in found if one["change"] == 0.0]
    assert [(one["weights"], one["cache"]) for one in exact] == [("f32", "f32"), ("f16+f32", "f32")]
    halves, _, _, eighths = found[:4]
    assert found[4]["divergence"] > 10 * halves["divergence"] > 0
    assert eighths["divergence"] > 10 * halves["divergence"]


def test_a_model_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("plait._native")
    monkeypatch.setattr(sys, "argv", ["accuracy", str(tmp_path / "none.gguf"), "--quick"])
    assert accuracy.main() == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
