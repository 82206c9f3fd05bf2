"""Tensors: rows are read raw or as floats, in our order, alone or many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InvariantError
from plait.weights.formats import F32, Q4_1, Q8_0, WeightFormat
from plait.weights.tensor import Tensor

NUM_ROWS, NUM_COLUMNS = 6, 64


def make_tensor(weight_format: WeightFormat = Q8_0, order: list[int] | None = None) -> Tensor:
    stored = np.random.default_rng(1).integers(0, 120, (NUM_ROWS, weight_format.bytes_of(NUM_COLUMNS)), dtype=np.uint8)
    row_order = None if order is None else np.array(order, dtype=np.intp)
    return Tensor("t", (NUM_ROWS, NUM_COLUMNS), weight_format, stored, row_order)


def test_sizes_are_those_of_the_format() -> None:
    tensor = make_tensor(Q4_1)
    assert (tensor.num_rows, tensor.num_weights, tensor.num_bytes) == (6, 384, 6 * 2 * 20)


def test_raw_rows_without_an_order_are_a_view() -> None:
    tensor = make_tensor()
    assert np.shares_memory(tensor.raw(2, 4), tensor.stored)
    np.testing.assert_array_equal(tensor.raw(), tensor.stored)


def test_reordering_moves_whole_rows_and_keeps_the_stored_ones() -> None:
    order = [3, 0, 4, 1, 5, 2]
    plain, reordered = make_tensor(Q4_1), make_tensor(Q4_1, order)
    np.testing.assert_array_equal(reordered.raw(), plain.stored[order])
    np.testing.assert_array_equal(reordered.dequantize(), plain.dequantize()[order])
    np.testing.assert_array_equal(reordered.stored, plain.stored)


@given(start=st.integers(0, NUM_ROWS), length=st.integers(0, NUM_ROWS), ordered=st.booleans())
def test_a_range_of_rows_is_that_part_of_the_whole(start: int, length: int, ordered: bool) -> None:
    tensor = make_tensor(order=[5, 4, 3, 2, 1, 0] if ordered else None)
    stop = min(start + length, NUM_ROWS)
    np.testing.assert_array_equal(tensor.dequantize(start, stop), tensor.dequantize()[start:stop])


@given(rows=st.lists(st.integers(0, NUM_ROWS - 1), max_size=9), ordered=st.booleans())
def test_chosen_rows_come_in_the_order_asked_for(rows: list[int], ordered: bool) -> None:
    tensor = make_tensor(order=[5, 4, 3, 2, 1, 0] if ordered else None)
    chosen = tensor.dequantize_rows(np.array(rows, dtype=np.int32))
    assert chosen.shape == (len(rows), NUM_COLUMNS)
    np.testing.assert_array_equal(chosen, tensor.dequantize()[rows])


def test_a_vector_has_rows_of_one_weight() -> None:
    floats = np.arange(4, dtype=np.float32)
    order = np.array([0, 2, 1, 3], dtype=np.intp)
    vector = Tensor("bias", (4,), F32, floats.view(np.uint8).reshape(4, 4), order)
    assert vector.dequantize().tolist() == [0.0, 2.0, 1.0, 3.0]


def test_more_than_two_dimensions_keep_their_shape() -> None:
    stored = np.zeros((2, Q8_0.bytes_of(3 * 32)), dtype=np.uint8)
    assert Tensor("experts", (2, 3, 32), Q8_0, stored).dequantize(1, 2).shape == (1, 3, 32)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 7), (4, 3)])
def test_rows_outside_the_tensor_are_our_own_mistake(start: int, stop: int) -> None:
    with pytest.raises(InvariantError, match=f"rows {start} to {stop} of tensor t, which has 6"):
        make_tensor().dequantize(start, stop)


@pytest.mark.parametrize("row", [-1, 6])
def test_a_row_outside_the_tensor_never_wraps_around(row: int) -> None:
    with pytest.raises(InvariantError, match="of tensor t, which has 6"):
        make_tensor().dequantize_rows(np.array([0, row]))


@pytest.mark.parametrize("order", [None, [0, 1, 2]])
def test_bytes_that_do_not_fit_the_shape_are_our_own_mistake(order: list[int] | None) -> None:
    row_order = None if order is None else np.array(order, dtype=np.intp)
    rows = NUM_ROWS if order else NUM_ROWS - 1
    with pytest.raises(InvariantError, match=r"tensor t of shape \(6, 64\)"):
        Tensor("t", (NUM_ROWS, NUM_COLUMNS), Q8_0, np.zeros((rows, 68), dtype=np.uint8), row_order)
