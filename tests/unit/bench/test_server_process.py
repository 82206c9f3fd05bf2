"""Server processes: they start, are awaited, and leave nobody behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from bench.serving.server_process import serving

FAMILY = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
time.sleep(100)
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux about processes")
def test_a_server_and_all_that_it_started_end_with_the_block_even_when_frozen(tmp_path: Path) -> None:
    told, script = tmp_path / "pids", tmp_path / "family.py"
    script.write_text(FAMILY)
    with serving(f"{sys.executable} {script} {told}", tmp_path / "log") as process:
        process.wait_until(lambda: told.exists() and len(told.read_text().split()) == 2, 20.0)
        pids = [int(word) for word in told.read_text().split()]
        assert all(is_running(pid) for pid in pids)
        assert os.getpgid(pids[1]) == pids[0] != os.getpgrp()
        process.freeze()
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(is_running(pid) for pid in pids)


def test_a_server_that_ends_or_stays_silent_is_told_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        pytest.raises(RuntimeError, match=f"the server ended with 3; its words are in {log}"),
        serving(f"{sys.executable} -c \"print('sorry', flush=True); raise SystemExit(3)\"", log) as process,
    ):
        process.wait_until(lambda: False, 20.0)
    assert log.read_text() == "sorry\n"
    with (
        pytest.raises(RuntimeError, match="the server does not answer after 0 s"),
        serving(f"{sys.executable} -c 'import time; time.sleep(100)'", log) as process,
    ):
        process.wait_until(lambda: False, 0.0)
