"""The ledger: what is recorded stays, once, in one place, for one process at a time."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from plait.api.answers import Usage
from plait.batch.ledger import Counts, JobTerms, Ledger
from plait.batch.outcomes import LineOutcome
from plait.core.errors import InvariantError, PlaitError, UsageError

TERMS = JobTerms(input_sha256="aa", model="m", weights="w" * 64, fingerprint="fp-1", seed=0)


def outcome(number: int, *, failed: bool = False, text: str = "") -> LineOutcome:
    usage = Usage() if failed else Usage(10, 4, 3)
    return LineOutcome(number, f"id-{number}", text or f'{{"line":{number}}}', failed, usage)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl.ledger"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with closing(Ledger.open(path)) as opened:
        yield opened


def test_a_new_job_has_nothing_finished(ledger: Ledger) -> None:
    job = ledger.begin_job("output", TERMS)
    assert not job.is_resumed
    assert not job.is_complete
    assert ledger.finished(job) == frozenset()
    assert ledger.counts(job) == Counts(0, 0, Usage())
    assert list(ledger.outputs(job)) == []


def test_recorded_lines_are_counted_and_come_back_in_input_order(ledger: Ledger) -> None:
    job = ledger.begin_job("output", TERMS)
    ledger.record(job, [outcome(3), outcome(1, failed=True)])
    ledger.record(job, [outcome(2)])
    assert ledger.finished(job) == {1, 2, 3}
    assert ledger.counts(job) == Counts(done=2, failed=1, usage=Usage(20, 8, 6))
    assert list(ledger.outputs(job)) == ['{"line":1}', '{"line":2}', '{"line":3}']


def test_many_outputs_come_back_in_order_with_every_character(ledger: Ledger) -> None:
    job = ledger.begin_job("output", TERMS)
    texts = {number: f"{number} \u2028 ü \U0001f336 \x00 {'x' * number}" for number in range(1, 300)}
    ledger.record(job, [outcome(number, text=text) for number, text in reversed(texts.items())])
    assert list(ledger.outputs(job)) == list(texts.values())


def test_a_job_is_resumed_after_the_ledger_was_closed(path: Path) -> None:
    with closing(Ledger.open(path)) as ledger:
        ledger.record(ledger.begin_job("output", TERMS), [outcome(1)])
    with closing(Ledger.open(path)) as ledger:
        job = ledger.begin_job("output", TERMS)
        assert job.is_resumed
        assert job.warnings == ()
        assert ledger.finished(job) == {1}


def test_jobs_of_one_ledger_do_not_mix(ledger: Ledger) -> None:
    one, other = ledger.begin_job("one", TERMS), ledger.begin_job("other", replace(TERMS, input_sha256="bb"))
    ledger.record(one, [outcome(1)])
    ledger.record(other, [outcome(1), outcome(2)])
    ledger.complete(other, "digest")
    assert ledger.finished(one) == {1}
    assert ledger.finished(other) == {1, 2}
    assert not ledger.begin_job("one", TERMS).is_complete


def test_completeness_is_remembered(ledger: Ledger) -> None:
    job = ledger.begin_job("output", TERMS)
    assert not job.is_complete
    ledger.complete(job, "digest")
    again = ledger.begin_job("output", TERMS)
    assert again.is_complete
    assert again.output_sha256 == "digest"


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        (replace(TERMS, input_sha256="bb"), "another input"),
        (replace(TERMS, model="other"), "begun with model 'm'"),
        (replace(TERMS, weights="v" * 64), r"called 'm' too \(sha256 wwwwwwwwwwwwwwww, now vvvv"),
    ],
)
def test_another_input_or_model_is_refused_with_the_way_out(ledger: Ledger, terms: JobTerms, reason: str) -> None:
    ledger.begin_job("output", TERMS)
    with pytest.raises(UsageError, match=reason) as caught:
        ledger.begin_job("output", terms)
    assert "--restart" in str(caught.value)
    assert "choose another output" in str(caught.value)


def test_weights_that_were_rounded_otherwise_are_told_apart_in_words(ledger: Ledger) -> None:
    ledger.begin_job("output", TERMS)
    with pytest.raises(UsageError, match=r"\(sha256 wwwwwwwwwwwwwwww, now wwwwwwwwwwwwwwww\+int8\)"):
        ledger.begin_job("output", replace(TERMS, weights=f"{TERMS.weights}+int8"))


def test_other_numerics_or_seed_are_warned_about_and_the_job_goes_on(ledger: Ledger) -> None:
    ledger.record(ledger.begin_job("output", TERMS), [outcome(1)])
    job = ledger.begin_job("output", replace(TERMS, fingerprint="fp-2", seed=5))
    assert ledger.finished(job) == {1}
    assert len(job.warnings) == 2
    assert "fp-1" in job.warnings[0]
    assert "fp-2" in job.warnings[0]
    assert "seed 0, now it is 5" in job.warnings[1]


def test_restart_forgets_the_lines_of_this_job_only(ledger: Ledger) -> None:
    ledger.record(ledger.begin_job("output", TERMS), [outcome(1)])
    other = ledger.begin_job("other", TERMS)
    ledger.record(other, [outcome(1)])
    job = ledger.begin_job("output", replace(TERMS, input_sha256="bb"), restart=True)
    assert not job.is_resumed
    assert ledger.finished(job) == frozenset()
    assert ledger.finished(other) == {1}


def test_a_line_recorded_twice_is_our_fault_and_records_nothing(ledger: Ledger) -> None:
    job = ledger.begin_job("output", TERMS)
    ledger.record(job, [outcome(1)])
    with pytest.raises(InvariantError, match="recorded twice"):
        ledger.record(job, [outcome(2), outcome(1)])
    assert ledger.finished(job) == {1}
    ledger.record(job, [outcome(2)])


def test_a_second_user_of_an_open_ledger_is_refused(path: Path, ledger: Ledger) -> None:
    job = ledger.begin_job("output", TERMS)
    with pytest.raises(PlaitError, match="in use: another process works on this job"):
        Ledger.open(path)
    ledger.record(job, [outcome(1)])
    ledger.close()
    Ledger.open(path).close()


HOLD = """
import sys, time
from pathlib import Path
from plait.batch.ledger import JobTerms, Ledger
ledger = Ledger.open(Path(sys.argv[1]))
ledger.begin_job("output", JobTerms("aa", "m", "w" * 64, "fp-1", 0))
print("open", flush=True)
time.sleep(60)
"""


def test_the_lock_of_another_process_holds_until_it_is_killed(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "open\n"
            with pytest.raises(PlaitError, match="in use"):
                Ledger.open(path)
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    with closing(Ledger.open(path)) as ledger:
        assert ledger.begin_job("output", TERMS).is_resumed


def test_recorded_lines_are_in_the_ledger_alone_even_if_nobody_closes_it(path: Path, tmp_path: Path) -> None:
    ledger = Ledger.open(path)
    job = ledger.begin_job("output", TERMS)
    for number in range(1, 6):
        ledger.record(job, [outcome(number, text=f"{number}" * 10_000)])
        # What a kill would leave behind, without the files beside it.
        copy = tmp_path / f"copy-{number}.ledger"
        copy.write_bytes(path.read_bytes())
        with closing(Ledger.open(copy)) as reopened:
            assert reopened.finished(reopened.begin_job("output", TERMS)) == set(range(1, number + 1))
    ledger.close()


def test_a_closed_ledger_is_one_file(path: Path, tmp_path: Path) -> None:
    Ledger.open(path).close()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_what_is_no_ledger_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"my diary, which is longer than a database header\n" * 100)
    with pytest.raises(PlaitError, match="is no ledger; move it away"):
        Ledger.open(path)
    assert path.read_bytes().startswith(b"my diary")


@pytest.mark.parametrize("user_version", [0, 1, 2])
def test_a_database_of_somebody_else_is_refused_and_left_alone(path: Path, tmp_path: Path, user_version: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
        connection.execute(f"PRAGMA user_version = {user_version}")
    before = path.read_bytes()
    with pytest.raises(PlaitError, match=r"no ledger of this version \(another program's database.*move it away"):
        Ledger.open(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_a_ledger_of_a_later_version_is_refused(path: Path) -> None:
    Ledger.open(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(PlaitError, match="format 99; this version writes format 4"):
        Ledger.open(path)


@pytest.mark.parametrize("folder", ["/proc", "/nowhere/at/all"])
def test_a_folder_that_takes_no_files_is_one_clear_line(folder: str) -> None:
    with pytest.raises(PlaitError, match="cannot be created or opened"):
        Ledger.open(Path(folder) / "out.jsonl.ledger")


def test_a_full_disk_stops_recording_and_keeps_what_was_recorded(ledger: Ledger) -> None:
    job = ledger.begin_job("output", TERMS)
    ledger.record(job, [outcome(1)])
    connection = ledger._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    # SQLite reports its own page limit exactly as it reports a full disk.
    connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(PlaitError, match="the disk is full") as caught:
        ledger.record(job, [outcome(2, text="x" * 100_000), outcome(3)])
    assert "run the same command again" in str(caught.value)
    connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
    assert ledger.finished(job) == {1}
    ledger.record(job, [outcome(2, text="x" * 100_000), outcome(3)])
    assert ledger.finished(job) == {1, 2, 3}


def many_lines(path: Path) -> dict[int, str]:
    """A closed ledger of some pages, and what is in it."""
    outputs = {number: f'{{"line":{number},"text":"{"word " * 40}"}}' for number in range(1, 121)}
    with closing(Ledger.open(path)) as ledger:
        job = ledger.begin_job("output", TERMS)
        for first in range(1, 121, 20):
            lines = range(first, first + 20)
            ledger.record(job, [LineOutcome(one, str(one), outputs[one], False, Usage(1, 1, 1)) for one in lines])
    return outputs


def bit(raw: bytearray, draw: random.Random) -> None:
    raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)


def some_bytes(raw: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(raw) - 64)
    raw[at : at + 64] = draw.randbytes(64)


def a_page(raw: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(raw) - 4096)
    raw[at : at + 4096] = bytes(4096)


def the_end(raw: bytearray, draw: random.Random) -> None:
    del raw[draw.randrange(1, len(raw)) :]


@pytest.mark.parametrize("damage", [bit, some_bytes, a_page, the_end])
def test_a_damaged_ledger_is_refused_in_one_line_or_holds_all_that_it_held(
    tmp_path: Path, damage: Callable[[bytearray, random.Random], None]
) -> None:
    whole, draw = tmp_path / "whole.ledger", random.Random(5)
    outputs = many_lines(whole)
    refusals = []
    for trial in range(120):
        raw = bytearray(whole.read_bytes())
        damage(raw, draw)
        path = tmp_path / f"{trial}.ledger"
        path.write_bytes(raw)
        refusal = refusal_of(path, outputs)
        if refusal is not None:
            refusals.append(refusal)
            assert str(path) in refusal
        path.unlink()
    assert len(refusals) > 60
    assert not [one for one in refusals if not one.isprintable() or "word word" in one], "in one line, without answers"


def refusal_of(path: Path, outputs: dict[int, str]) -> str | None:
    """What the ledger is refused with; None: it holds all that it held."""
    try:
        with closing(Ledger.open(path)) as ledger:
            job = ledger.begin_job("output", TERMS)
            assert job.is_resumed, "a job whose lines are there is not begun anew"
            assert ledger.finished(job) == frozenset(outputs)
            assert list(ledger.outputs(job)) == list(outputs.values())
    except PlaitError as error:
        return str(error)
    return None
