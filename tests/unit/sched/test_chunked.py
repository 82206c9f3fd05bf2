"""The chunked policy: what is planned, who waits, who leaves, and what never happens."""

from __future__ import annotations

import pytest
from tests.unit.sched.kit import EOS, Stage, chunks

from plait.core.decision import Blocked
from plait.core.errors import InvariantError, RequestError
from plait.core.events import Preempted
from plait.core.ids import RequestId, SeqId
from plait.core.plan_hash import plan_hash
from plait.core.request import FinishReason, Request, SeqState, ServiceClass, Task
from plait.core.request import Sequence as Seq
from plait.core.sampling import SamplingParams
from plait.core.step import Join, Leave, StepResult, StepStatus
from plait.kv.cache import Hit, Root


def test_a_prompt_is_cut_to_the_token_budget_and_its_last_chunk_samples() -> None:
    stage = Stage(max_step_tokens=8)
    stage.arrive(range(20))
    first, second, third = stage.step(), stage.step(), stage.step()
    assert chunks(first) == [(0, 0, 8)]
    assert chunks(second) == [(0, 8, 8)]
    assert chunks(third) == [(0, 16, 4)]
    assert [plan.chunks[0].num_outputs for plan in (first, second, third) if plan] == [0, 0, 1]


def test_decode_goes_first_and_the_rest_of_the_budget_goes_to_prompts() -> None:
    stage = Stage(max_step_tokens=8)
    stage.arrive(range(4))
    stage.step()
    stage.arrive(range(100, 120))
    assert chunks(stage.step()) == [(0, 4, 1), (1, 0, 7)]
    assert chunks(stage.step()) == [(0, 5, 1), (1, 7, 7)]


def test_decode_goes_first_even_if_a_prompt_of_a_higher_class_is_running() -> None:
    stage = Stage(max_step_tokens=6)
    stage.arrive(range(3), service_class=ServiceClass.BATCH, max_tokens=8)
    stage.step()
    stage.arrive(range(100, 120))
    assert chunks(stage.step()) == [(0, 3, 1), (1, 0, 5)]
    assert chunks(stage.step()) == [(0, 4, 1), (1, 5, 5)]


def test_requests_are_taken_in_order_of_arrival() -> None:
    stage = Stage(max_step_tokens=100, max_rows=2)
    for _ in range(3):
        stage.arrive([1, 2, 3], cache_prefix=False)
    assert chunks(stage.plan()) == [(0, 0, 3), (1, 0, 3)]


def test_online_goes_before_batch_and_a_lower_priority_number_before_a_higher() -> None:
    stage = Stage(max_rows=1)
    stage.arrive([1, 2], service_class=ServiceClass.BATCH)
    stage.arrive([3, 4], priority=5)
    stage.arrive([5, 6], priority=1)
    stage.run()
    order = [int(change.seq) for plan in stage.plans for change in plan.roster if isinstance(change, Join)]
    assert order == [2, 1, 0]


def test_only_one_step_is_in_flight() -> None:
    stage = Stage()
    stage.arrive([1, 2, 3])
    assert stage.plan() is not None
    assert stage.plan() is None


def test_a_sequence_ends_at_its_token_limit() -> None:
    stage = Stage()
    seq = stage.arrive([1, 2, 3], max_tokens=3)
    stage.run()
    assert stage.output(seq) == [1_003, 1_004, 1_005]
    assert stage.updates[-1].finish_reason is FinishReason.LENGTH
    assert seq.state is SeqState.FINISHED


def test_a_sequence_ends_at_the_end_of_sequence_token() -> None:
    stage = Stage(answer=lambda chunk: EOS if chunk.end == 5 else 1)
    seq = stage.arrive([1, 2, 3], max_tokens=20)
    stage.run()
    assert stage.output(seq) == [1, 1, EOS]
    assert stage.updates[-1].finish_reason is FinishReason.STOP
    assert stage.updates[-1].stop_token == EOS


def test_ignore_eos_and_min_tokens_keep_a_sequence_going() -> None:
    ignoring = SamplingParams(max_tokens=3, ignore_eos=True)
    stage = Stage(answer=lambda chunk: EOS)
    assert len(_output_of(stage, ignoring)) == 3
    assert len(_output_of(Stage(answer=lambda chunk: EOS), SamplingParams(max_tokens=5, min_tokens=2))) == 3


def test_a_stop_token_of_the_request_ends_it() -> None:
    stage = Stage(answer=lambda chunk: 42)
    assert _output_of(stage, SamplingParams(max_tokens=5, stop_token_ids=(42,), ignore_eos=True)) == [42]


def _output_of(stage: Stage, sampling: SamplingParams) -> list[int]:
    seq = stage.arrive([1, 2, 3], sampling=sampling)
    stage.run()
    return stage.output(seq)


def test_a_finished_prefix_is_not_computed_again() -> None:
    stage = Stage()
    stage.arrive(range(12))
    stage.run()
    seq = stage.arrive(range(12))
    assert chunks(stage.plan()) == [(1, 11, 1)]
    assert seq.num_cached == 11


def test_tenants_share_nothing() -> None:
    stage = Stage()
    stage.arrive(range(12), tenant="a")
    stage.run()
    stage.arrive(range(12), tenant="b")
    assert chunks(stage.plan()) == [(1, 0, 12)]


def test_a_request_that_does_not_cache_neither_reads_nor_writes_the_index() -> None:
    stage = Stage()
    stage.arrive(range(12), cache_prefix=False)
    stage.run()
    stage.arrive(range(12))
    assert chunks(stage.plan()) == [(1, 0, 12)]
    stage.finish(stage.plans[-1])
    stage.run()
    stage.arrive(range(12), cache_prefix=False)
    assert chunks(stage.plan()) == [(2, 0, 12)]


def test_a_prefix_in_flight_is_computed_once() -> None:
    stage = Stage(max_step_tokens=64)
    shared = list(range(16))
    for tail in range(3):
        stage.arrive([*shared, 200 + tail, 300 + tail])
    assert chunks(stage.step()) == [(0, 0, 18)]
    assert chunks(stage.step()) == [(0, 18, 1), (1, 16, 2), (2, 16, 2)]
    stage.run()


def test_a_prefix_longer_than_one_step_is_waited_for() -> None:
    stage = Stage(max_step_tokens=8, num_blocks=64)
    stage.arrive(range(20))
    stage.arrive([*range(20), 50])
    plans = [chunks(stage.step()) for _ in range(3)]
    assert plans[:2] == [[(0, 0, 8)], [(0, 8, 8)]]
    assert plans[2] == [(0, 16, 4)]
    assert chunks(stage.step()) == [(0, 20, 1), (1, 20, 1)]
    stage.run()


def test_one_that_waits_for_a_prefix_lets_others_pass() -> None:
    stage = Stage(max_step_tokens=64)
    stage.arrive(range(8))
    stage.arrive([*range(8), 50])
    stage.arrive([70, 71, 72])
    assert chunks(stage.plan()) == [(0, 0, 8), (2, 0, 3)]


def test_a_hold_ends_when_the_holder_is_aborted() -> None:
    stage = Stage(max_step_tokens=8)
    holder = stage.arrive(range(20))
    stage.arrive([*range(20), 50])
    plan = stage.plan()
    assert plan is not None
    stage.scheduler.abort(holder.id, stage.now)
    stage.plan()
    stage.finish(plan, cancelled=[holder.id])
    assert chunks(stage.plan()) == [(1, 0, 8)]


def test_when_memory_is_short_the_youngest_leaves_and_its_answer_does_not_change() -> None:
    roomy, tight = Stage(num_blocks=64), Stage(num_blocks=7)
    outputs = []
    for stage in (roomy, tight):
        sequences = [stage.arrive([10 * n + 1, 10 * n + 2, 10 * n + 3], max_tokens=12) for n in range(3)]
        stage.run()
        outputs.append([stage.output(seq) for seq in sequences])
    assert outputs[0] == outputs[1]
    preempted = [event.seq for event in tight.events if isinstance(event, Preempted)]
    assert preempted
    assert 0 not in preempted, "the oldest never leaves"
    assert not [event for event in roomy.events if isinstance(event, Preempted)]


def test_everything_is_given_back_in_the_end() -> None:
    stage = Stage(num_blocks=9)
    for n in range(6):
        stage.arrive([n, n + 1, n + 2, n + 3, n + 4], max_tokens=6)
    stage.run()
    stage.kv.reset_prefix_index()
    usage = stage.kv.usage()
    assert usage.free_bytes == usage.total_bytes


def test_a_request_that_can_never_fit_is_refused_with_both_numbers() -> None:
    stage = Stage(num_blocks=4)
    with pytest.raises(RequestError, match=r"17 tokens but the cache holds 16") as caught:
        stage.arrive(range(10), max_tokens=7)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(RequestError, match=r"62 tokens and max_tokens is 4, together 66, but this model holds 64"):
        stage.arrive(range(62))
    with pytest.raises(RequestError, match=r"the prompt has 70 tokens but this model holds 64, output included"):
        stage.arrive(range(70))
    assert stage.scheduler.num_waiting == 0


def test_the_largest_request_that_fits_is_served() -> None:
    stage = Stage(num_blocks=4)
    seq = stage.arrive(range(9), max_tokens=7)
    stage.run()
    assert len(stage.output(seq)) == 7


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task": Task.EMBED}, "task embed is not supported"),
        ({"adapter": "style"}, "adapter 'style' is not loaded"),
        ({"prompt": ()}, "the prompt is empty"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_name(changes: dict[str, object], reason: str) -> None:
    stage = Stage()
    fields: dict[str, object] = {"id": RequestId("r"), "prompt": (1,), **changes}
    request = Request(**fields)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=reason):
        stage.scheduler.admit(Seq(SeqId(0), request, 0, 0, 4, 0.0, list(request.prompt)), 0.0)


def test_abort_while_waiting_forgets_the_sequence() -> None:
    stage = Stage(max_rows=1)
    stage.arrive([1, 2])
    stage.step()
    seq = stage.arrive([3, 4])
    stage.scheduler.abort(seq.id, stage.now)
    stage.run()
    assert stage.output(seq) == []
    assert seq.state is SeqState.FINISHED


def test_abort_in_flight_cancels_the_step_and_frees_the_memory_when_it_is_collected() -> None:
    stage = Stage()
    seq = stage.arrive([1, 2, 3])
    plan = stage.plan()
    assert plan is not None
    stage.scheduler.abort(seq.id, stage.now)
    assert stage.plan() is None
    assert [(int(cancel.step), cancel.seqs) for cancel in stage.cancels] == [(0, (seq.id,))]
    assert stage.kv.usage().groups[0].quarantined == 1
    stage.finish(plan, cancelled=[seq.id])
    assert stage.kv.usage().free_bytes == stage.kv.usage().total_bytes
    stage.scheduler.abort(seq.id, stage.now)


def test_a_row_is_left_before_it_is_joined_again() -> None:
    stage = Stage(max_rows=1)
    stage.arrive([1, 2], max_tokens=1)
    stage.arrive([3, 4], max_tokens=1)
    stage.run()
    assert stage.plans[1].roster[0] == Leave(SeqId(0))
    assert isinstance(stage.plans[1].roster[1], Join)
    assert stage.plans[1].roster[1].row == 0


def test_a_failed_sequence_hurts_only_itself() -> None:
    stage = Stage()
    bad, good = stage.arrive([1, 2]), stage.arrive([3, 4])
    plan = stage.plan()
    assert plan is not None
    stage.finish(plan, failed=[bad.id])
    stage.run()
    assert [update.error for update in stage.updates if update.seq == bad.id] == ["a logit is not a number"]
    assert len(stage.output(good)) == 4


def test_a_request_whose_deadline_passes_in_the_queue_is_given_up() -> None:
    stage = Stage(max_rows=1)
    stage.arrive([1, 2], max_tokens=8)
    stage.step()
    late = stage.arrive([3, 4], deadline_s=3.0)
    assert stage.scheduler.wake_at() == 3.0
    stage.now = 3.5
    (update,) = stage.scheduler.expire(stage.now)
    assert update.seq == late.id
    assert update.error is not None
    assert update.error.startswith("deadline_exceeded")
    assert stage.scheduler.wake_at() is None


def test_penalties_bring_the_history_that_no_chunk_brings() -> None:
    stage = Stage()
    stage.arrive(range(12))
    stage.run()
    stage.arrive(range(12), sampling=SamplingParams(max_tokens=2, repetition_penalty=1.2))
    plan = stage.plan()
    assert plan is not None
    join = next(change for change in plan.roster if isinstance(change, Join))
    assert join.history == tuple(range(11)), "copied ones too"


def test_a_step_that_was_never_submitted_cannot_be_committed() -> None:
    stage = Stage()
    with pytest.raises(InvariantError, match="step 5 was collected but is not in flight"):
        stage.scheduler.commit(StepResult(5, 0, StepStatus.COMPLETED, 0, 0, 1, ()), 0.0)  # type: ignore[arg-type]


def test_equal_arrivals_give_equal_plans() -> None:
    digests = []
    for _ in range(2):
        stage = Stage(num_blocks=12)
        for n in range(8):
            stage.arrive([n % 3, 1, 2, 3, 4, 5, n], max_tokens=5)
        stage.run()
        digests.append(plan_hash(stage.plans))
    assert digests[0] == digests[1]


def test_a_long_line_behind_one_prefix_is_not_walked_through_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(max_step_tokens=8, max_rows=4)
    for number in range(500):
        stage.arrive([*range(20), number])
    asked: list[object] = []
    lookup = stage.kv.lookup

    def counting(tokens: list[int], root: Root) -> Hit:
        asked.append(tokens)
        return lookup(tokens, root)

    monkeypatch.setattr(stage.kv, "lookup", counting)
    assert chunks(stage.step()) == [(0, 0, 8)]
    stage.step()
    stage.step()
    assert stage.scheduler.blocked is Blocked.BY_PREFIX
    assert 0 < len(asked) <= 3 * 2 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": None}, "are free or taken; there are 4, each once"),
        ({"row": 1}, "are free or taken"),
        ({"arrival_s": 99.0}, "are out of order"),
    ],
)
def test_a_running_sequence_that_somebody_else_changed_is_found(changes: dict[str, object], message: str) -> None:
    stage = Stage()
    first, _ = stage.arrive([1, 2]), stage.arrive([3, 4])
    stage.step()
    stage.scheduler.check()
    for name, value in changes.items():
        setattr(first, name, value)
    with pytest.raises(InvariantError, match=message):
        stage.scheduler.check()


def test_a_waiting_sequence_that_has_something_is_found() -> None:
    stage = Stage(max_rows=1)
    stage.arrive([1, 2])
    waiting = stage.arrive([3, 4])
    stage.step()
    stage.scheduler.check()
    waiting.num_computed = 1
    with pytest.raises(InvariantError, match="sequence 1 waits but has row None, memory or something computed"):
        stage.scheduler.check()


def test_admission_that_fails_leaves_the_index_as_it_was_and_hits_count_once() -> None:
    stage = Stage(num_blocks=12, max_step_tokens=32)
    stage.arrive(range(17), max_tokens=1)
    stage.run()
    stage.arrive(range(100, 121), max_tokens=20)
    stage.step()
    waiting = stage.arrive([*range(16), *range(200, 212)], max_tokens=4)
    before = stage.kv.explain().index
    for _ in range(3):
        stage.step()
        assert stage.scheduler.blocked is Blocked.BY_MEMORY
    assert stage.kv.explain().index.asked_tokens == before.asked_tokens
    stage.run()
    after = stage.kv.explain().index
    assert after.asked_tokens == before.asked_tokens + len(waiting.request.prompt)
    assert after.hit_tokens == before.hit_tokens + waiting.num_cached
