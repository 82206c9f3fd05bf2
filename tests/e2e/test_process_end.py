"""The end of a process that uses the engine and never closes it: a script, a notebook, whoever forgets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.tiny_model import write_tiny_model

SCRIPT = """
import sys
from datetime import datetime
from plait.build import load_model, start_engine
from plait.cli.terminal import download_progress
from plait.config.engine_options import EngineOptions
from plait.metrics.totals import Totals

options = EngineOptions(model=sys.argv[1])
with download_progress(options.model, quiet=True) as progress:
    model = load_model(options, progress, datetime.now)
engine = start_engine(options, model, Totals(), print)
"""


def test_an_engine_that_nobody_closed_ends_with_its_process_and_without_a_word(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    command = [sys.executable, "-c", SCRIPT, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
