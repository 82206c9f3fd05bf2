"""Waves, chunks, splits and the guard's grid: published cells, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import UsageError
from plait.cost.chunking import iterations, key_reads
from plait.cost.guard import grid_points
from plait.cost.partitions import layers_to_launch, splits
from plait.cost.waves import attention_blocks, fitting_rows, gemm_blocks, idle_ratio, num_waves

A100_UNITS = 108


@pytest.mark.parametrize(
    ("tokens", "qkv", "attention", "output"),
    [(1024, 11.1, 21.0, 40.7), (2048, 11.1, 5.2, 21.0), (4096, 11.1, 5.2, 5.2), (16384, 1.9, 0.2, 0.2)],
)
def test_idle_share_of_a_layer_on_an_a100(tokens: int, qkv: float, attention: float, output: float) -> None:
    """Bullet's table of Llama-3.1-8B: products in tiles of 128 x 256, 32 heads in blocks of 128 rows."""
    blocks = (
        gemm_blocks(tokens, 6144, 128, 256),
        attention_blocks(tokens, 32, 128),
        gemm_blocks(tokens, 4096, 128, 256),
    )
    assert [round(100 * idle_ratio(count, A100_UNITS), 1) for count in blocks] == [qkv, attention, output]


@given(blocks=st.integers(1, 5000), units=st.integers(1, 200), per_unit=st.integers(1, 4))
def test_idling_is_what_waves_leave_of_the_units(blocks: int, units: int, per_unit: int) -> None:
    idle = idle_ratio(blocks, units, per_unit)
    assert 0.0 <= idle < 1.0
    full_waves = num_waves(blocks, units, per_unit) - 1
    left = blocks - full_waves * units * per_unit
    busy_in_last = min(units, -(-left // per_unit)) if left else units
    assert idle == pytest.approx(1 - (full_waves * units + busy_in_last) / ((full_waves + 1) * units))


def test_no_blocks_idle_nothing_and_a_full_wave_neither() -> None:
    assert idle_ratio(0, 108) == 0.0
    assert idle_ratio(216, 108) == 0.0
    assert idle_ratio(216, 108, per_unit=2) == 0.0


@pytest.mark.parametrize(("rows", "tile"), [(1, 16), (16, 16), (17, 32), (100, 128), (5000, 128)])
def test_few_rows_take_a_small_tile(rows: int, tile: int) -> None:
    assert fitting_rows(rows, 128) == tile


@pytest.mark.parametrize(("chunk", "count", "units"), [(1024, 16, 136), (2048, 8, 36), (16384, 1, 1)])
def test_a_16k_prompt_in_chunks_reads_keys_again(chunk: int, count: int, units: int) -> None:
    assert iterations(16384, chunk) == count
    assert key_reads(count) == units


def test_decode_tokens_take_room_in_a_chunk() -> None:
    assert iterations(16384, 1024, 512) == 32
    with pytest.raises(UsageError, match="chunks of 64 tokens have no room beside 64 decode tokens"):
        iterations(100, 64, 64)


def test_splits_of_an_a100_and_an_h100() -> None:
    assert [split.decode for split in splits(108)] == [12, 28, 44, 60, 76, 92]
    assert [split.decode for split in splits(132)] == [20, 36, 52, 68, 84, 100, 116]
    assert all(split.prefill % 16 == 0 and split.prefill + split.decode == 132 for split in splits(132))


def test_a_few_cores_split_one_by_one() -> None:
    assert [(split.decode, split.prefill) for split in splits(4, granularity=1)] == [(1, 3), (2, 2), (3, 1)]
    assert splits(1, granularity=1) == ()


def test_launched_layers_outlast_the_decode_step() -> None:
    assert layers_to_launch(0.080, 0.842, 80) == 8
    assert layers_to_launch(1e-9, 0.842, 80) == 1
    assert layers_to_launch(10.0, 0.842, 80) == 80


@given(st.floats(1e-4, 1), st.floats(1e-3, 10), st.integers(1, 128))
def test_so_many_layers_cover_a_decode_step_and_one_less_would_not(decode: float, prefill: float, layers: int) -> None:
    count = layers_to_launch(decode, prefill, layers)
    assert 1 <= count <= layers
    if count < layers:
        assert count * prefill / layers >= decode * (1 - 1e-9)
    if count > 1:
        assert (count - 1) * prefill / layers < decode * (1 + 1e-9)


def test_the_guard_of_an_a100_has_7200_points() -> None:
    points = list(grid_points([split.decode for split in splits(108)]))
    assert len(points) == len(set(points)) == 7200
    assert not any(point.new_tokens == point.reused_tokens == 131072 for point in points)
