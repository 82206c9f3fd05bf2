"""An engine that serves nobody: it does nothing, and occupies what its start report says. The model is the default."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.e2e.engine_process import OUTPUT_TOKENS, PROMPT_TOKENS, SEQUENCES

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
IDLE_S = 2.0
MOST_SWITCHES = 20
"""Times that a process goes to sleep while it answers one question and waits for the next; a look-out that wakes up
every 50 ms would sleep twice as often.
"""
CLOSE = 0.05


@dataclass(frozen=True, slots=True)
class EngineProcess:
    process: subprocess.Popen[str]
    notes: str

    def tell(self, what: str) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        counted: dict[str, float] = json.loads(self._line())
        return counted

    def resident(self) -> float:
        """MiB, as `ps` shows them."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def said(self, what: str) -> float:
        """The number in front of these words of the report."""
        found = re.search(rf"([\d,]+) {what}", self.notes)
        assert found is not None, self.notes
        return float(found[1].replace(",", ""))

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def engine_process(model: Path) -> Iterator[EngineProcess]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "tests.e2e.engine_process", str(model)]
    process = subprocess.Popen(
        command, stdin=-1, stdout=-1, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield EngineProcess(process, "\n".join(json.loads(process.stdout.readline())))
            process.stdin.close()
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


def rest(engine: EngineProcess, seconds: float) -> dict[str, float]:
    """What was counted more behind so many seconds in which nobody asked for anything."""
    before = engine.tell("look")
    time.sleep(seconds)
    after = engine.tell("look")
    return {what: after[what] - before[what] for what in before}


def settle(engine: EngineProcess) -> None:
    """Until the workers are asleep: they look out for work for a moment behind a step."""
    for _ in range(100):
        if rest(engine, 0.1)["parks"] == 0:
            return


def test_an_engine_that_serves_nobody_does_nothing(model_path: Path) -> None:
    with engine_process(model_path) as engine:
        asked = engine.tell("ask")
        assert asked["steps"] >= 3
        assert asked["units"] > 0
        settle(engine)
        assert engine.tell("look")["parks"] > 0
        idle = rest(engine, IDLE_S)
    assert (idle["units"], idle["parks"], idle["steps"]) == (0, 0, 0)
    assert idle["switches"] <= MOST_SWITCHES


@pytest.mark.slow
def test_an_idle_engine_takes_less_than_a_hundredth_of_a_core(model_path: Path) -> None:
    with engine_process(model_path) as engine:
        engine.tell("ask")
        settle(engine)
        idle = rest(engine, 30.0)
    print(f"idle: {idle['processor_s']:.4f} s of processor time in {idle['at_s']:.1f} s; {idle}")
    assert idle["processor_s"] < 0.01 * idle["at_s"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_it_occupies_what_the_start_report_says(model_path: Path) -> None:
    with engine_process(model_path) as engine:
        now = engine.said("MiB now")
        assert engine.resident() == pytest.approx(now, rel=CLOSE)
        assert engine.said("MiB of packed weights") < now
        engine.tell("serve")
        blocks = SEQUENCES * -(-(PROMPT_TOKENS + OUTPUT_TOKENS - 1) // engine.said("tokens of a sequence"))
        cache = blocks * engine.said("KiB of KV cache") / 1024
        assert cache > now / 2
        whole = now + engine.said("MiB of activations")
        ahead = engine.said("MiB ahead")
        # Pages ahead of use are taken in their own time, or not at all where the system has no way to.
        until_s = time.monotonic() + 10.0
        while engine.resident() < (1 - CLOSE) * (whole + cache + ahead) and time.monotonic() < until_s:
            time.sleep(0.05)
        assert (1 - CLOSE) * (whole + cache) <= engine.resident() <= (1 + CLOSE) * (whole + cache + ahead)
