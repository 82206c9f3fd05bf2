"""Who may begin beside those who decode, who is sent away, and what a waiting prompt keeps: preset `plait` on a stage.

A token takes a second, whatever the share, so a decode step of n rows takes n seconds.
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence
from dataclasses import replace

import pytest
from tests.unit.engine.kit import OneSecondPerToken, Stage, ask
from tests.unit.sched.oracles.stage import ALPHA, DEVICE, FORMATS, PROGRAM

from plait.assembly import Policy
from plait.core.decision import Blocked
from plait.core.events import Arrived, Emitted, Finished, Refused, Scheduled, Submitted
from plait.core.request import NO_SLO, Request, ServiceClass, Slo
from plait.core.step import StepShape
from plait.cost.model import StepPrice
from plait.sched.multiplex.mechanisms import Mechanism
from plait.sched.multiplex.presets import BULLET, MUXWISE, PLAIT, TEMPORAL, Preset
from plait.sim.arrivals import Lengths, arrivals_of, poisson_trace
from plait.sim.attainment import Attainment
from plait.sim.cluster import ClusterSpec, simulate_cluster
from plait.sim.replica import ReplicaSpec

DEVICE_SPEC = ReplicaSpec(
    PROGRAM,
    FORMATS,
    DEVICE,
    cache_bytes=20 * 10**9,
    max_step_tokens=1024,
    max_rows=128,
    max_model_tokens=8192,
    alpha=ALPHA,
    check_plans=False,
)


def stage(
    preset: Preset = PLAIT, slo: Slo = NO_SLO, *, max_rows: int = 16, num_blocks: int = 64, tokens: int = 16
) -> Stage:
    return Stage(
        num_blocks=num_blocks,
        max_step_tokens=tokens,
        max_rows=max_rows,
        queue_depth=1,
        slos={ServiceClass.ONLINE: slo},
        policy=Policy(preset, OneSecondPerToken(), num_spans=4),
        share_units=4,
    )


def wanting(request: Request, slo: Slo) -> Request:
    return replace(request, slo=slo)


def most_decoding(on: Stage) -> int:
    """Rows of the largest decode step."""
    return max(sum(chunk.num_tokens == 1 for chunk in event.plan.chunks) for event in on.of(Submitted))


def crowd(on: Stage, count: int, *, max_tokens: int = 20) -> None:
    for number in range(count):
        on.arrive(ask(f"r{number}", f"{number:02}x", max_tokens=max_tokens), at_s=0.5 * number)
    on.run()


# Admission by time


@pytest.mark.parametrize("slo", [Slo(itl_s=4.0), Slo(tpot_s=4.0), Slo(itl_s=9.0, tpot_s=4.0)], ids=str)
def test_no_more_decode_at_once_than_a_step_of_all_has_time_for(slo: Slo) -> None:
    """A step of four takes the 4 s that are promised, one of five takes longer."""
    on = stage(slo=slo)
    crowd(on, 8)
    assert most_decoding(on) == 4
    assert all(event.num_output == 20 for event in on.of(Finished))
    without = stage(PLAIT.without([Mechanism.ADMISSION]), slo)
    crowd(without, 8)
    assert most_decoding(without) > 4


def test_who_finds_no_time_waits_without_memory_and_it_is_said_what_is_short() -> None:
    on = stage(slo=Slo(itl_s=2.0))
    on.arrive(*(ask(f"r{number}", f"{number:02}x", max_tokens=20) for number in range(3)))
    while on.scheduler.num_running < 2:
        on.tick()
    on.tick(8)
    assert (on.scheduler.num_running, on.scheduler.num_waiting) == (2, 1)
    assert on.scheduler.blocked is Blocked.BY_TIME
    assert [int(event.seq) for event in on.of(Scheduled)] == [0, 1]
    on.run()
    assert len(on.of(Finished)) == 3


def test_the_tightest_promise_counts_for_everybody_and_a_newcomers_own_too() -> None:
    patient, hasty = Slo(itl_s=50.0), Slo(itl_s=2.0)
    on = stage()
    on.arrive(*(wanting(ask(f"p{n}", f"p{n}x", max_tokens=6), patient) for n in range(4)))
    on.arrive(wanting(ask("hasty", "hhx", max_tokens=6), hasty), at_s=14.0)
    on.run()
    begun = {event.seq: event.at_s for event in on.of(Scheduled)}
    arrived = {event.request: event.seq for event in on.of(Arrived)}
    left = sorted(event.at_s for event in on.of(Finished) if event.request != "hasty")
    assert begun[arrived["hasty"]] >= left[2], "beside one other a step takes its 2 s"


def test_whoever_is_alone_begins_whatever_was_promised() -> None:
    on = stage(slo=Slo(itl_s=0.1))
    crowd(on, 3, max_tokens=3)
    assert most_decoding(on) == 1
    assert len(on.of(Finished)) == 3


def test_one_token_and_embeddings_take_no_time_of_decode() -> None:
    on = stage(slo=Slo(itl_s=1.0))
    on.arrive(ask("long", "abc", max_tokens=30))
    on.arrive(ask("one", "xyz", max_tokens=1), at_s=5.0)
    on.run()
    ends = {event.request: event.at_s for event in on.of(Finished)}
    assert ends["one"] < ends["long"]


def test_without_targets_rows_alone_are_the_limit() -> None:
    on = stage(max_rows=6)
    crowd(on, 8)
    assert most_decoding(on) == 6
    assert not on.of(Refused)


# Refusals


def test_who_would_be_late_is_told_when_to_come_back() -> None:
    """Two prompts of 16 s go first, so a third would have its token after 48 s: 8 s late."""
    on = stage(slo=Slo(ttft_s=40.0))
    for name in "abc":
        on.arrive(ask(name, name * 16, max_tokens=1))
    on.run()
    assert [event.request for event in on.of(Refused)] == ["c"]
    refusal = on.answers.refusal("c")
    assert (refusal.status, refusal.kind, refusal.code) == (429, "rate_limit_error", "overloaded")
    assert refusal.retry_after_s == pytest.approx(8.0)
    assert refusal.message.startswith(
        "too much is under way: the first token would come in 48 s and is wanted within 40 s"
    )
    assert "try again in 8 s" in refusal.message
    assert [int(event.seq) for event in on.of(Emitted)] == [0, 1]


def test_who_comes_back_then_is_in_time() -> None:
    on = stage(slo=Slo(ttft_s=40.0))
    for name in "abc":
        on.arrive(ask(name, name * 16, max_tokens=1))
    on.arrive(ask("again", "c" * 16, max_tokens=1), at_s=8.0)
    on.run()
    assert [event.request for event in on.of(Refused)] == ["c"]
    (arrived,) = [event for event in on.of(Arrived) if event.request == "again"]
    (first,) = [event.at_s for event in on.of(Emitted) if event.seq == arrived.seq]
    assert first <= 48.0


def test_a_short_prompt_goes_first_and_is_not_sent_away() -> None:
    on = stage(slo=Slo(ttft_s=40.0))
    for name in "ab":
        on.arrive(ask(name, name * 16, max_tokens=1))
    on.arrive(ask("short", "c", max_tokens=1))
    on.run()
    assert not on.of(Refused)


def test_decode_slows_the_prompts_that_are_foreseen() -> None:
    """Fused steps of 24 s hold eight rows and sixteen prompt tokens: the prompt takes 48 s instead of 32."""
    fused = PLAIT.without([Mechanism.LANES, Mechanism.SLICES])

    def refused(gap_s: float) -> list[str]:
        on = stage(fused, Slo(itl_s=gap_s, ttft_s=40.0), tokens=64)
        on.arrive(*(ask(f"r{n}", f"{n}x", max_tokens=40) for n in range(8)))
        on.arrive(ask("late", "y" * 32, max_tokens=1), at_s=100.0)
        on.run()
        return [str(event.request) for event in on.of(Refused)]

    assert refused(24.0) == ["late"]
    assert refused(200.0) == []


class Slower:
    """Steps take three times as long as they are priced at."""

    def price(self, shape: StepShape, share: int, beside: AnySequence[StepShape] = ()) -> StepPrice:
        price = OneSecondPerToken().price(shape, share, beside)
        return replace(price, expected_s=3 * price.expected_s, worst_s=3 * price.worst_s)


@pytest.mark.parametrize("margin_s", [None, 0.5], ids=["by price", "as it goes"])
def test_waits_are_foretold_as_long_as_steps_take_now(margin_s: float | None) -> None:
    """Two prompts of 16 tokens take 96 s of this device, and by their prices 32 s. One alone takes 48, so that it helps
    to come back.
    """
    on = Stage(
        max_step_tokens=16,
        max_rows=16,
        queue_depth=1,
        slos={ServiceClass.ONLINE: Slo(ttft_s=60.0)},
        policy=Policy(PLAIT, OneSecondPerToken(), num_spans=4, margin_s=margin_s),
        share_units=4,
        cost=Slower(),
    )
    on.arrive(ask("known", "k" * 16, max_tokens=1))
    on.arrive(ask("first", "f" * 16, max_tokens=1), ask("second", "s" * 16, max_tokens=1), at_s=60.0)
    on.run()
    assert [event.request for event in on.of(Refused)] == ([] if margin_s is None else ["second"])
    if margin_s is not None:
        said = on.answers.refusal("second").message
        found = float(said.split("would come in ")[1].split(" s")[0])
        assert found == pytest.approx(96.0, rel=0.1)


def test_on_a_machine_that_has_become_too_slow_nobody_is_sent_away_for_ever() -> None:
    on = Stage(
        max_step_tokens=16,
        max_rows=16,
        queue_depth=1,
        slos={ServiceClass.ONLINE: Slo(ttft_s=20.0)},
        policy=Policy(PLAIT, OneSecondPerToken(), num_spans=4, margin_s=0.5),
        share_units=4,
        cost=Slower(),
    )
    for number in range(3):
        on.arrive(ask(f"r{number}", "k" * 16, max_tokens=1), at_s=60.0 * number)
    on.run()
    assert not on.of(Refused)


def test_places_that_are_short_are_waited_for() -> None:
    """Two rows, of which each is taken for some 20 s: a third comes in time, a sixth does not."""
    on = stage(slo=Slo(ttft_s=60.0), max_rows=2)
    for number in range(12):
        on.arrive(ask(f"r{number}", f"{number:02}", max_tokens=10), at_s=float(number))
    on.arrive(ask("late", "zz", max_tokens=10), at_s=40.0)
    on.run()
    assert [event.request for event in on.of(Refused)] == ["late"]
    assert all(event.at_s < 100.0 for event in on.of(Refused))


def test_before_anybody_has_ended_a_stay_is_as_long_as_those_are_there_who_run() -> None:
    """One row, taken for 30 s already: who comes then cannot foresee a token within 20 s."""
    on = stage(slo=Slo(ttft_s=20.0), max_rows=1)
    on.arrive(ask("first", "abc", max_tokens=60))
    on.arrive(ask("early", "xyz", max_tokens=1), at_s=4.0)
    on.arrive(ask("late", "xyz", max_tokens=1), at_s=30.0)
    on.run()
    assert [event.request for event in on.of(Refused)] == ["late"]


@pytest.mark.parametrize(
    "request_",
    [
        wanting(ask("x", "c" * 16, max_tokens=1), Slo(itl_s=4.0)),
        wanting(ask("x", "c" * 16, max_tokens=1), Slo(ttft_s=10.0)),
        replace(wanting(ask("x", "c" * 16, max_tokens=1), Slo(ttft_s=40.0)), service_class=ServiceClass.BATCH),
    ],
    ids=["no target for its first token", "could not meet it alone either", "of a batch"],
)
def test_nobody_is_sent_away_for_whom_that_is_no_use(request_: Request) -> None:
    on = stage()
    for name in "ab":
        on.arrive(ask(name, name * 16, max_tokens=1))
    on.arrive(request_)
    on.run()
    assert not on.of(Refused)
    assert len(on.of(Finished)) == 3


def test_all_choices_of_a_request_are_sent_away_together() -> None:
    on = stage(slo=Slo(ttft_s=40.0))
    for name in "ab":
        on.arrive(ask(name, name * 16, max_tokens=1))
    on.arrive(ask("c", "c" * 16, max_tokens=1, n=3))
    on.run()
    assert [event.request for event in on.of(Refused)] == ["c"]
    assert on.answers.refusal("c").status == 429
    on.assert_memory_is_empty()


@pytest.mark.parametrize(
    "preset", [BULLET, MUXWISE, TEMPORAL, PLAIT.without([Mechanism.REFUSAL])], ids=lambda one: one.name
)
def test_published_policies_send_nobody_away(preset: Preset) -> None:
    on = stage(preset, slo=Slo(ttft_s=20.0))
    for name in "abc":
        on.arrive(ask(name, name * 16, max_tokens=1))
    on.run()
    assert not on.of(Refused)


# Leases


def waits_for_its_prefix(preset: Preset, since_s: float) -> int:
    """Cached tokens that a prompt finds when its turn comes. Of twelve blocks its prefix has one, a younger one that
    nobody wants has two, and who runs meanwhile takes ten, the last one after a minute.
    """
    on = stage(preset, max_rows=1, num_blocks=12)
    on.arrive(ask("before", "abcde", max_tokens=1))
    on.arrive(ask("other", "zyxwvutsr", max_tokens=1), at_s=10.0)
    on.arrive(ask("long", "k" * 12, max_tokens=29), at_s=30.0)
    on.arrive(ask("again", "abcdef", max_tokens=1), at_s=since_s)
    on.run()
    return on.answers.last("again").num_cached


def test_what_a_waiting_prompt_will_want_is_evicted_last() -> None:
    assert waits_for_its_prefix(PLAIT, since_s=60.0) == 4
    assert waits_for_its_prefix(PLAIT.without([Mechanism.LEASES]), since_s=60.0) == 0


def test_who_waits_too_long_loses_his_lease() -> None:
    assert waits_for_its_prefix(PLAIT, since_s=35.0) == 0


# What it is worth


def test_beyond_what_a_device_can_do_more_requests_meet_their_targets() -> None:
    """A burst of twice what a simulated A100 can do under these targets."""
    slo = Slo(ttft_s=0.5, tpot_s=0.02)
    rows = poisson_trace(80.0, 240, Lengths(700, 1.2, 6000), Lengths(120, 0.8, 800), seed=1)

    def goodput(preset: Preset) -> tuple[float, int]:
        attainment = Attainment(slo)
        spec = ClusterSpec(replace(DEVICE_SPEC, preset=preset, slo=slo), macro_steps=False)
        report = simulate_cluster(arrivals_of(rows, PROGRAM.vocab_size), spec, outcomes=attainment).whole
        assert report.num_refused == report.num_overloaded
        assert report.num_finished + report.num_refused == 240
        return attainment.per_s(report), report.num_refused

    with_refusals, num_refused = goodput(PLAIT)
    without, nobody = goodput(PLAIT.without([Mechanism.REFUSAL]))
    assert (num_refused > 20, nobody) == (True, 0)
    assert with_refusals > 1.15 * without
