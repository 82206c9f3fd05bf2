"""Keeping: layers with a window in memory that keeps every token; what they see is not touched."""

from __future__ import annotations

import pytest
from tests.unit.model.programs import tiny_program

from plait.core.errors import UsageError
from plait.core.ids import GroupId
from plait.model.builder import ProgramBuilder
from plait.model.keeping import keep_all_tokens, keeps_all_tokens
from plait.model.ops import Attend, CacheWrite
from plait.model.parts import CacheGroup, GroupKind
from plait.model.visibility import CAUSAL, chunk, window


def test_a_program_without_windows_stays_as_it_is() -> None:
    program = tiny_program(CAUSAL, CAUSAL)
    assert keep_all_tokens(program) is program


def test_windowed_layers_move_into_one_group_with_all_others() -> None:
    program = tiny_program(window(8), CAUSAL, chunk(4), window(8))
    kept = keep_all_tokens(program)
    (group,) = kept.cache_groups
    assert (group.name, group.kind, group.num_layers, group.window) == ("full", GroupKind.FULL, 4, 0)
    writes = [(op.group, op.slot) for op in kept.ops if isinstance(op, CacheWrite)]
    reads = [(op.group, op.slot) for op in kept.ops if isinstance(op, Attend)]
    assert writes == reads == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert (keeps_all_tokens(program), keeps_all_tokens(kept)) == (False, True)


def test_rows_see_what_they_saw_before() -> None:
    program = tiny_program(window(8), CAUSAL)
    kept = keep_all_tokens(program)
    assert [op.visibility for op in kept.ops if isinstance(op, Attend)] == [window(8), CAUSAL]
    assert [span.kind for span in kept.spans] == [span.kind for span in program.spans]
    assert kept.weights == program.weights


def test_heads_of_another_width_get_a_group_of_their_own() -> None:
    b = ProgramBuilder("two widths")
    first = b.kv_group("window 4", 1, 1, 4, GroupKind.WINDOW, 4)
    second = b.kv_group("full", 1, 1, 8)
    b.span("all", "all")
    x = b.embed("embed", 32, 8)
    for group, width, seen in ((first, 4, window(4)), (second, 8, CAUSAL)):
        k = b.linear(x, f"k{width}", width)
        b.cache_write(k, k, group, 0)
        x = b.add(x, b.linear(b.attend(b.linear(x, f"q{width}", width), group, 0, 1, visibility=seen), f"o{width}", 8))
    b.sample(b.select(x))
    kept = keep_all_tokens(b.finish())
    assert [(group.name, group.head_dim_k, group.kind) for group in kept.cache_groups] == [
        ("full", 4, GroupKind.FULL),
        ("full 1", 8, GroupKind.FULL),
    ]


def test_windows_beside_memory_that_holds_no_tokens_are_refused() -> None:
    b = ProgramBuilder("state beside window")
    short = b.kv_group("window 4", 1, 1, 8, GroupKind.WINDOW, 4)
    states = b.group(CacheGroup(GroupId(0), "states", GroupKind.STATE, 1, state_parts=(8 * 3,)))
    b.span("all", "all")
    x = b.conv(b.embed("embed", 32, 8), "conv", 4, states, 0)
    b.cache_write(x, x, short, 0)
    b.sample(b.select(b.attend(x, short, 0, 1, visibility=window(4))))
    with pytest.raises(UsageError, match=r"windows beside states.*serve it with --kv-layout paged"):
        keep_all_tokens(b.finish())
