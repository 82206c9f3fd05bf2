"""Start-up: the numbers of a start report, and phases that are what lies between two marks."""

from __future__ import annotations

import os

import pytest
from bench.start_up import PHASES, Stopwatch, number_before, report_memory, resident

REPORT = "resident memory: 1,181 MiB now: 92 MiB of packed weights\nlater: 22.5 KiB of KV cache for every 32 tokens"


def test_numbers_are_found_by_the_words_behind_them() -> None:
    assert number_before(REPORT, "MiB now") == 1181.0
    assert number_before(REPORT, "KiB of KV cache") == 22.5
    with pytest.raises(ValueError, match="does not say how many MiB of activations"):
        number_before(REPORT, "MiB of activations")


def test_a_phase_ends_once_when_its_work_is_done() -> None:
    watch = Stopwatch()
    watch.mark(PHASES[0])
    assert watch.marking(PHASES[1], lambda given: given + 1)(1) == 2
    first = dict(watch.ends)
    watch.marking(PHASES[1], int)("7")
    assert watch.ends == first
    assert first[PHASES[0]] <= first[PHASES[1]]


def test_what_is_resident_is_held_against_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"at_start": 200.0, "said_at_start": 190.0, "under_load": 400.0, "said_under_load": 420.0}
    report_memory({**found, "interpreter": 9.0})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == ["-5.0%", "5.0%"]


def test_this_process_is_resident() -> None:
    assert resident(os.getpid()) > 1.0
