"""A user without a home folder: the command works, and what needs a folder says how to name one."""

from __future__ import annotations

import os
import subprocess
import sys

from plait.config.engine_options import DEFAULT_CACHE_DIR
from plait.config.places import cache_dir

# An absolute HOME is believed; without one the user's entry is asked for, which this user has not.
NOBODY = """
import os, pwd
def unknown(number):
    raise KeyError(number)
pwd.getpwuid = unknown
import sys
from plait.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def plait(*arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "HOME" and not name.startswith("XDG_")}
    command = [sys.executable, "-c", NOBODY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=kept, check=False)


def test_the_cache_of_a_user_with_a_home_is_the_systems() -> None:
    assert cache_dir() == DEFAULT_CACHE_DIR


def test_without_a_home_questions_are_answered() -> None:
    done = plait("models")
    assert done.returncode == 0
    assert done.stdout.startswith("by name:")
    assert plait("batch", "--help=all").returncode == 0


def test_without_a_home_a_model_that_must_be_kept_names_the_way_out() -> None:
    done = plait("verify", "-n", "1")
    assert done.returncode == 1
    assert done.stderr.startswith("plait: /dev/null/no-home")
    assert "--cache-dir or PLAIT_CACHE_DIR" in done.stderr
