"""Packing: a matrix is read and converted piece by piece, and comes out the same in any pieces."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.weights.made_blocks import made_rows

_native = pytest.importorskip("plait._native", exc_type=ModuleNotFoundError)

from plait.exec.native import packing  # noqa: E402 - only where the runtime is
from plait.exec.native.packing import kept_texts, pack  # noqa: E402
from plait.exec.native.repacking import scheme_of  # noqa: E402
from plait.exec.native.tape import Scheme, Tape  # noqa: E402
from plait.weights import formats  # noqa: E402
from plait.weights.formats import WeightFormat  # noqa: E402
from plait.weights.table import WeightTable  # noqa: E402
from plait.weights.tensor import Tensor  # noqa: E402

MIB = 1 << 20


def table_of(form: WeightFormat, rows: int, depth: int, **more: object) -> WeightTable:
    tensor = Tensor("matrix", (rows, depth), form, made_rows(form, rows, depth, 1))
    return WeightTable({"matrix": replace(tensor, **more)}, Path("made-up"), "0" * 64)  # type: ignore[arg-type]


def tape_of(*matrices: str) -> Tape:
    return Tape((), (), matrices, (), (), 0, 1)


@pytest.mark.parametrize(
    ("form", "scheme"),
    [
        (formats.IQ3_S, Scheme.Q8_16),
        (formats.IQ4_XS, Scheme.IQ4),
        (formats.TQ1_0, Scheme.Q4_0),
        (formats.Q4_K, Scheme.F32),
        (formats.Q2_K, Scheme.Q2_K),
    ],
    ids=lambda one: one.name,
)
def test_beside_the_packed_weights_there_is_only_a_piece(form: WeightFormat, scheme: Scheme) -> None:
    """Four million weights, 16 MiB of floats if they were converted at once."""
    table = table_of(form, 4096, 1024)
    tracemalloc.start()
    pack(tape_of("matrix"), table, {"matrix": scheme}, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * MIB


@pytest.mark.parametrize("rows", [16, 33, 64])
def test_pieces_are_whole_panels_and_cover_every_row_once(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PIECE_WEIGHTS", 20 * 256)
    monkeypatch.setattr(packing, "PIECE_BYTES", 1)
    for form in (formats.IQ4_XS, formats.Q4_K):
        tensor = table_of(form, rows, 256)["matrix"]
        pieces = list(packing._pieces(tensor, scheme_of(form)))
        assert [start for start, _ in pieces] == list(range(0, rows, 16))
        assert [stop for _, stop in pieces] == [*range(16, rows, 16), rows]


def test_rows_that_are_reordered_or_rounded_are_packed_in_pieces_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PIECE_WEIGHTS", 1)
    monkeypatch.setattr(packing, "PIECE_BYTES", 1)
    order = np.random.default_rng(2).permutation(48)
    for table, scheme in (
        (table_of(formats.IQ4_XS, 48, 256, row_order=order), Scheme.IQ4),
        (table_of(formats.Q4_K, 48, 256, row_order=order), Scheme.Q4_K),
        (table_of(formats.Q2_K, 48, 256, format=formats.INT8, rounded_from=formats.Q2_K), Scheme.INT8),
    ):
        tensor = table["matrix"]
        stored = [packing._stored(tensor, scheme, start, stop) for start, stop in packing._pieces(tensor, scheme)]
        whole = packing._stored(tensor, scheme, 0, 48)
        assert len(stored) == 3
        np.testing.assert_array_equal(np.concatenate([piece.reshape(len(piece), -1) for piece in stored]), whole)
        pack(tape_of("matrix"), table, {"matrix": scheme}, 2)


def test_formats_that_take_more_memory_than_in_the_file_are_named() -> None:
    tensors = {
        form.name: replace(table_of(form, 16, 256)["matrix"], name=form.name)
        for form in (formats.Q4_K, formats.Q2_K, formats.IQ4_NL, formats.Q8_0)
    }
    table = WeightTable(tensors, Path("made-up"), "0" * 64)
    assert kept_texts(table, {name: scheme_of(tensor.format) for name, tensor in tensors.items()}) == (
        "IQ4_NL weights are kept in 5 bits each, 4.5 in the file; their values are the same",
        "Q2_K weights are kept in 5.125 bits each, 2.625 in the file; their values are the same",
    )
    assert kept_texts(table, dict.fromkeys(tensors, Scheme.F32)) == ()
