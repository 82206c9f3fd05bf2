"""Steps of prompts and decode together that are planned while the one before runs, on a stage where a token takes a
second whatever the share.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.unit.engine.kit import OneSecondPerToken, Stage, ask

from plait.assembly import Policy
from plait.core.events import Collected, Emitted, Submitted
from plait.core.request import ServiceClass, Slo
from plait.sched.multiplex.mechanisms import Mechanism
from plait.sched.multiplex.presets import PLAIT, Preset, timed_chunks
from plait.sched.multiplex.scheduler import Observer, unobserved
from plait.sched.multiplex.situation import Choice, Form, Situation

ONE_BY_ONE = PLAIT.without([Mechanism.LANES, Mechanism.SLICES])
GAP_S = 8.0


def stage(
    preset: Preset = ONE_BY_ONE,
    *,
    ahead: bool = True,
    has_lanes: bool = True,
    num_blocks: int = 64,
    margin_s: float | None = None,
    observe: Observer = unobserved,
) -> Stage:
    policy = Policy(
        preset,
        OneSecondPerToken(),
        num_spans=4,
        has_lanes=has_lanes,
        observe=observe,
        runs_ahead=ahead,
        margin_s=margin_s,
    )
    return Stage(
        num_blocks=num_blocks,
        max_step_tokens=40,
        max_rows=4,
        max_model_tokens=64,
        queue_depth=2 if ahead else 1,
        slos={ServiceClass.ONLINE: Slo(itl_s=GAP_S)},
        policy=policy,
        share_units=4,
    )


def played(on: Stage) -> Stage:
    on.arrive(ask("stream", "abc", max_tokens=30), ask("other", "xyz", max_tokens=24))
    on.arrive(ask("long", "klmnopqr" * 5, max_tokens=3), at_s=9.0)
    on.arrive(ask("short", "qqqqqqqqq", max_tokens=1), at_s=20.0)
    on.run()
    on.assert_memory_is_empty()
    return on


def gaps(on: Stage) -> list[float]:
    said: dict[int, list[float]] = {}
    for event in on.of(Emitted):
        said.setdefault(int(event.seq), []).append(event.at_s)
    return [later - earlier for times in said.values() for earlier, later in pairwise(times)]


PRESETS = [ONE_BY_ONE, timed_chunks(6.0)]


@pytest.mark.parametrize("has_lanes", [True, False], ids=["lanes", "fused"])
@pytest.mark.parametrize("preset", PRESETS, ids=lambda one: one.name)
def test_the_next_step_is_there_when_one_ends_and_no_further(preset: Preset, has_lanes: bool) -> None:
    """The device never waits between the first step and the last but for the moment at which both streams begin."""
    on = played(stage(preset, has_lanes=has_lanes))
    results = [event.result for event in on.of(Collected)]
    rests = [later.start_s - earlier.end_s for earlier, later in pairwise(results)]
    assert max(rests) <= 1e-6
    at_once = 0
    for event in on.events:
        at_once += isinstance(event, Submitted) - isinstance(event, Collected)
        assert 0 <= at_once <= 2
    prompts = [event for event in on.of(Submitted) if any(chunk.num_tokens > 1 for chunk in event.plan.chunks)]
    ends = {event.result.step: event.at_s for event in on.of(Collected)}
    ahead = [one for one in prompts if one.plan.step and ends[type(one.plan.step)(one.plan.step - 1)] > one.at_s]
    assert len(ahead) > len(prompts) // 2


@pytest.mark.parametrize("preset", PRESETS, ids=lambda one: one.name)
def test_answers_are_those_of_steps_one_by_one_and_gaps_keep_to_their_bound(preset: Preset) -> None:
    ahead, serial = played(stage(preset)), played(stage(preset, ahead=False))
    for name in ("stream", "other", "long", "short"):
        assert ahead.answers.tokens(name) == serial.answers.tokens(name)
    assert max(gaps(ahead)) <= GAP_S + 1e-6
    assert max(gaps(serial)) <= GAP_S + 1e-6


def test_a_step_behind_another_is_decided_as_if_that_had_ended() -> None:
    seen: list[tuple[Situation, Choice]] = []
    on = played(stage(observe=lambda situation, choice: seen.append((situation, choice))))
    ends = {round(event.result.end_s, 6) for event in on.of(Collected)}
    fused = [(situation, choice) for situation, choice in seen if choice.form is Form.FUSED and situation.decoding]
    assert len(fused) > 5
    for situation, choice in fused:
        assert round(situation.now_s, 6) in ends
        assert not situation.is_stepping
        # Everybody has just said something, and so the whole gap is there.
        assert [one.last_s for one in situation.decoding] == [pytest.approx(situation.now_s)] * len(situation.decoding)
        assert choice.chunk_tokens + len(situation.decoding) <= GAP_S


def test_who_finds_no_memory_is_not_passed_over_step_after_step() -> None:
    """Three answers outgrow the memory: somebody has to leave, whom a step always names while one is behind another."""
    on = stage(num_blocks=17)
    for name in "abc":
        on.arrive(ask(name, name * 18, max_tokens=40))
    on.run()
    assert all(len(on.answers.tokens(name)) == 40 for name in "abc")
    assert max(gaps(on)) < 60.0
    on.assert_memory_is_empty()


def test_margins_are_learned_from_steps_that_nobody_waited_to_plan() -> None:
    """The device keeps to its prices: an end comes when it was foreseen, so margins shrink with every step."""
    margins: list[float] = []

    def observe(situation: Situation, choice: Choice) -> None:
        if situation.paces is not None and choice.form is Form.FUSED:
            margins.append(situation.paces[Form.FUSED].margin_s)

    played(stage(margin_s=2.0, observe=observe))
    assert len(margins) > 8
    assert margins == sorted(margins, reverse=True)
    assert margins[-1] < margins[0] == 2.0
