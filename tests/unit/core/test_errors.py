"""Errors: what the caller can act on, what the engine says of its end, and what is never caught."""

from __future__ import annotations

import pytest

from plait.core.errors import EngineStopped, InvariantError, ModelError, PlaitError, RequestError, UsageError


@pytest.mark.parametrize(("kind", "exit_code"), [(PlaitError, 1), (ModelError, 1), (EngineStopped, 1), (UsageError, 2)])
def test_expected_trouble_has_an_exit_code(kind: type[PlaitError], exit_code: int) -> None:
    error = kind("value, limit, way out")
    assert (str(error), error.exit_code) == ("value, limit, way out", exit_code)
    assert isinstance(error, PlaitError)


def test_a_refusal_is_a_client_error_unless_it_says_otherwise() -> None:
    plain = RequestError("too long")
    assert (plain.status, plain.kind, plain.param, plain.code) == (400, "invalid_request_error", None, None)
    full = RequestError("later", param="n", code="closing", status=503, kind="server_error")
    assert (str(full), full.message) == ("later", "later")
    assert (full.status, full.kind, full.param, full.code) == (503, "server_error", "n", "closing")


def test_a_broken_invariant_is_not_trouble_to_be_shown_in_a_line() -> None:
    assert not issubclass(InvariantError, PlaitError)
