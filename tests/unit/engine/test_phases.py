"""Phases: what the engine tells of its own work, and that telling changes nothing."""

from __future__ import annotations

from itertools import groupby

from tests.unit.engine.kit import Stage, ask

from plait.core.events import Submitted
from plait.core.plan_hash import plan_hash
from plait.core.profiling import Phase

TURN = [
    Phase.ARRIVALS,
    Phase.COLLECT,
    Phase.COMMIT,
    Phase.ANSWER,
    Phase.PLAN,
    Phase.SUBMIT,
    Phase.PLAN,
    Phase.FLUSH,
    Phase.WAIT,
]


def played(told: list[Phase] | None) -> Stage:
    stage = Stage() if told is None else Stage(phases=told.append)
    stage.arrive(ask("a", max_tokens=5), ask("b", "abcdef", max_tokens=3))
    stage.arrive(ask("c", max_tokens=2), at_s=4.0)
    stage.run()
    return stage


def test_a_turn_goes_through_its_phases_in_order() -> None:
    told: list[Phase] = []
    stage = played(told)
    turns = [list(turn) for is_end, turn in groupby(told, lambda phase: phase is Phase.ARRIVALS) if not is_end]
    assert len(turns) == told.count(Phase.ARRIVALS)
    for turn in turns:
        assert turn[0] is Phase.COLLECT
        assert turn[-3:] == [Phase.PLAN, Phase.FLUSH, Phase.WAIT]
    assert TURN[1:] in turns
    assert told.count(Phase.SUBMIT) == len(stage.of(Submitted))


def test_who_listens_changes_no_plan() -> None:
    told: list[Phase] = []
    plans = [plan_hash(event.plan for event in played(sink).of(Submitted)) for sink in (None, told)]
    assert plans[0] == plans[1]
