"""Errors of the Python API: what a caller's own values did wrong.

Owns `InputError`, which is what Python programs expect for a bad value and what Plait says about bad requests at once.
"""

from __future__ import annotations

from plait.core.errors import RequestError


class InputError(RequestError, ValueError):
    """A prompt, a parameter or an option that cannot be served. Raised before anything runs."""


def input_error(error: RequestError, where: str = "") -> InputError:
    """The same trouble, said of `where` (`prompt 3`)."""
    return InputError(f"{where}: {error.message}" if where else error.message, param=error.param, code=error.code)
