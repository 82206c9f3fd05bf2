"""Visibility: every count against a loop over rows and keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InvariantError
from plait.model.visibility import ALL, CAUSAL, Reach, Visibility, chunk, window

rules = st.one_of(
    st.just(CAUSAL),
    st.builds(window, st.integers(1, 20)),
    st.builds(chunk, st.integers(1, 20)),
)
starts = st.integers(0, 60)
counts = st.integers(0, 60)


def seen(rule: Visibility, slot: int) -> list[int]:
    """The keys that a row sees, straight from the definition in docs/concepts/numerics.md."""
    match rule.reach:
        case Reach.CAUSAL:
            return list(range(slot + 1))
        case Reach.WINDOW:
            return [j for j in range(slot + 1) if slot - j < rule.size]
        case Reach.CHUNK:
            return [j for j in range(slot + 1) if j // rule.size == slot // rule.size]
        case Reach.ALL:
            raise AssertionError("its keys are not the row's past")


@given(rule=rules, slot=st.integers(0, 120))
def test_first_and_count_describe_the_keys_a_row_sees(rule: Visibility, slot: int) -> None:
    keys = seen(rule, slot)
    assert rule.first(slot) == keys[0]
    assert rule.count(slot) == len(keys)


@given(rule=rules, start=starts, num_rows=counts)
def test_total_is_the_sum_over_rows(rule: Visibility, start: int, num_rows: int) -> None:
    assert rule.total(start, num_rows) == sum(len(seen(rule, slot)) for slot in range(start, start + num_rows))


@given(rule=rules, start=starts, num_rows=counts)
def test_union_counts_distinct_keys(rule: Visibility, start: int, num_rows: int) -> None:
    keys = {key for slot in range(start, start + num_rows) for key in seen(rule, slot)}
    assert rule.union(start, num_rows) == len(keys)


@given(rule=rules, slots=st.lists(st.integers(0, 120), max_size=8))
def test_single_rows_of_many_sequences_are_summed(rule: Visibility, slots: list[int]) -> None:
    assert rule.total_at(slots) == sum(len(seen(rule, slot)) for slot in slots)


@given(rule=rules, start=starts, first=counts, second=counts)
def test_cutting_a_chunk_changes_no_total(rule: Visibility, start: int, first: int, second: int) -> None:
    assert rule.total(start, first + second) == rule.total(start, first) + rule.total(start + first, second)


@given(num_rows=counts, num_keys=counts)
def test_rows_that_see_all_see_every_key(num_rows: int, num_keys: int) -> None:
    assert ALL.total(0, num_rows, num_keys) == num_rows * num_keys
    assert ALL.union(0, num_rows, num_keys) == (num_keys if num_rows else 0)


def test_a_window_as_long_as_the_sequence_is_causal() -> None:
    assert window(100).total(0, 100) == CAUSAL.total(0, 100) == 5050
    assert window(100).total(0, 101) == CAUSAL.total(0, 101) - 1


def test_a_chunk_starts_anew_at_its_border() -> None:
    assert [chunk(4).count(slot) for slot in range(9)] == [1, 2, 3, 4, 1, 2, 3, 4, 1]


def test_the_union_of_a_window_is_its_tail_and_the_new_rows() -> None:
    assert window(512).union(start=4096, num_rows=64) == 512 - 1 + 64
    assert window(512).union(start=10, num_rows=64) == 10 + 64


def test_a_trillion_rows_are_counted_without_a_loop() -> None:
    rows = 10**12
    assert CAUSAL.total(0, rows) == rows * (rows + 1) // 2
    assert window(1000).total(1000, rows) == 1000 * rows
    assert chunk(1000).total(0, rows) == rows // 1000 * 500_500


@pytest.mark.parametrize(
    ("reach", "size"),
    [(Reach.WINDOW, 0), (Reach.CHUNK, 0), (Reach.WINDOW, -1), (Reach.CAUSAL, 4), (Reach.ALL, 4)],
)
def test_a_size_belongs_to_windows_and_chunks_alone(reach: Reach, size: int) -> None:
    with pytest.raises(InvariantError, match=f"{reach} with size {size}"):
        Visibility(reach, size)
