"""Places: the user's own folders, by the conventions of the system.

Owns what they are for a user without a home folder, as in a container that runs under a bare number: folders that are
not there, so that whoever needs one says so and how to name another. Nothing is made or looked at here.
"""

from __future__ import annotations

from pathlib import Path

import platformdirs

NO_HOME = Path("/dev/null/no-home")
"""Where nobody can make a folder, not even root."""


def home_dir() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        return NO_HOME


def cache_dir() -> Path:
    try:
        return Path(platformdirs.user_cache_dir("plait"))
    except RuntimeError:
        return NO_HOME / ".cache" / "plait"


def state_dir() -> Path:
    try:
        return Path(platformdirs.user_state_dir("plait"))
    except RuntimeError:
        return NO_HOME / ".local" / "state" / "plait"


def calibration_file(cache: Path) -> Path:
    """Where `plait calibrate` keeps what it measured, in a cache folder."""
    return cache / "hardware" / "this-machine.json"
