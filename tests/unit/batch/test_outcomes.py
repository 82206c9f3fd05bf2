"""Output lines as OpenAI's batch API writes them."""

from __future__ import annotations

import json

from plait.api.answers import Usage
from plait.batch.lines import LineFault
from plait.batch.outcomes import answered, line_key, never_run, refused
from plait.core.errors import RequestError


def test_an_answer_is_a_response_with_status_200() -> None:
    outcome = answered("k1", 3, "a", {"text": "ü\n"}, Usage(5, 2, 1))
    assert (outcome.number, outcome.custom_id, outcome.failed, outcome.usage) == (3, "a", False, Usage(5, 2, 1))
    assert "\n" not in outcome.output
    assert json.loads(outcome.output) == {
        "id": "batch_req_k1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "req_k1", "body": {"text": "ü\n"}},
        "error": None,
    }


def test_a_refusal_is_a_response_with_its_status_and_error_body() -> None:
    outcome = refused("k1", 3, "a", RequestError("n is 0", param="n", code="bad", status=404))
    line = json.loads(outcome.output)
    assert outcome.failed
    assert line["error"] is None
    assert line["response"]["status_code"] == 404
    assert line["response"]["body"]["error"] == {
        "message": "n is 0",
        "type": "invalid_request_error",
        "param": "n",
        "code": "bad",
    }


def test_a_line_that_was_no_request_is_an_error_with_its_line_number() -> None:
    outcome = never_run("k1", LineFault(3, None, "invalid_json_line", "not valid JSON"))
    assert outcome.failed
    assert json.loads(outcome.output) == {
        "id": "batch_req_k1",
        "custom_id": None,
        "response": None,
        "error": {"code": "invalid_json_line", "message": "not valid JSON", "param": None, "line": 3},
    }


def test_ids_belong_to_input_and_line() -> None:
    assert line_key("aa", 1) == line_key("aa", 1)
    assert len({line_key("aa", 1), line_key("aa", 2), line_key("bb", 1)}) == 3
