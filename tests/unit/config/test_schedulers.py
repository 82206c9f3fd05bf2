"""--scheduler: what is taken, and that it is what the scheduling room knows."""

from __future__ import annotations

import pytest

from plait.config.ablations import OF_SCHEDULERS
from plait.config.schedulers import SCHEDULERS, SchedulerChoice, parse_scheduler, parse_simulated_scheduler
from plait.core.errors import UsageError
from plait.sched.multiplex.mechanisms import WITHOUT, Mechanism
from plait.sched.multiplex.presets import PRESETS, mechanisms_of, preset_of


def test_the_names_are_those_of_the_presets() -> None:
    assert set(SCHEDULERS) == set(PRESETS)
    assert tuple(Mechanism) == OF_SCHEDULERS
    assert set(WITHOUT) == set(Mechanism)
    # Every mechanism belongs to some preset, and leaving it out changes that.
    for name in Mechanism:
        having = [preset for preset in PRESETS.values() if name in mechanisms_of(preset.name)]
        assert having, name
        assert all(preset.without([name]) != preset for preset in having)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("muxwise", SchedulerChoice("muxwise")),
        ("chunked", SchedulerChoice()),
        ("chunked:20ms", SchedulerChoice("chunked", chunk_s=0.02)),
        ("static:54", SchedulerChoice("static", units=54)),
        ("unpartitioned", SchedulerChoice("unpartitioned")),
    ],
)
def test_schedulers_are_read_and_written(text: str, expected: SchedulerChoice) -> None:
    assert parse_scheduler(text) == parse_simulated_scheduler(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("muxwize", "did you mean muxwise"),
        ("bullet:3", "chunked:TIME, static:UNITS or unpartitioned is expected$"),
        ("static", "static:UNITS or unpartitioned is expected$"),
        ("static:0", "static:UNITS or unpartitioned is expected$"),
        ("interleavd", "static:UNITS or unpartitioned is expected$"),
        ("interleaved", "plait sim alone"),
        ("chunked:200", "write 200s if that is meant, or 200ms"),
        ("chunked:", "a time above 0 such as"),
        ("", "one of chunked"),
    ],
)
def test_what_is_no_scheduler_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_scheduler(text)


def test_what_only_a_simulation_has_is_offered_there() -> None:
    assert parse_simulated_scheduler("interleaved") == SchedulerChoice("interleaved")
    with pytest.raises(ValueError, match=r"unpartitioned or interleaved is expected; did you mean interleaved\?"):
        parse_simulated_scheduler("interleavd")


def test_a_preset_does_not_do_without_what_it_does_not_have() -> None:
    with pytest.raises(UsageError, match=r"scheduler bullet has no mechanism 'guard'.*it has: partition, shares"):
        preset_of("bullet", ["guard"])
    with pytest.raises(UsageError, match=r"scheduler chunked has no mechanism 'guard'.*it has: none"):
        preset_of("chunked", ["guard"])
