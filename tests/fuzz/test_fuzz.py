"""A small part of a fuzzing campaign: no reader of model files falls over strange input."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz import campaign, worker
from tests.fuzz.campaign import Tally
from tests.fuzz.readers import READERS, Reader
from tests.fuzz.worker import input_of, judged

from plait.core.errors import ModelError

NUM_INPUTS = 100
SEED = 5


@pytest.mark.parametrize("name", READERS)
def test_strange_input_is_read_or_refused(name: str) -> None:
    tally = Tally()
    campaign.run(name, SEED, NUM_INPUTS, tally)
    assert tally.faults == []
    assert tally.next == NUM_INPUTS
    assert set(tally.outcomes) == {"read", "refused"}


def test_an_input_follows_from_its_number_alone() -> None:
    for name in READERS:
        assert input_of(name, 1, 7) == input_of(name, 1, 7)
        assert input_of(name, 1, 7) != input_of(name, 2, 7)


def read_as(what: object) -> Reader:
    def read(folder: Path) -> None:
        if isinstance(what, BaseException):
            raise what
        if isinstance(what, int):
            bytearray(what)
        while what == "for ever":
            pass

    return Reader(lambda random: {"x": random.randbytes(4)}, read)


@pytest.fixture
def alarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    monkeypatch.setattr(worker, "MOST_SECONDS", 0.2)
    before = signal.signal(signal.SIGPROF, worker._out_of_time)
    yield
    signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (None, ("read", "")),
        (ModelError("a file is wrong; get another"), ("refused", "ModelError")),
        (ModelError("two\nlines"), ("fault", "message: 'two\\nlines'")),
        (KeyError("name"), ("fault", "KeyError: \"'name'\" at test_fuzz.py:")),
        (1 << 20, ("read", "")),
        # More than what earlier tests may have left free in the allocator's own heap, which no limit sees.
        (4 << 30, ("fault", "MemoryError: '' at test_fuzz.py:")),
        ("for ever", ("fault", "over 0.2 s")),
    ],
    ids=str,
)
def test_what_counts_as_a_fault(alarmed: None, tmp_path: Path, what: object, expected: tuple[str, str]) -> None:
    outcome, said = judged(read_as(what), tmp_path, 4)
    assert outcome == expected[0]
    assert said.startswith(expected[1])
