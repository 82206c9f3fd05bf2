"""Quiet: the share of used time from the kernel's counters."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.serving.quiet import busy_fraction, used_fraction


def test_idle_and_waiting_time_is_not_used_and_stolen_time_is() -> None:
    before = [100, 0, 50, 1000, 10, 0, 0, 5]
    assert used_fraction(before, [110, 0, 50, 1080, 10, 0, 0, 15]) == pytest.approx(0.2)
    assert used_fraction(before, [100, 0, 50, 1060, 50, 0, 0, 5]) == 0.0
    assert used_fraction(before, before) == 0.0


def test_counters_that_stand_still_or_are_not_there(tmp_path: Path) -> None:
    counters = tmp_path / "stat"
    assert busy_fraction(0.0, counters) is None
    counters.write_text("cpu  10 0 5 100 1 0 0 0 0 0\ncpu0 10 0 5 100 1 0 0 0 0 0\n")
    assert busy_fraction(0.0, counters) == 0.0
