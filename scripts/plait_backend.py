"""The build backend: scikit-build-core's, and without a C++ compiler a wheel of the Python files alone.

Owns that one decision; pyproject.toml owns everything else. scripts/compiler decides the same way for the Makefile.
Invariant: where there is a compiler, a native build that fails is an error, never a wheel without a native runtime.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping

from scikit_build_core import build

# What pip and other front ends pass to a hook of PEP 517.
Settings = Mapping[str, str | list[str]] | None

# In the order in which CMake looks for them.
COMPILERS = ("c++", "g++", "clang++")
NATIVE = "wheel.cmake"

build_sdist = build.build_sdist
get_requires_for_build_sdist = build.get_requires_for_build_sdist


def find_compiler() -> str | None:
    """The compiler of a native build; CXX is taken at its word, so that a wrong one is an error of that build."""
    return os.environ.get("CXX") or next((name for name in COMPILERS if shutil.which(name)), None)


def settings_here(settings: Settings) -> dict[str, str | list[str]]:
    """The caller's settings, and no native build where nothing could compile it and the caller does not insist."""
    chosen = dict(settings or {})
    if NATIVE not in chosen and find_compiler() is None:
        chosen[NATIVE] = "false"
    if chosen.get(NATIVE) == "false":
        # The tag of pyproject.toml is a native module's; Python files alone have py3.
        chosen.setdefault("wheel.py-api", "")
    return chosen


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return build.get_requires_for_build_wheel(settings_here(config_settings))


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return build.get_requires_for_build_editable(settings_here(config_settings))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    return build.prepare_metadata_for_build_wheel(metadata_directory, settings_here(config_settings))


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    return build.prepare_metadata_for_build_editable(metadata_directory, settings_here(config_settings))


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    return build_here(build.build_wheel, wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    return build_here(build.build_editable, wheel_directory, config_settings, metadata_directory)


def build_here(
    hook: Callable[[str, dict[str, str | list[str]], str | None], str],
    wheel_directory: str,
    settings: Settings,
    metadata_directory: str | None,
) -> str:
    chosen = settings_here(settings)
    if NATIVE not in (settings or {}) and NATIVE in chosen:
        names = ", ".join(COMPILERS)
        print(
            f"plait: no C++ compiler (CXX is not set; none of {names} is on the PATH): building without the native "
            "runtime; Plait will run on its reference executor",
            file=sys.stderr,
        )
    return hook(wheel_directory, chosen, metadata_directory)
