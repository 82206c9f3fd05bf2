"""Errors: three kinds of trouble, three treatments.

Owns every exception type of Plait. A `PlaitError` is expected trouble: its text is one complete line for a user,
naming the value, the limit and the way out. An `InvariantError` is our own fault and stops the engine loudly.
Invariant: a shortage (no memory, no budget) is a value, never an exception.
"""

from __future__ import annotations

OVERLOADED = "overloaded"
"""Code of a `RequestError`: the answer would come too late, because too much else is under way."""


class PlaitError(Exception):
    """Trouble that a user can act on. `str(error)` is one line: value, limit, way out. `exit_code` is what the CLI
    returns.
    """

    exit_code = 1


class UsageError(PlaitError):
    """A command line, environment variable or configuration file that cannot be used as it is."""

    exit_code = 2


class ModelError(PlaitError):
    """A model file, tokenizer or template that cannot be loaded: missing, corrupt, truncated or not supported."""


class RequestError(PlaitError):
    """A request that cannot be served; hurts nobody else. Becomes HTTP 4xx or an error line of a batch.

    `param` is the dotted path of the offending field (`messages.0.content`), `code` a stable machine-readable word,
    `retry_after_s` when the same may succeed, where that is known.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.kind = kind
        self.retry_after_s = retry_after_s


class EngineStopped(PlaitError):
    """The engine's thread has ended, by a close or by a fault of ours; nothing more will be answered."""


class InvariantError(Exception):
    """A broken promise inside Plait. Never caught to carry on: the state can no longer be trusted."""
