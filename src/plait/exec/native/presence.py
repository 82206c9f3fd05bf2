"""Presence: whether the native runtime can be used in this installation.

Owns the one place that may fail to import it, and the revision of its interface. Plait installs without a C++ compiler;
then it is not there, and that alone is no error.
"""

from __future__ import annotations

from typing import Final

from plait.core.errors import PlaitError

INTERFACE: Final = 18
"""Of plait._native, as csrc/bindings/module.cc numbers it too: goes up with every change of what Python and it say to
each other, so that Python files beside a runtime that was built from older sources are noticed."""
_NAME: Final = "plait._native"


def missing() -> str | None:
    """Why there is no native runtime here, or None. `PlaitError` if there is one that cannot be used."""
    try:
        import plait._native as native
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == _NAME:
            return str(error)
        raise PlaitError(
            f"the native runtime is installed but cannot be loaded ({_one_line(error)}); reinstall Plait (in a "
            "checkout: make clean, then make run), or take --executor reference"
        ) from error
    built = native.build_info().get("interface", "none")
    if built != INTERFACE:
        raise PlaitError(
            f"the native runtime in {native.__file__} was built for another version of Plait (its interface is "
            f"{built}, needed is {INTERFACE}); reinstall Plait (in a checkout: make run), or take --executor reference"
        )
    return None


def _one_line(error: ImportError) -> str:
    return " ".join(str(error).split())
