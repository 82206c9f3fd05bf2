"""Presence: whether the native runtime can be used in this installation.

Owns the one place that may fail to import it. Plait installs without a C++ compiler; then it is not there.
"""

from __future__ import annotations


def missing() -> str | None:
    """Why the native runtime cannot be used here, or None."""
    try:
        import plait._native  # noqa: F401 - whether it can be imported is the question
    except ImportError as error:
        return str(error)
    return None
