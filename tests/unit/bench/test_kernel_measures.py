"""Measures of kernels: closed forms, bars and made-up steps, without a kernel."""

from __future__ import annotations

import itertools

import pytest
from bench.kernel.attention import straight_line
from bench.kernel.library import Stage
from bench.kernel.mixtures import MAX_SEQUENCES, MAX_TOKENS, Lengths, makespan, mixed_steps, read_lengths, steps
from bench.kernel.products import bar
from bench.kernel.report import Line, Section
from bench.kernel.rows import padding_cost


def test_padding_costs_nothing_while_reading_takes_longer() -> None:
    assert padding_cost(1, crossing=16.0) == 1.0
    assert padding_cost(13, crossing=16.0) == 24 / 16
    assert padding_cost(20, crossing=16.0) == 24 / 20
    assert padding_cost(1, crossing=4.0) == 3.0
    assert padding_cost(24, crossing=4.0) == 1.0


def test_the_bar_is_low_where_reading_and_multiplying_meet() -> None:
    assert [bar(rows, crossing=16.0) for rows in (1, 8, 9, 31, 32, 95, 96, 512)] == [
        *(0.80, 0.80, 0.70, 0.70, 0.80, 0.80, 0.85, 0.85)
    ]


def test_a_line_is_missed_on_either_side_of_its_bars_and_says_so() -> None:
    assert Line("share", 0.84, at_least=0.85).is_missed
    assert Line("ratio", 1.11, at_most=1.10).is_missed
    assert not Line("share", 0.85, at_least=0.85).is_missed
    assert not Line("reported only", 0.0).is_missed
    section = Section("K0", "an example")
    section.add("share", 0.5, at_least=0.85, note="why")
    assert "MISSED" in section.text()
    assert "1 missed" in section.text()
    assert section.json_object()["lines"] == [
        {"what": "share", "value": 0.5, "at_least": 0.85, "at_most": None, "unit": "", "note": "why", "missed": True}
    ]


def test_a_sequence_is_prefilled_in_chunks_and_then_grows_row_by_row() -> None:
    made = steps([Lengths(prompt_tokens=100, output_tokens=3)], rows_per_step=64, seed=1)
    first, second = itertools.islice(made, 2)
    assert first == [(Stage.PREFILL, 0, 64)]
    assert second == [(Stage.PREFILL, 64, 36), (Stage.PREFILL, 0, 28)]
    for segments in itertools.islice(made, 200):
        assert len(segments) <= MAX_SEQUENCES
        assert all(rows == 1 for stage, _, rows in segments if stage is Stage.DECODE)
        assert all(2 <= rows <= 8 for stage, _, rows in segments if stage is Stage.VERIFY)
        assert sum(rows for stage, _, rows in segments if stage is Stage.PREFILL) <= 64


@pytest.mark.parametrize("trace", ["code", "conversation"])
def test_steps_of_a_trace_are_mixed_fit_a_model_and_come_again(trace: str) -> None:
    assert len(read_lengths(trace)) == 400
    chosen = mixed_steps(trace, rows_per_step=64, count=6)
    assert len(chosen) == 6
    assert all(len({stage for stage, _, _ in segments}) > 1 for segments in chosen)
    assert all(start + rows <= MAX_TOKENS + 8 for segments in chosen for _, start, rows in segments)
    assert chosen == mixed_steps(trace, rows_per_step=64, count=6)


def test_units_are_claimed_in_order_by_whoever_is_free() -> None:
    assert makespan([3.0, 1.0, 1.0, 1.0], cores=2) == 3.0
    assert makespan([1.0, 1.0, 3.0], cores=2) == 4.0
    assert makespan([2.0, 2.0], cores=1) == 4.0


def test_a_straight_line_is_found() -> None:
    first, slope = straight_line([1.0, 2.0, 4.0], [5.0, 7.0, 11.0])
    assert (first, slope) == (pytest.approx(3.0), pytest.approx(2.0))
