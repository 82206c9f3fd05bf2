"""Runs that are killed, interrupted or starved in a process of their own; the ledger must not mind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit.api.byte_text import MODEL
from tests.unit.batch.jobs import config_of, good_lines, read_lines_of, run
from tests.unit.batch.scripted_client import ScriptedClient

from plait.batch.config import BatchConfig
from plait.batch.ledger import JobTerms, Ledger
from plait.batch.runner import JOB_NAME
from plait.batch.source import open_source
from plait.core.errors import PlaitError

ROOT = Path(__file__).parents[3]
NUM_KILLS = 6


@dataclass(frozen=True, slots=True)
class Child:
    """A run under way, and the words of the requests that it and its forerunners submitted."""

    process: subprocess.Popen[str]
    journal: Path

    def wait_until(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"

    def ending(self) -> tuple[int, str]:
        """Exit code and what was printed last."""
        output, _ = self.process.communicate(timeout=60)
        return self.process.returncode, output


@contextmanager
def child_of(config: BatchConfig, last: int, *manner: str) -> Iterator[Child]:
    """See `killable_run`; lines from number `last` on never end."""
    journal = config.output.with_name("journal")
    module = "tests.unit.batch.killable_run"
    arguments = [config.input, str(config.output), str(journal), str(last), *manner]
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Child(process, journal)
        finally:
            process.kill()


def recorded(config: BatchConfig) -> dict[int, str]:
    """Finished lines in the ledger, with their output."""
    with open_source(config.input) as source, closing(Ledger.open(config.ledger)) as ledger:
        job = ledger.begin_job(JOB_NAME, JobTerms(source.sha256, MODEL.name, MODEL.weights, MODEL.fingerprint, 0))
        return dict(zip(sorted(ledger.finished(job)), ledger.outputs(job), strict=True))


def shown(config: BatchConfig) -> list[str]:
    """Lines that a reader could see: what has come that far must never be taken back."""
    return config.partial.read_text().split("\n")[:-1]


def submitted(journal: Path) -> Counter[int]:
    """How often each line was submitted."""
    return Counter(int(words.removeprefix("say ")) for words in journal.read_text().split("\n") if words)


def test_killed_at_any_moment_nothing_is_lost_and_nothing_finished_runs_again(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(400))
    moments = random.Random(7)
    before: dict[int, str] = {}
    submitted_before: Counter[int] = Counter()
    for kill in range(NUM_KILLS):
        with child_of(config, last=400) as child:
            child.wait_until("ready")
            time.sleep(moments.uniform(0.0, 0.06))
            while kill == NUM_KILLS - 1 and not shown(config):
                time.sleep(0.01)
            os.kill(child.process.pid, signal.SIGKILL)
            child.process.wait()
        after = recorded(config)
        now = submitted(child.journal)
        assert {number: after[number] for number in before} == before
        assert [line for line in shown(config) if line not in after.values()] == []
        assert [number for number in before if now[number] != submitted_before[number]] == []
        assert [number for number in after if not now[number]] == []
        assert not config.output.exists()
        before, submitted_before = after, now
    assert 0 < len(before) < 400
    client = ScriptedClient()
    summary = run(config, client)
    assert len(client.submitted) == 400 - len(before)
    assert (summary.lines_completed, summary.lines_resumed) == (400, len(before))
    lines = config.output.read_text().splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == [f"id-{number}" for number in range(1, 401)]
    assert [lines[number - 1] for number in before] == list(before.values())


def test_the_first_interrupt_stops_in_good_order_and_the_next_run_goes_on(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(400))
    with child_of(config, last=400) as child:
        child.wait_until("ready")
        os.kill(child.process.pid, signal.SIGINT)
        code, printed = child.ending()
    assert code == 130
    summary = json.loads(printed)
    assert summary["interrupted_by"] == "SIGINT"
    finished = recorded(config)
    assert summary["lines"]["completed"] == len(finished) < 400
    assert len(read_lines_of(config.partial)) == len(finished)
    client = ScriptedClient()
    assert run(config, client).exit_code == 0
    assert len(client.submitted) == 400 - len(finished)


def test_a_second_process_on_the_same_job_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(3))
    with child_of(config, last=1) as child:
        child.wait_until("ready")
        client = ScriptedClient()
        with pytest.raises(PlaitError, match="in use: another process works on this job"):
            run(config, client)
    assert client.submitted == []


def test_a_polite_kill_stops_in_good_order_too(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(60))
    with child_of(config, last=60) as child:
        child.wait_until("ready")
        os.kill(child.process.pid, signal.SIGTERM)
        code, printed = child.ending()
    assert code == 143
    assert json.loads(printed)["interrupted_by"] == "SIGTERM"


def test_the_second_interrupt_ends_the_process_at_once(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(60))
    with child_of(config, 1, "stubborn") as child:
        child.wait_until("ready")
        os.kill(child.process.pid, signal.SIGINT)
        child.wait_until("aborting")
        os.kill(child.process.pid, signal.SIGINT)
        code, _ = child.ending()
    assert code == -signal.SIGINT
    assert recorded(config) == {}


def test_a_file_size_limit_ends_the_job_in_one_line_and_the_next_run_goes_on(tmp_path: Path) -> None:
    config = config_of(tmp_path, good_lines(200))
    with child_of(config, 200, "cramped") as child:
        code, printed = child.ending()
    assert code == 1
    error = printed.removeprefix("ready\n")
    assert error.startswith("error: ")
    assert "run the same command again" in " ".join(error.split())
    assert error.count("\n") == 1
    finished = recorded(config)
    assert 0 < len(finished) < 200
    client = ScriptedClient()
    run(config, client)
    assert len(client.submitted) == 200 - len(finished)
