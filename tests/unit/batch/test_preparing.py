"""From a line to a call: what a batch adds, and that the same line always becomes the same call."""

from __future__ import annotations

import json

import pytest
from tests.unit.api.byte_text import MODEL, byte_text
from tests.unit.batch.jobs import chat_line, completion_line

from plait.api.bodies import JsonObject, JsonValue
from plait.api.calls import Call
from plait.batch.lines import BatchLine, parse_line
from plait.batch.preparing import Preparer, line_seed
from plait.batch.source import RawLine
from plait.core.errors import RequestError
from plait.core.request import ServiceClass


def prepare(line: JsonObject, *, seed: int = 0, sha256: str = "aa", names: tuple[str, ...] = ()) -> Call:
    parsed = parse_line(RawLine(7, json.dumps(line).encode()))
    assert isinstance(parsed, BatchLine)
    return Preparer(byte_text(), MODEL, names, sha256, seed).prepare(parsed)


def fault_of(**body: JsonValue) -> RequestError:
    with pytest.raises(RequestError) as caught:
        prepare(chat_line("a", "hi", **body))
    return caught.value


def seed_of(line: JsonObject, *, seed: int = 0) -> int | None:
    return prepare(line, seed=seed).requests[0].sampling.seed


def test_every_request_of_a_batch_can_wait() -> None:
    line = completion_line("a", ["x", "y"], service_tier="priority")
    assert [request.service_class for request in prepare(line).requests] == [ServiceClass.BATCH] * 2


def test_the_seed_of_a_line_without_one_depends_on_job_seed_and_custom_id_alone() -> None:
    assert seed_of(chat_line("a", "hi")) == seed_of(chat_line("a", "something else")) == line_seed(0, "a", 0)
    assert seed_of(chat_line("a", "hi")) != seed_of(chat_line("b", "hi"))
    assert seed_of(chat_line("a", "hi")) != seed_of(chat_line("a", "hi"), seed=1)


def test_a_seed_in_the_line_is_kept() -> None:
    assert seed_of(chat_line("a", "hi", seed=-5)) == -5
    assert [r.sampling.seed for r in prepare(completion_line("a", ["x", "y"], seed=3)).requests] == [3, 3]


def test_equal_prompts_of_one_line_draw_differently() -> None:
    seeds = [request.sampling.seed for request in prepare(completion_line("a", ["x", "x"])).requests]
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("custom_id", ["", "a", "x" * 10_000, "\U0001f336"])
@pytest.mark.parametrize("seed", [0, 2**63 - 1, -1])
def test_every_made_seed_is_one_that_a_request_may_have(seed: int, custom_id: str) -> None:
    assert -(2**63) <= line_seed(seed, custom_id, 0) < 2**63


def test_ids_are_the_same_in_every_run_and_differ_between_inputs() -> None:
    line = chat_line("a", "hi")
    assert prepare(line).id == prepare(line).id
    assert prepare(line).id != prepare(line, sha256="bb").id
    assert prepare(line).id.startswith("chatcmpl-")
    assert prepare(completion_line("a", "x")).id.startswith("cmpl-")


def test_streaming_is_refused() -> None:
    assert fault_of(stream=True).param == "stream"
    prepare(chat_line("a", "hi", stream=False, stream_options={"include_usage": True}))


def test_an_unknown_model_is_refused_and_a_further_name_is_not() -> None:
    fault = fault_of(model="gpt")
    assert (fault.status, fault.code) == (404, "model_not_found")
    assert prepare(chat_line("a", "hi", model="alias"), names=("alias",)).model == "alias"
    assert prepare(chat_line("a", "hi", model=None)).model == MODEL.name


def test_a_prompt_that_is_too_long_is_refused_before_it_reaches_the_engine() -> None:
    with pytest.raises(RequestError) as caught:
        prepare(chat_line("a", "x" * 100))
    assert caught.value.code == "context_length_exceeded"
