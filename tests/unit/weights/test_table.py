"""The weight table: a mapping with a size and an identity."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from plait.core.errors import ModelError
from plait.weights.checksum import file_sha256
from plait.weights.formats import F32, Q8_0
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor


def make_tensors() -> dict[str, Tensor]:
    return {
        "embed": Tensor("embed", (3, 32), Q8_0, np.zeros((3, 34), dtype=np.uint8)),
        "final_norm": Tensor("final_norm", (32,), F32, np.zeros((32, 4), dtype=np.uint8)),
    }


def test_it_is_a_mapping_in_the_order_given(tmp_path: Path) -> None:
    tensors = make_tensors()
    table = WeightTable(tensors, tmp_path / "m.gguf")
    assert list(table) == ["embed", "final_norm"]
    assert len(table) == 2
    assert table["embed"] is tensors["embed"]
    assert "head" not in table
    assert table.source == tmp_path / "m.gguf"


def test_later_changes_of_the_given_mapping_do_not_reach_it(tmp_path: Path) -> None:
    tensors = make_tensors()
    table = WeightTable(tensors, tmp_path)
    del tensors["embed"]
    assert "embed" in table


def test_total_bytes_are_those_of_the_formats(tmp_path: Path) -> None:
    assert WeightTable(make_tensors(), tmp_path).total_bytes == 3 * 34 + 32 * 4


def test_the_checksum_is_computed_once_and_only_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    table = WeightTable({}, path)
    path.write_bytes(b"some weights")
    expected = hashlib.sha256(b"some weights").hexdigest()
    assert table.sha256 == expected == file_sha256(path)
    path.unlink()
    assert table.sha256 == expected


def test_a_known_checksum_is_not_computed_again(tmp_path: Path) -> None:
    assert WeightTable({}, tmp_path / "missing", sha256="ab" * 32).sha256 == "ab" * 32


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing\.gguf: cannot be read \(No such file or directory\)"):
        _ = WeightTable({}, tmp_path / "missing.gguf").sha256
