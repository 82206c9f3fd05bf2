"""The soak of a server and the crash script: short ones find nothing, and what should be found is."""

from __future__ import annotations

import json
import math

import pytest
from tests.soak.crash import crash, fill
from tests.soak.server import Delays, soak
from tests.soak.server_questions import streamed_answer, whole_answer


@pytest.mark.slow
def test_a_short_soak_finds_nothing_and_compares_much() -> None:
    outcome = soak(minutes=0.2, streams=16, seed=2, model=None)
    assert outcome.found.differences == []
    assert not any(outcome.left.values())
    assert all(outcome.found.counts[what] > 5 for what in ("streams", "whole answers", "refused", "left at once"))


@pytest.mark.slow
def test_a_batch_outlives_kills_and_a_full_disk() -> None:
    assert crash(kills=2, lines=100, seed=3).faults == []
    assert fill(lines=200, limit_bytes=100_000).faults == []


def test_a_stream_is_compared_to_the_last_token_and_must_end() -> None:
    choice = {"index": 0, "text": "ab", "finish_reason": "stop", "logprobs": {"tokens": ["a", "b"]}}
    whole = whole_answer(json.dumps({"choices": [choice]}).encode())
    pieces = [
        {"index": 0, "text": "a", "finish_reason": None, "logprobs": {"tokens": ["a"]}},
        {"index": 0, "text": "b", "finish_reason": "stop", "logprobs": {"tokens": ["b"]}},
    ]
    events = "".join(f"data: {json.dumps({'choices': [piece]})}\n\n" for piece in pieces)
    assert streamed_answer(f"{events}data: [DONE]\n\n".encode()) == whole
    other = events.replace('"tokens": ["b"]', '"tokens": ["c"]')
    assert streamed_answer(f"{other}data: [DONE]\n\n".encode()) != whole
    with pytest.raises(ValueError, match="ends in"):
        streamed_answer(events.encode())


def test_delays_are_those_of_the_load_alone_and_bounded_from_above() -> None:
    before = Delays(((0.001, 90.0), (0.05, 100.0), (math.inf, 101.0)))
    after = Delays(((0.001, 180.0), (0.05, 198.0), (math.inf, 201.0)))
    late = after.since(before)
    assert late.buckets == ((0.001, 90.0), (0.05, 98.0), (math.inf, 100.0))
    assert (late.at_most_s(0.5), late.at_most_s(0.98), late.at_most_s(0.99)) == (0.001, 0.05, math.inf)
    assert late.json_object()["p99_ms"] == "more"
