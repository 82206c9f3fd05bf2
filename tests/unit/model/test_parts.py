"""Parts of a program: what weights, cache groups and spans say of themselves."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.ids import GroupId
from plait.model.ops import ValueId
from plait.model.parts import CacheGroup, GroupKind, Span, WeightRole, WeightSpec
from plait.model.visibility import Visibility, chunk, window


def group(kind: GroupKind, window: int = 0) -> CacheGroup:
    return CacheGroup(GroupId(0), "test", kind, 2, 3, 4, 5, window, max_rows=7)


@pytest.mark.parametrize(("kind", "size", "rule"), [(GroupKind.WINDOW, 6, window(6)), (GroupKind.CHUNKED, 6, chunk(6))])
@given(ctx=st.integers(1, 40))
def test_a_group_holds_what_its_newest_row_sees(kind: GroupKind, size: int, rule: Visibility, ctx: int) -> None:
    assert group(kind, size).held_tokens(ctx) == rule.count(ctx - 1)


@pytest.mark.parametrize(
    ("kind", "held"),
    [(GroupKind.FULL, [0, 1, 40]), (GroupKind.CROSS, [7, 7, 7]), (GroupKind.EMBEDDING, [0, 0, 0])],
)
def test_held_tokens_of_the_other_groups(kind: GroupKind, held: list[int]) -> None:
    assert [group(kind).held_tokens(ctx) for ctx in (0, 1, 40)] == held


def test_an_empty_sequence_holds_nothing_of_its_own() -> None:
    for kind in (GroupKind.FULL, GroupKind.WINDOW, GroupKind.CHUNKED):
        assert group(kind, 6).held_tokens(0) == 0


def test_held_bytes_count_all_layers_and_heads() -> None:
    assert group(GroupKind.WINDOW, 6).held_bytes(100, dtype_bytes=2) == 6 * 2 * 3 * (4 + 5) * 2


def test_a_state_takes_the_same_bytes_at_any_length() -> None:
    states = CacheGroup(GroupId(0), "states", GroupKind.STATE, 3, state_parts=(10, 20))
    assert states.elements_per_token == 0
    assert states.elements_per_state == 90
    assert [states.held_bytes(ctx, 4) for ctx in (1, 1000)] == [360, 360]


def test_an_embedding_keeps_one_head_per_row() -> None:
    images = CacheGroup(GroupId(0), "images", GroupKind.EMBEDDING, 1, 1, head_dim_k=8, max_rows=5)
    assert images.elements_per_token == 8
    assert not images.is_state


@pytest.mark.parametrize(("shape", "count"), [((), 1), ((7,), 7), ((3, 4), 12), ((2, 3, 4), 24)])
def test_a_weight_counts_its_numbers(shape: tuple[int, ...], count: int) -> None:
    assert WeightSpec("w", shape, WeightRole.LINEAR).num_elements == count


def test_a_span_counts_both_its_ends() -> None:
    assert Span("one", "layer", 4, 4, (), ()).num_ops == 1
    assert Span("more", "layer", 4, 9, (ValueId(3),), (GroupId(0),)).num_ops == 6


def test_parts_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        group(GroupKind.FULL).num_layers = 3  # type: ignore[misc]
