"""The error body has all four keys, whatever is known."""

from __future__ import annotations

from plait.api.errors import engine_failure, error_body
from plait.core.errors import RequestError


def test_all_four_keys_are_there() -> None:
    assert error_body(RequestError("n is 0; it must lie in [1, 128]", param="n")) == {
        "error": {
            "message": "n is 0; it must lie in [1, 128]",
            "type": "invalid_request_error",
            "param": "n",
            "code": None,
        }
    }


def test_a_failure_of_the_engine_is_ours() -> None:
    error = engine_failure("step 7 failed")
    assert error.status == 500
    assert error_body(error)["error"] == {
        "message": "the engine could not compute this answer: step 7 failed",
        "type": "internal_error",
        "param": None,
        "code": "engine_failure",
    }
