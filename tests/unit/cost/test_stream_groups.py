"""Splits and groups as SGLang's multiplexing makes them."""

from __future__ import annotations

import pytest

from plait.core.errors import UsageError
from plait.cost.stream_groups import automatic_splits, group_of, layers_per_launch


@pytest.mark.parametrize(
    ("units", "capability", "prefill"),
    [
        (108, 8, [84, 78, 72, 66, 60, 54]),
        (132, 9, [112, 104, 96, 88, 80, 72]),
        (78, 9, [56, 48, 40]),
    ],
)
def test_splits_of_known_devices(units: int, capability: int, prefill: list[int]) -> None:
    found = automatic_splits(units, capability)
    assert [split.prefill for split in found] == prefill
    assert all(split.decode + split.prefill == units for split in found)


@pytest.mark.parametrize("units", range(34, 260, 7))
@pytest.mark.parametrize("capability", [6, 7, 8, 9])
def test_prefill_has_half_and_decode_sixteen(units: int, capability: int) -> None:
    found = automatic_splits(units, capability)
    assert len(found) <= 6
    assert all(split.prefill >= split.decode >= 16 for split in found)


def test_a_device_without_a_rule_and_too_few_groups_are_errors() -> None:
    with pytest.raises(UsageError, match=r"compute capability 12.x"):
        automatic_splits(132, 12)
    with pytest.raises(UsageError, match="at least 3"):
        automatic_splits(132, 9, groups=2)


@pytest.mark.parametrize(
    ("batch", "group"), [(0, 1), (1, 1), (11, 1), (12, 2), (18, 3), (24, 4), (30, 5), (36, 6), (64, 6)]
)
def test_the_batch_alone_chooses_the_group(batch: int, group: int) -> None:
    assert group_of(batch) == group


def test_a_table_made_by_hand_chooses_its_last_row_that_is_reached() -> None:
    table = (1, 5, 10, 15)
    assert [group_of(batch, thresholds=table) for batch in (1, 4, 5, 14, 99)] == [1, 1, 2, 3, 4]
    with pytest.raises(UsageError, match="below every threshold"):
        group_of(0, thresholds=table)


@pytest.mark.parametrize(
    ("new_tokens", "layers", "launched"),
    [(16384, 80, 4), (2048, 32, 32), (2049, 32, 31), (0, 80, 80), (200_000, 80, 1)],
)
def test_layers_of_a_launch_fall_with_the_tokens(new_tokens: int, layers: int, launched: int) -> None:
    assert layers_per_launch(new_tokens, layers) == launched
