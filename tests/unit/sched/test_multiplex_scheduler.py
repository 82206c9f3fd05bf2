"""The scheduler of prompts beside decode, on a simulated A100 and on a stage: lanes, hand-overs, overtaking, rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.unit.engine.kit import OneSecondPerToken, Stage, ask
from tests.unit.sched.oracles.fused import xyserve
from tests.unit.sched.oracles.stage import ALPHA, COST, DEVICE, FORMATS, PROGRAM, play

from plait.assembly import Policy
from plait.core.decision import Assign, Resume, Suspend
from plait.core.events import Applied, Collected, Emitted, Event, Finished, Submitted
from plait.core.ids import LaneId
from plait.core.request import ServiceClass, Slo
from plait.core.step import Join, StepShape
from plait.cost.model import StepPrice
from plait.sched.multiplex.mechanisms import Mechanism
from plait.sched.multiplex.presets import BULLET, MUXWISE, PLAIT, TEMPORAL, XYSERVE, Preset, static_split
from plait.sched.multiplex.scheduler import Observer, unobserved
from plait.sched.multiplex.situation import Choice, Form, Situation
from plait.sim.arrivals import Arrival, Lengths, arrivals_of, poisson_trace
from plait.sim.cluster import ClusterSpec, simulate_cluster
from plait.sim.driver import simulate
from plait.sim.replica import ReplicaSpec, replica

D, P, OVER = LaneId(0), LaneId(1), LaneId(2)
TBT = Slo(itl_s=0.05, ttft_s_per_token=3e-3)
SPEC = ReplicaSpec(
    PROGRAM,
    FORMATS,
    DEVICE,
    cache_bytes=20 * 10**9,
    max_step_tokens=1024,
    max_rows=128,
    max_model_tokens=8192,
    alpha=ALPHA,
    slo=TBT,
)
ROWS = poisson_trace(24.0, 60, Lengths(700, 1.2, 6000), Lengths(60, 0.8, 400), seed=5)


def stage(
    preset: Preset,
    *,
    slo: Slo | None = None,
    max_rows: int = 4,
    num_spans: int = 4,
    tokens: int = 40,
    observe: Observer = unobserved,
) -> Stage:
    return Stage(
        max_step_tokens=tokens,
        max_rows=max_rows,
        queue_depth=1,
        slos={} if slo is None else {ServiceClass.ONLINE: slo},
        policy=Policy(preset, OneSecondPerToken(), num_spans=num_spans, observe=observe),
        share_units=4,
    )


def verbs(events: Sequence[Event]) -> list[str]:
    return [type(event.decision).__name__ for event in events if isinstance(event, Applied)]


def submitted(events: Sequence[Event]) -> list[tuple[float, int, list[int]]]:
    return [
        (event.at_s, int(event.plan.lane), [int(chunk.seq) for chunk in event.plan.chunks])
        for event in events
        if isinstance(event, Submitted)
    ]


@pytest.mark.parametrize("preset", [BULLET, MUXWISE, PLAIT, TEMPORAL, XYSERVE], ids=lambda one: one.name)
def test_equal_loads_give_equal_plans(preset: Preset) -> None:
    spec = ClusterSpec(replace(SPEC, preset=preset))
    first, second = (simulate_cluster(arrivals_of(ROWS, PROGRAM.vocab_size), spec).plan_hash for _ in range(2))
    assert first == second
    other = simulate_cluster(arrivals_of(ROWS, PROGRAM.vocab_size), ClusterSpec(SPEC)).plan_hash
    assert first != other


def test_prompts_and_decode_have_a_lane_each_and_a_hand_over_moves_nothing() -> None:
    events: list[Event] = []
    simulate(arrivals_of(ROWS, PROGRAM.vocab_size), replica(replace(SPEC, preset=BULLET)), events.append)
    plans = [event.plan for event in events if isinstance(event, Submitted)]
    assert {plan.lane for plan in plans} == {D, P}
    for plan in plans:
        of_one_token = [chunk.num_tokens == 1 for chunk in plan.chunks]
        assert all(of_one_token) if plan.lane == D else not any(of_one_token)
        # Nobody joins anew to decode, and nothing is copied.
        assert plan.lane == P or not any(isinstance(change, Join) for change in plan.roster)
        assert not plan.moves


def test_shares_are_disjoint_and_add_up() -> None:
    events: list[Event] = []
    simulate(arrivals_of(ROWS, PROGRAM.vocab_size), replica(replace(SPEC, preset=MUXWISE)), events.append)
    shares = [e.decision.shares for e in events if isinstance(e, Applied) and isinstance(e.decision, Assign)]
    assert len(shares) > 20
    assert all(e.decision.may_help for e in events if isinstance(e, Applied) and isinstance(e.decision, Assign))
    for one in shares:
        assert sorted(unit for units in one.values() for unit in units) == list(range(DEVICE.share_units))


def test_a_short_prompt_overtakes_a_long_one_once_and_that_goes_on() -> None:
    """A token takes a second whatever the share. The long prompt has until 200 s, so the short one may go first; the
    third may not overtake the second.
    """
    on = stage(MUXWISE, slo=Slo(ttft_s=200.0))
    on.arrive(ask("long", "a" * 40, max_tokens=1))
    on.arrive(ask("short", "bcde", max_tokens=1), at_s=10.0)
    on.arrive(ask("third", "fghi", max_tokens=1), at_s=11.0)
    on.run()
    assert submitted(on.events) == [(0.0, P, [0]), (10.0, OVER, [1]), (pytest.approx(44.0, abs=0.2), P, [2])]
    assert verbs(on.events).count("Suspend") == verbs(on.events).count("Resume") == 1
    ends = {int(event.seq): event.at_s for event in on.of(Emitted)}
    assert ends == {0: pytest.approx(44.0, abs=0.2), 1: 14.0, 2: pytest.approx(48.0, abs=0.2)}


def test_nobody_overtakes_a_prompt_without_a_target_or_one_that_would_be_late() -> None:
    for slo in (None, Slo(ttft_s=42.0)):
        on = stage(MUXWISE, slo=slo)
        on.arrive(ask("long", "a" * 40, max_tokens=1))
        on.arrive(ask("short", "bcde", max_tokens=1), at_s=10.0)
        on.run()
        assert not {"Suspend", "Resume"} & set(verbs(on.events))
        assert [lane for _, lane, _ in submitted(on.events)] == [P, P]


def test_overtaking_goes_one_level_deep() -> None:
    decisions, _ = play(MUXWISE, 30.0, TBT, count=80)
    events: list[Event] = []
    simulate(arrivals_of(ROWS, PROGRAM.vocab_size), replica(replace(SPEC, preset=MUXWISE)), events.append)
    depth = 0
    for event in events:
        if isinstance(event, Applied):
            depth += isinstance(event.decision, Suspend) - isinstance(event.decision, Resume)
            assert 0 <= depth <= 1
    assert any(now.suspended is not None for now, _ in decisions)


def test_one_row_goes_from_lane_to_lane() -> None:
    """Whoever left the last row of a lane that has nothing more to do is told by a step of another lane."""
    on = stage(BULLET, max_rows=1)
    for number in range(4):
        on.arrive(ask(f"r{number}", "abcdef", max_tokens=3))
    on.run()
    assert all(on.answers.text(f"r{number}") == "ghi" for number in range(4))
    on.assert_memory_is_empty()


def test_a_prefill_launched_whole_keeps_its_units_though_decode_has_ended() -> None:
    """Without layers the long prompt keeps half of the device after the only answer beside it has ended."""

    def end_of_the_long(preset: Preset) -> float:
        decisions, _ = play(preset, 1.0, TBT, count=1)
        assert decisions
        events: list[Event] = []
        rows = [
            Arrival(0.0, ask("short", range(64), max_tokens=40)),
            Arrival(0.1, ask("long", range(6000), max_tokens=1)),
        ]
        simulate(rows, replica(replace(SPEC, preset=preset)), events.append)
        return max(event.at_s for event in events if isinstance(event, Collected))

    half = MUXWISE.without([Mechanism.SHARES])
    assert end_of_the_long(half) < end_of_the_long(half.without([Mechanism.LAYERS]))


def test_a_prompt_that_is_too_long_for_one_step_comes_in_several_and_counts_whole() -> None:
    seen: list[tuple[int, int]] = []

    def observe(situation: Situation, choice: Choice) -> None:
        if situation.prefill is not None:
            seen.append((situation.prefill.shape.num_tokens, sum(one.num_tokens for one in situation.prefill.rest())))

    on = stage(MUXWISE, tokens=16, observe=observe)
    on.arrive(ask("long", "abcdefgh" * 5, max_tokens=2))
    on.run()
    assert set(seen) == {(16, 24), (16, 8), (8, 0)}
    assert [lane for _, lane, _ in submitted(on.events)] == [P, P, P, D]


class Erratic:
    """A device whose decode steps are slower beside prompts than expected, as much as its worst case says, now and
    then.
    """

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        price = COST.price(shape, share, beside)
        if beside and sum(chunk.start for chunk in shape.chunks) % 3 == 0:
            return replace(price, expected_s=max(price.expected_s, 0.98 * price.worst_s))
        return price


def test_the_guard_holds_what_expectations_do_not() -> None:
    """Under a tight bound, some gaps are too long where steps count as long as expected, and none with the guard."""
    slo = Slo(itl_s=0.014)
    rows = poisson_trace(16.0, 80, Lengths(700, 1.2, 6000), Lengths(60, 0.8, 400), seed=2)

    def longest_gap(preset: Preset) -> float:
        spec = replace(SPEC, preset=preset, slo=slo, device=Erratic())
        report = simulate(arrivals_of(rows, PROGRAM.vocab_size), replica(spec))
        assert report.itl_s is not None
        return report.itl_s.longest

    assert longest_gap(MUXWISE) <= 0.014
    assert longest_gap(MUXWISE.without([Mechanism.GUARD])) > 0.014


def test_a_split_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(Exception, match="leave some for prompts and for decode"):
        stage(static_split(4))


def test_xyserve_keeps_half_of_a_step_for_decode() -> None:
    """Every step of a crowded load is what the description says, prompts apart: those are first come first."""
    on = stage(XYSERVE, max_rows=16, tokens=8)
    for number in range(14):
        on.arrive(ask(f"r{number}", "abcdefghijkl"[: 3 + number % 9], max_tokens=6), at_s=float(number))
    on.run()
    last_s: dict[int, float] = {}
    said: dict[int, int] = {}
    num_full = 0
    for event in on.events:
        if isinstance(event, Emitted):
            last_s[int(event.seq)], said[int(event.seq)] = event.at_s, said.get(int(event.seq), 0) + 1
        if isinstance(event, Submitted):
            chunks = event.plan.chunks
            decoding = {seq: at_s for seq, at_s in last_s.items() if said[seq] < 6}
            rows = [int(chunk.seq) for chunk in chunks if int(chunk.seq) in decoding]
            prompts = sum(chunk.num_tokens for chunk in chunks) - len(rows)
            expected, most = xyserve(decoding, [prompts], 8, 0.5)
            assert sorted(rows) == sorted(expected)
            assert prompts == most
            num_full += len(decoding) > len(rows)
    assert num_full >= 3


@pytest.mark.parametrize("preset", [BULLET, MUXWISE, PLAIT, TEMPORAL, XYSERVE], ids=lambda one: one.name)
def test_decode_is_planned_ahead_while_nobody_has_a_prompt_and_no_further(preset: Preset) -> None:
    """The second step is there when the first ends. A prompt that comes meanwhile waits for both at most."""
    policy = Policy(preset, OneSecondPerToken(), num_spans=4, runs_ahead=True)
    on = Stage(max_step_tokens=40, max_rows=4, queue_depth=2, policy=policy, share_units=4)
    on.arrive(ask("stream", "abc", max_tokens=12))
    on.arrive(ask("prompt", "defg", max_tokens=1), at_s=6.5)
    on.run()
    steps = submitted(on.events)
    ends = {e.result.step: e.result.end_s for e in on.of(Collected)}
    begun = [(at_s, seqs, e.plan.step) for (at_s, _, seqs), e in zip(steps, on.of(Submitted), strict=True)]
    # Those of decode that are in flight when one more is planned.
    decode = [(at_s, step) for at_s, seqs, step in begun if seqs == [0]]
    before = [sum(other < step and ends[other] > at_s for _, other in decode) for at_s, step in decode]
    assert max(before) == 1
    assert sum(before) >= 6
    first = next(at_s for at_s, seqs, _ in begun if 1 in seqs)
    assert first <= 6.5 + 2.0
    alone = Stage(
        max_step_tokens=40, max_rows=4, queue_depth=1, policy=replace(policy, runs_ahead=False), share_units=4
    )
    alone.arrive(ask("stream", "abc", max_tokens=12))
    alone.run()
    assert on.answers.tokens("stream") == alone.answers.tokens("stream")


@pytest.mark.parametrize("preset", [MUXWISE, BULLET], ids=lambda one: one.name)
def test_what_was_chosen_for_a_prompt_holds_although_a_decode_step_had_been_planned_before(preset: Preset) -> None:
    """The prompt comes while one decode step runs and another one is behind it."""
    seen: list[tuple[bool, Form, Form]] = []

    def observe(situation: Situation, choice: Choice) -> None:
        seen.append((situation.is_prefilling, situation.form, choice.form))

    policy = Policy(preset, OneSecondPerToken(), num_spans=4, runs_ahead=True, observe=observe)
    on = Stage(max_step_tokens=40, max_rows=4, queue_depth=2, policy=policy, share_units=4)
    on.arrive(ask("stream", "abc", max_tokens=30))
    on.arrive(ask("prompt", "defghijklmno", max_tokens=1), at_s=6.5)
    on.run()
    begun = next(place for place, (_, _, form) in enumerate(seen) if form is Form.LANES)
    beside = [form for is_prefilling, form, _ in seen[begun + 1 :] if is_prefilling]
    assert len(beside) > 2
    assert set(beside) == {Form.LANES}


@pytest.mark.parametrize("preset", [PLAIT, MUXWISE, BULLET, TEMPORAL, XYSERVE], ids=lambda preset: preset.name)
def test_an_offline_row_goes_to_who_is_online(preset: Preset) -> None:
    played = stage(preset, slo=Slo(itl_s=100.0, ttft_s=500.0), max_rows=1)
    played.arrive(ask("job", max_tokens=60, service_class=ServiceClass.BATCH))
    played.arrive(ask("person", max_tokens=3), at_s=10.0)
    played.run()
    ends = {event.request: event.at_s for event in played.of(Finished)}
    assert ends["person"] < 30.0 < ends["job"]
    assert [event.num_preemptions for event in played.of(Finished)] == [0, 1]
    played.assert_memory_is_empty()


@pytest.mark.parametrize("preset", [PLAIT, MUXWISE, BULLET, TEMPORAL, XYSERVE], ids=lambda preset: preset.name)
@pytest.mark.parametrize("num_jobs", [1, 2])
def test_decode_is_not_planned_ahead_of_somebody_online_who_can_have_an_offline_row(
    preset: Preset, num_jobs: int
) -> None:
    """What a step in flight names cannot leave; with one always in flight nobody ever could. The second job waits, so
    that rows were short before anybody was online.
    """
    slos = {ServiceClass.ONLINE: Slo(itl_s=100.0, ttft_s=500.0)}
    policy = Policy(preset, OneSecondPerToken(), num_spans=4, runs_ahead=True)
    played = Stage(max_step_tokens=40, max_rows=1, queue_depth=2, slos=slos, policy=policy, share_units=4)
    for number in range(num_jobs):
        played.arrive(ask(f"job{number}", max_tokens=60, service_class=ServiceClass.BATCH))
    played.arrive(ask("person", max_tokens=3), at_s=10.0)
    played.run()
    ends = {event.request: event.at_s for event in played.of(Finished)}
    assert ends["person"] < 30.0 < ends["job0"]
    played.assert_memory_is_empty()
