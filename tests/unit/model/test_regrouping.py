"""Regrouping: layers in more block tables, and nothing else different."""

from __future__ import annotations

import pytest
from tests.unit.model.programs import tiny_program

from plait.core.errors import InvariantError
from plait.core.ids import GroupId
from plait.model.ops import Attend, CacheWrite
from plait.model.regrouping import in_tables
from plait.model.visibility import CAUSAL, window


def test_nothing_to_divide_is_the_program_itself() -> None:
    program = tiny_program(window(8), CAUSAL)
    assert in_tables(program, {}) is program
    assert in_tables(program, {GroupId(0): 1}) is program


def test_layers_are_divided_in_order() -> None:
    program = tiny_program(window(8), CAUSAL, window(8), window(8), window(8))
    windows = next(group.id for group in program.cache_groups if group.window)
    cut = in_tables(program, {windows: 2})
    assert [(group.id, group.num_layers, group.window) for group in cut.cache_groups] == [
        (0, 2, 8),
        (1, 2, 8),
        (2, 1, 0),
    ]
    writes = [(op.group, op.slot) for op in cut.ops if isinstance(op, CacheWrite)]
    assert writes == [(0, 0), (2, 0), (0, 1), (1, 0), (1, 1)]
    assert writes == [(op.group, op.slot) for op in cut.ops if isinstance(op, Attend)]


def test_layers_that_do_not_divide_are_our_bug() -> None:
    with pytest.raises(InvariantError, match=r"3 layers of group .* do not divide into 2"):
        in_tables(tiny_program(CAUSAL, CAUSAL, CAUSAL), {GroupId(0): 2})
