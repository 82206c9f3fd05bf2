"""Recorded drafts: a simulation verifies guesses that come true as often as the records say, and steps become fewer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.unit.sched.oracles.stage import ALPHA, DEVICE, FORMATS, PROGRAM

from plait.core.events import Collected, Event, Submitted
from plait.core.ids import SeqId
from plait.core.request import Slo
from plait.sched.multiplex.presets import CHUNKED, MUXWISE, PLAIT, Preset
from plait.sim.arrivals import Lengths, arrivals_of, poisson_trace
from plait.sim.drafts import Record, RecordedDrafts, every_record, records
from plait.sim.driver import simulate
from plait.sim.replica import AnyTokens, ReplicaSpec, SimulatedDrafts, replica
from plait.sim.report import Report

ROWS = poisson_trace(8.0, 12, Lengths(300, 1.0, 3000), Lengths(60, 0.6, 300), seed=3)
SPEC = ReplicaSpec(
    PROGRAM,
    FORMATS,
    DEVICE,
    cache_bytes=20 * 10**9,
    max_step_tokens=1024,
    max_rows=128,
    max_model_tokens=8192,
    alpha=ALPHA,
    slo=Slo(tpot_s=0.05, ttft_s=2.0),
)


def played(preset: Preset, drafts: SimulatedDrafts | None, seed: int = 0) -> tuple[Report, Counter[str]]:
    counts: Counter[str] = Counter()

    def note(event: Event) -> None:
        if isinstance(event, Submitted):
            counts["steps"] += 1
            counts["drafts"] += sum(chunk.num_drafts for chunk in event.plan.chunks)
        elif isinstance(event, Collected):
            counts["accepted"] += sum(one.num_accepted for one in event.result.seqs)

    spec = replace(SPEC, preset=preset, drafts=drafts, seed=seed)
    return simulate(arrivals_of(ROWS, PROGRAM.vocab_size), replica(spec), note), counts


def test_the_records_that_come_with_plait_are_of_some_answers_of_every_kind() -> None:
    kinds = records()
    assert set(kinds) == {"math_reasoning", "mt_bench", "qa", "rag"}
    for answers in kinds.values():
        assert len(answers) == 12
        for one in answers:
            assert len(one.endings) == len(one.runs) > 1
            assert all(run <= 16 and (ending or not run) for ending, run in zip(one.endings, one.runs, strict=True))
    assert len(every_record()) == 48


def test_a_digit_is_a_number_up_to_32() -> None:
    assert Record.of_text("0aw", "19g") == Record((0, 10, 32), (1, 9, 16))


def test_a_replayed_guess_is_right_as_far_as_the_record_says() -> None:
    tokens = AnyTokens(1000)
    source = RecordedDrafts([Record((0, 3, 32, 5), (0, 2, 4, 0))], tokens.behind, 1000, seed=1)
    drafter, said = source.begin(), [tokens(SeqId(7), place) for place in range(40)]
    seen = []
    for size in range(10, 14):
        guess = drafter.guess(said[:size], 6)
        right = [a == b for a, b in zip(guess.tokens, said[size:], strict=False)]
        seen.append((len(guess.tokens), right.index(False) if right else 0))
        assert list(guess.levels) == sorted(guess.levels)
    assert sorted(seen) == [(0, 0), (6, 0), (6, 2), (6, 4)]


@pytest.mark.parametrize("preset", [CHUNKED, MUXWISE, PLAIT], ids=lambda one: one.name)
def test_recorded_drafts_save_steps_and_equal_seeds_equal_plans(preset: Preset) -> None:
    plain, without = played(preset, None)
    drafts = SimulatedDrafts(every_record())
    drafted, with_drafts = played(preset, drafts)
    assert without["drafts"] == 0
    assert with_drafts["accepted"] > 50
    assert with_drafts["steps"] < without["steps"]
    assert drafted.num_finished == plain.num_finished == len(ROWS)
    assert played(preset, drafts)[1] == with_drafts


@pytest.mark.parametrize("preset", [CHUNKED, PLAIT], ids=lambda one: one.name)
def test_guesses_that_are_never_right_cost_less_than_a_hundredth(preset: Preset) -> None:
    plain, _ = played(preset, None)
    wrong, counts = played(preset, SimulatedDrafts(every_record(), acceptance=0.0))
    assert counts["accepted"] == 0
    assert wrong.makespan_s < 1.01 * plain.makespan_s
