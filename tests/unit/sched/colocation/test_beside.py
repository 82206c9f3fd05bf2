"""Offline rows beside online ones: how many, when, and who gives way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.unit.kv.kit import make_kv
from tests.unit.sched.kit import Stage, chunks

from plait.core.ids import LaneId, SeqId, StepId
from plait.core.request import SeqState, ServiceClass, Slo
from plait.core.step import (
    Chunk,
    Drafts,
    OutputKind,
    Outputs,
    SeqResult,
    SeqStatus,
    StepPlan,
    StepResult,
    StepShape,
    StepStatus,
)
from plait.cost.model import Bound, StepPrice
from plait.sched.colocation.policy import Colocation, ColocationConfig
from plait.sched.lives import Lives, LivesConfig
from plait.sched.waiting import OFTEN

BATCH = ServiceClass.BATCH
BASE_S, TOKEN_S = 0.008, 0.001


class Prices:
    """A step costs 8 ms and each token 1 ms; at worst half as much again."""

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        seconds = BASE_S + TOKEN_S * shape.num_tokens
        return StepPrice(seconds, 1.5 * seconds, Bound.COMPUTE)


def took(plan: StepPlan) -> float:
    return BASE_S + TOKEN_S * sum(chunk.num_tokens for chunk in plan.chunks)


def stage(config: ColocationConfig | None = ColocationConfig(), **given: object) -> Stage:  # noqa: B008 - a value
    settings = {"num_blocks": 400, "max_rows": 16, "max_step_tokens": 64, "queue_depth": 2, "seconds": took} | given
    return Stage(colocation=config, **settings)  # type: ignore[arg-type]


def learned(one: Stage) -> Stage:
    """Steps of several sizes were run, and somebody was online."""
    for length in (1, 5, 20, 40):
        one.arrive([7000 + length] * length, max_tokens=2, cache_prefix=False)
        one.run()
    return one


def offline_tokens(one: Stage, plan: StepPlan | None) -> int:
    assert plan is not None
    return sum(chunk.num_tokens for chunk in plan.chunks if one.sequences[chunk.seq].request.service_class is BATCH)


def test_ten_minutes_after_the_last_person_a_job_has_everything_again() -> None:
    plans = []
    for has_met_somebody in (False, True):
        one = stage()
        if has_met_somebody:
            one.arrive([1, 2, 3], max_tokens=2, cache_prefix=False)
            one.run()
            one.now += 601.0
        before = len(one.plans)
        for number in range(6):
            one.arrive(range(100 * number, 100 * number + 30), service_class=BATCH, max_tokens=9)
        one.run()
        plans.append([[chunk[1:] for chunk in chunks(plan)] for plan in one.plans[before:]])
    assert plans[0] == plans[1]


def test_a_job_alone_is_planned_as_if_there_were_no_such_thing() -> None:
    plans = []
    for config in (None, ColocationConfig()):
        one = stage(config)
        for number in range(6):
            one.arrive(range(100 * number, 100 * number + 30), service_class=BATCH, max_tokens=9)
        one.run()
        plans.append([chunks(plan) for plan in one.plans])
    assert plans[0] == plans[1]


def test_online_traffic_alone_is_planned_as_if_there_were_no_such_thing() -> None:
    plans = []
    for config in (None, ColocationConfig()):
        one = stage(config)
        for number in range(6):
            one.arrive(range(100 * number, 100 * number + 30), max_tokens=9)
        one.run()
        plans.append([chunks(plan) for plan in one.plans])
    assert plans[0] == plans[1]


def test_a_step_of_offline_rows_is_short_and_nothing_is_queued_behind_it() -> None:
    one = learned(stage())
    for number in range(10):
        one.arrive(range(1000 * number, 1000 * number + 30), service_class=BATCH, max_tokens=30)
    plan = one.plan()
    assert plan is not None
    # 12.5 ms would be hardly more than the 8 of the step itself: it is twice that of one token.
    assert took(plan) == pytest.approx(0.018, abs=1.5 * TOKEN_S)
    assert one.plan() is None
    one.finish(plan)
    one.run()


def test_a_target_of_first_tokens_allows_longer_ones() -> None:
    one = learned(stage())
    one.arrive([1, 2], max_tokens=1, slo=Slo(ttft_s=0.8))
    one.run()
    one.arrive(range(60), service_class=BATCH, max_tokens=1)
    plan = one.plan()
    assert plan is not None
    assert took(plan) == pytest.approx(0.04, abs=TOKEN_S)


def test_without_targets_online_steps_become_longer_by_a_share() -> None:
    one = learned(stage())
    one.arrive([1, 2, 3], max_tokens=400 // 8)
    for number in range(4):
        one.arrive(range(1000 * number, 1000 * number + 5), service_class=BATCH, max_tokens=30)
    alone_s = shared_s = 0.0
    for _ in range(45):
        plan = one.step()
        assert plan is not None
        shared_s += took(plan)
        alone_s += took(plan) - TOKEN_S * offline_tokens(one, plan)
    assert alone_s < shared_s < 1.04 * alone_s


def test_an_urgent_job_gets_more() -> None:
    seconds = []
    for is_urgent in (False, True):
        one = learned(stage())
        one.arrive([1, 2, 3], max_tokens=45)
        for number in range(4):
            prompt = range(1000 * number, 1000 * number + 5)
            one.arrive(prompt, service_class=BATCH, max_tokens=30, is_urgent=is_urgent)
        seconds.append(sum(offline_tokens(one, one.step()) for _ in range(40)))
    assert seconds[1] > 3 * seconds[0]


def test_with_prices_and_targets_the_worst_case_holds_and_what_is_left_is_used() -> None:
    one = learned(stage(cost=Prices()))
    one.arrive([1, 2, 3], max_tokens=40, slo=Slo(itl_s=0.030))
    one.step()
    for number in range(4):
        one.arrive(range(1000 * number, 1000 * number + 50), service_class=BATCH, max_tokens=12)
    for _ in range(15):
        plan = one.step()
        assert plan is not None
        assert 1.5 * took(plan) <= 0.030 + 1e-9
        assert 1.5 * (took(plan) + TOKEN_S) > 0.030


def test_an_unattainable_target_leaves_offline_rows_out() -> None:
    one = learned(stage(cost=Prices()))
    one.arrive([1, 2, 3], max_tokens=10, slo=Slo(tpot_s=0.001))
    one.step()
    one.arrive(range(50), service_class=BATCH, max_tokens=3)
    assert [offline_tokens(one, one.step()) for _ in range(9)] == [0] * 9


def test_while_a_prompt_with_a_target_goes_on_nothing_goes_beside_it() -> None:
    one = learned(stage(cost=Prices(), max_step_tokens=16))
    one.arrive(range(100, 140), max_tokens=2, slo=Slo(ttft_s=5.0, itl_s=1.0))
    one.arrive(range(8), service_class=BATCH, max_tokens=3)
    assert offline_tokens(one, one.step()) == 0
    assert offline_tokens(one, one.step()) == 0
    assert offline_tokens(one, one.step()) > 0


def test_memory_of_offline_work_is_back_within_a_step() -> None:
    one = learned(stage(num_blocks=16, max_rows=8))
    for number in range(3):
        one.arrive(range(1000 * number, 1000 * number + 12), service_class=BATCH, max_tokens=10)
    for _ in range(6):
        one.step()
    in_flight = one.plan()
    assert in_flight is not None
    online = one.arrive(range(5000, 5044), max_tokens=2)
    one.finish(in_flight)
    plan = one.plan()
    assert plan is not None
    assert online.id in {chunk.seq for chunk in plan.chunks}
    one.finish(plan)
    one.run()


def test_what_is_kept_for_a_burst_is_not_given_to_offline_work() -> None:
    one = learned(stage(num_blocks=64, max_rows=16))
    for number in range(12):
        one.arrive(range(1000 * number, 1000 * number + 24), service_class=BATCH, max_tokens=8, cache_prefix=False)
    one.step()
    for _ in range(8):
        one.step()
        # A quarter of the 256 tokens at least is theirs whatever happens, and 64 are kept for one newcomer.
        assert one.kv.available_tokens >= 64 - 4 * 12
    one.run()


def test_whoever_was_retracted_twice_waits_for_all_that_he_will_need() -> None:
    one = learned(stage(num_blocks=24, max_rows=8))
    often = one.arrive(range(10), service_class=BATCH, max_tokens=40, cache_prefix=False)
    often.num_preemptions = 2
    other = one.arrive(range(100, 120), service_class=BATCH, max_tokens=30, cache_prefix=False)
    # The first may always start alone; the second must leave him 50 tokens of 96, and 64 are kept.
    one.step()
    assert often.state is SeqState.RUNNING
    assert other.state is SeqState.WAITING
    one.run()
    assert often.num_preemptions == 2


def test_nobody_online_waits_for_a_prefix_that_resting_work_computes() -> None:
    one = learned(stage())
    shared = list(range(300, 324))
    one.arrive(shared, service_class=BATCH, max_tokens=5)
    one.step()
    online = one.arrive([*shared, 9], max_tokens=2)
    plan = one.plan()
    assert plan is not None
    assert online.id in {chunk.seq for chunk in plan.chunks}
    one.finish(plan)
    one.run()


def test_times_are_learned_of_drafts_as_they_are_planned() -> None:
    """Whether they were right or wrong: limits count them, too."""
    policy = Colocation(ColocationConfig(), Lives(LivesConfig(), make_kv(16), lambda event: None))
    for step, num_drafts in enumerate((0, 3, 7, 1, 5)):
        drafts = Drafts((5,) * num_drafts, tuple(range(-1, num_drafts - 1))) if num_drafts else None
        chunk = Chunk(SeqId(1), 10, 1 + num_drafts, (4,), drafts, (Outputs(0, 1 + num_drafts, OutputKind.SAMPLE),))
        gone = Chunk.of_unknown(SeqId(2), 10)
        plan = StepPlan(StepId(step), LaneId(0), (), (), (), (chunk, gone))
        policy.submitted(plan, has_online=True)
        # One token of each is accepted, and nothing of whoever was cancelled was computed.
        seqs = (SeqResult(SeqId(1), SeqStatus.OK, 1, (6,)), SeqResult(SeqId(2), SeqStatus.CANCELLED))
        end_s = BASE_S + TOKEN_S * (1 + num_drafts)
        policy.committed(StepResult(plan.step, plan.lane, StepStatus.COMPLETED, 0.0, end_s, 1, seqs))
    # Twice the time of one token, but for what a step costs by itself.
    assert policy.alone(64) == pytest.approx(10, abs=1)


def test_equal_calls_give_equal_plans() -> None:
    plans = []
    for _ in range(2):
        one = learned(stage(num_blocks=40))
        for number in range(8):
            kind = BATCH if number % 2 else ServiceClass.ONLINE
            one.arrive(range(100 * number, 100 * number + 20), service_class=kind, max_tokens=12)
            one.step()
        one.run()
        plans.append([chunks(plan) for plan in one.plans])
    assert plans[0] == plans[1]


def test_what_offline_work_left_is_evicted_before_what_online_traffic_left() -> None:
    one = stage(num_blocks=16, max_rows=4, max_step_tokens=64)
    online = list(range(20))
    one.arrive(online, max_tokens=1)
    one.run()
    one.arrive(range(100, 120), max_tokens=1, service_class=BATCH)
    one.run()
    # 11 of the 16 blocks are cached; these need 10, so that five go.
    one.arrive(range(200, 238), max_tokens=1)
    one.run()
    assert one.arrive(online, max_tokens=1) is not None
    assert chunks(one.plan())[0][1] == 19


def test_who_needs_memory_for_a_whole_answer_keeps_no_other_waiting_while_somebody_is_online() -> None:
    one = learned(stage(num_blocks=24))
    one.arrive([5, 6, 7], max_tokens=10)
    one.step()
    large = one.arrive(range(100, 110), service_class=BATCH, max_tokens=54)
    large.num_preemptions = OFTEN
    small = [one.arrive(range(1000 * k, 1000 * k + 4), service_class=BATCH, max_tokens=2) for k in range(2, 6)]
    for number in range(800):
        if number % 8 == 0:
            one.arrive([5, 6, 8 + number], max_tokens=10)
        one.step()
    assert large.state is SeqState.WAITING
    assert {seq.state for seq in small} == {SeqState.FINISHED}
    one.run()
    assert large.state is SeqState.FINISHED
