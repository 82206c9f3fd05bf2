"""Interfaces: whoever implements a protocol has every method of it, with the same parameters in the same order."""

from __future__ import annotations

import inspect

import pytest
from tests.unit.engine.kit import Answers, EditedExecutor, OneSecondPerToken, Script, Stage
from tests.unit.engine.live import HeldExecutor

from plait.core.client import EngineClient
from plait.core.clock import Clock, RealClock, SimClock, WaitSource
from plait.core.executor import Executor
from plait.core.text_stream import TextDelta, TextStream
from plait.cost.model import CostModel
from plait.cost.roofline import RooflineModel
from plait.engine.client import AsyncClient
from plait.engine.inbox import Inbox
from plait.engine.outbox import NullOutbox, Outbox
from plait.exec.native import presence
from plait.exec.reference.executor import ReferenceExecutor
from plait.exec.simulated import SimulatedExecutor
from plait.sched.chunked import ChunkedScheduler
from plait.sched.scheduler import Scheduler
from plait.sim.driver import TurnClock
from plait.text import stream

PAIRS = [
    (Clock, RealClock),
    (Clock, SimClock),
    (Clock, TurnClock),
    (Clock, Stage),
    (WaitSource, Inbox),
    (WaitSource, Script),
    (Executor, SimulatedExecutor),
    (Executor, ReferenceExecutor),
    (Executor, EditedExecutor),
    (Executor, HeldExecutor),
    (Scheduler, ChunkedScheduler),
    (CostModel, RooflineModel),
    (CostModel, OneSecondPerToken),
    (EngineClient, AsyncClient),
    (Outbox, AsyncClient),
    (Outbox, NullOutbox),
    (Outbox, Answers),
    (TextStream, stream.TextStream),
    (TextDelta, stream.TextDelta),
]


if presence.missing() is None:
    from plait.exec.native.executor import NativeExecutor

    PAIRS.append((Executor, NativeExecutor))


def members_of(protocol: type) -> list[str]:
    return [name for name in dir(protocol) if not name.startswith("_")]


@pytest.mark.parametrize(("protocol", "kind"), PAIRS, ids=lambda one: one.__name__)
def test_every_member_is_there_and_is_called_in_the_same_way(protocol: type, kind: type) -> None:
    members = members_of(protocol)
    assert members
    for name in members:
        wanted, found = getattr(protocol, name), getattr(kind, name)
        if isinstance(wanted, property):
            assert not callable(found), f"{kind.__name__}.{name} is not an attribute"
            continue
        wants = inspect.signature(wanted).parameters.values()
        has = list(inspect.signature(found).parameters.values())
        assert [(one.name, one.kind, one.default) for one in wants] == [
            (one.name, one.kind, one.default) for one in has[: len(wants)]
        ]
        assert all(one.default is not one.empty for one in has[len(wants) :]), "what comes on top may be left out"


def test_what_an_executor_waits_with_is_part_of_its_interface() -> None:
    assert set(members_of(WaitSource)) < set(members_of(Executor))
