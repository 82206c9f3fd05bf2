"""Events: every kind says when, readers can tell them apart, and the union names all of them."""

from __future__ import annotations

import typing
from dataclasses import fields, is_dataclass

from plait.core import events
from plait.core.events import Arrived, Event, Finished, Refused, Submitted
from plait.core.ids import LaneId, RequestId, SeqId, StepId
from plait.core.request import FinishReason, ServiceClass
from plait.core.step import StepPlan


def kinds() -> list[type]:
    defined = [found for found in vars(events).values() if isinstance(found, type)]
    values = [kind for kind in defined if is_dataclass(kind) or issubclass(kind, tuple)]
    return [kind for kind in values if kind.__module__ == events.__name__]


def test_the_stream_is_typed_and_complete() -> None:
    assert set(typing.get_args(Event)) == set(kinds())


def test_every_event_begins_with_its_time() -> None:
    for kind in kinds():
        name = kind._fields[0] if issubclass(kind, tuple) else fields(kind)[0].name
        assert (name, typing.get_type_hints(kind)["at_s"]) == ("at_s", float)


def test_a_reader_sorts_events_by_their_kind() -> None:
    def describe(event: Event) -> str:
        match event:
            case Arrived(num_prompt=count):
                return f"{count} tokens asked"
            case Finished(reason=reason, num_output=count):
                return f"{count} tokens said, {reason}"
            case Refused(code=code):
                return code
            case _:
                return "something else"

    request, seq = RequestId("r"), SeqId(0)
    stream: list[Event] = [
        Arrived(0.0, request, seq, ServiceClass.ONLINE, 5),
        Submitted(0.0, StepPlan(StepId(0), LaneId(0), (), (), (), ()), 0, 1),
        Finished(2.0, request, seq, FinishReason.LENGTH, 5, 0, 3, 0, 0.0, 0.0, 1.0),
        Refused(3.0, RequestId("s"), "too_long", "too long"),
    ]
    assert [describe(event) for event in stream] == [
        "5 tokens asked",
        "something else",
        "3 tokens said, length",
        "too_long",
    ]
