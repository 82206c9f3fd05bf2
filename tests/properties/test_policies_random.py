"""Random requests under random policies, with lanes and without: nothing leaks, nobody is forgotten, nothing stalls.

As `test_engine_random`, but prompts and decode share the device as some preset says, perhaps without some mechanism.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.test_engine_random import (
    Visit,
    check_answers,
    check_events,
    check_nothing_is_left,
    visited,
)
from tests.unit.engine.kit import OneSecondPerToken, Stage, failing, in_bursts, unchanged

from plait.assembly import Policy
from plait.core.decision import Assign, Resume, Suspend
from plait.core.events import Applied, Preempted, Submitted
from plait.core.request import ServiceClass, Slo
from plait.sched.multiplex.presets import (
    BULLET,
    MUXWISE,
    PLAIT,
    TEMPORAL,
    UNPARTITIONED,
    XYSERVE,
    mechanisms_of,
    static_split,
    timed_chunks,
)

PRESETS = (BULLET, MUXWISE, PLAIT, TEMPORAL, XYSERVE, static_split(2), timed_chunks(5.0), UNPARTITIONED)


def make_slo(rng: random.Random) -> Slo:
    return Slo(
        ttft_s=rng.choice((None, 5.0, 40.0)),
        ttft_s_per_token=rng.choice((None, 2.0)),
        itl_s=rng.choice((None, 3.0, 12.0)),
        tpot_s=rng.choice((None, 3.0, 12.0)),
    )


def make_stage(rng: random.Random) -> Stage:
    preset = rng.choice(PRESETS)
    known = mechanisms_of(preset.name)
    preset = preset.without(rng.sample(known, rng.randint(0, min(3, len(known)))))
    runs_ahead = rng.random() < 0.5
    # Who gives several tokens for one is not planned ahead of.
    edits = (unchanged, unchanged, failing(*rng.sample(range(20), 4)), *(() if runs_ahead else (in_bursts(3),)))
    return Stage(
        num_blocks=rng.choice((8, 12, 40)),
        max_step_tokens=rng.choice((3, 8, 16)),
        max_rows=rng.choice((1, 2, 4)),
        max_model_tokens=rng.choice((20, 32)),
        enable_prefix=rng.random() < 0.8,
        edit=rng.choice(edits),
        queue_depth=2 if runs_ahead else 1,
        slos={one: make_slo(rng) for one in ServiceClass},
        policy=Policy(
            preset,
            OneSecondPerToken(),
            num_spans=rng.choice((1, 4)),
            has_lanes=rng.random() < 0.9,
            runs_ahead=runs_ahead,
            margin_s=rng.choice((None, 0.5)),
        ),
        share_units=4,
        plans_first=rng.random() < 0.5,
    )


def play(seed: int, num_visits: int) -> tuple[Stage, list[Visit]]:
    rng = random.Random(seed)
    stage = make_stage(rng)
    return stage, visited(stage, rng, num_visits)


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), num_visits=st.integers(1, 14))
def test_everyone_is_answered_once_and_nothing_leaks(seed: int, num_visits: int) -> None:
    stage, visits = play(seed, num_visits)
    for visit in visits:
        check_answers(stage, visit.request)
    check_events(stage)
    check_nothing_is_left(stage, visits)


def test_the_dice_get_everywhere() -> None:
    seen: Counter[str] = Counter()
    for seed in range(120):
        stage, _ = play(seed, 14)
        decisions = [event.decision for event in stage.of(Applied)]
        for kind in (Assign, Suspend, Resume):
            seen[kind.__name__] += sum(isinstance(decision, kind) for decision in decisions)
        seen["preempted"] += len(stage.of(Preempted))
        seen.update(f"lane {event.plan.lane}" for event in stage.of(Submitted))
    assert min(seen.values()) >= 5
    assert seen.keys() == {"Assign", "Suspend", "Resume", "preempted", "lane 0", "lane 1", "lane 2"}


def test_equal_dice_give_equal_events() -> None:
    for seed in range(8):
        assert play(seed, 14)[0].events == play(seed, 14)[0].events
