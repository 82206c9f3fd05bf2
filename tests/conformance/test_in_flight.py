"""Two steps of a sequence in flight, and the one in front comes to nothing: what is behind it, and how it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.conformance.executors import EXECUTORS
from tests.conformance.models import model_named
from tests.conformance.oracle import expect
from tests.conformance.scene import (
    BLOCK,
    FIRST,
    PROMPT,
    SECOND,
    Scene,
    joined,
    next_chunk,
    prompt_chunk,
    result_of,
    sampling,
)

from plait.core.errors import InvariantError
from plait.core.ids import BlockId, GroupId, SeqId, StepId
from plait.core.step import FROM_DEVICE, BlockGrant, Chunk, Leave, SeqResult, SeqStatus, StepPlan, StepStatus

OK, CANCELLED, FAILED = SeqStatus.OK, SeqStatus.CANCELLED, SeqStatus.FAILED
COMPUTING = [name for name in EXECUTORS if name != "simulated"]
AT = len(PROMPT)
BAD = 99
"""A token whose embedding is not a number, for a model made so."""


@pytest.fixture(params=EXECUTORS)
def scene(request: pytest.FixtureRequest) -> Scene:
    """The first lane is suspended, so that what is submitted stays as it is until `go_on`."""
    made = Scene(request.param)
    made.share()
    made.executor.suspend(FIRST)
    return made


def go_on(scene: Scene) -> None:
    scene.executor.resume(FIRST)


def statuses(scene: Scene, *steps: StepId) -> list[list[SeqStatus]]:
    return [[one.status for one in scene.wait(step).seqs] for step in steps]


def answers_as_alone(scene: Scene, seq: int, start: int = 0) -> None:
    """The sequence gives the right token behind its prompt, and the one behind that."""
    first = scene.submit(prompt_chunk(seq, start))
    second = scene.submit(next_chunk(seq, AT))
    token = scene.right_token(seq, PROMPT)
    assert result_of(seq, scene.wait(first)).tokens == (token,)
    assert result_of(seq, scene.wait(second)).tokens == (scene.right_token(seq, [*PROMPT, token]),)


def pieces(seq: int, *ends: int) -> list[Chunk]:
    """The prompt up to `ends`, piece by piece."""
    return [prompt_chunk(seq, start, end) for start, end in zip((0, *ends), ends, strict=False)]


# What stands behind a cancelled chunk


def test_what_is_queued_behind_a_cancelled_chunk_is_cancelled_with_it(scene: Scene) -> None:
    """Its token was never sampled, and whoever cancels cannot cancel both steps in one moment."""
    start, behind = scene.start(1, 2), scene.submit(next_chunk(1, AT), next_chunk(2, AT))
    scene.executor.cancel(start, [SeqId(1)])
    go_on(scene)
    assert statuses(scene, start, behind) == [[CANCELLED, OK], [CANCELLED, OK]]
    result = scene.wait(behind)
    assert result_of(1, result) == SeqResult(SeqId(1), CANCELLED)
    assert result_of(2, result).tokens == (scene.right_token(2, [*PROMPT, scene.right_token(2, PROMPT)]),)


def test_a_resting_lane_gives_back_both_steps_when_the_first_is_cancelled(scene: Scene) -> None:
    first, second = pieces(1, 8, 16)
    steps = scene.submit(first, joins=[joined(1)]), scene.submit(second)
    scene.executor.cancel(steps[0], [SeqId(1)])
    assert [scene.wait(step).status for step in steps] == [StepStatus.CANCELLED] * 2


def test_a_lane_without_units_gives_back_both_steps_too(scene: Scene) -> None:
    go_on(scene)
    scene.executor.assign({FIRST: (), SECOND: (0, 1)})
    first, second = pieces(1, 8, 16)
    steps = scene.submit(first, joins=[joined(1)]), scene.submit(second)
    scene.executor.cancel(steps[0], [SeqId(1)])
    assert [scene.wait(step).status for step in steps] == [StepStatus.CANCELLED] * 2


def test_what_is_submitted_behind_a_cancelled_chunk_before_that_was_collected_is_cancelled(scene: Scene) -> None:
    """The step in front has ended; nobody knows yet that there is nothing to go on from."""
    first, second = pieces(1, 8, 16)
    front = scene.submit(first, joins=[joined(1)])
    scene.executor.cancel(front, [SeqId(1)])
    scene.wait_ready()
    behind = scene.submit(second)
    assert [scene.wait(step).status for step in (front, behind)] == [StepStatus.CANCELLED] * 2
    go_on(scene)
    answers_as_alone(scene, 1)


def test_cancelling_the_second_step_leaves_the_first_alone(scene: Scene) -> None:
    first, second = pieces(1, 8, 16)
    steps = scene.submit(first, joins=[joined(1)]), scene.submit(second)
    scene.executor.cancel(steps[1], [SeqId(1)])
    go_on(scene)
    assert statuses(scene, *steps) == [[OK], [CANCELLED]]
    answers_as_alone(scene, 1, start=8)


def test_a_sequence_that_only_the_second_step_has_is_not_cancelled_by_the_first(scene: Scene) -> None:
    """Cancelling names a sequence that the step does not have; that it is in the next one is another matter."""
    steps = scene.start(1), scene.start(2)
    scene.executor.cancel(steps[0], [SeqId(2)])
    go_on(scene)
    assert statuses(scene, *steps) == [[OK], [OK]]


def test_other_chunks_of_the_queued_step_run_as_if_nothing_had_been_there(scene: Scene) -> None:
    front = scene.start(1)
    behind = scene.submit(next_chunk(1, AT), prompt_chunk(2), joins=[joined(2)])
    scene.executor.cancel(front, [SeqId(1)])
    go_on(scene)
    assert statuses(scene, front, behind) == [[CANCELLED], [CANCELLED, OK]]
    assert result_of(2, scene.wait(behind)).tokens == (scene.right_token(2, PROMPT),)


# How the sequence goes on


@pytest.mark.parametrize("named", [(0,), (0, 1), (1, 0)])
def test_a_sequence_whose_two_chunks_were_cancelled_starts_again_at_the_first(
    scene: Scene, named: Sequence[int]
) -> None:
    first, second = pieces(1, 8, 16)
    steps = scene.submit(first, joins=[joined(1)]), scene.submit(second)
    for place in named:
        scene.executor.cancel(steps[place], [SeqId(1)])
    go_on(scene)
    assert statuses(scene, *steps) == [[CANCELLED], [CANCELLED]]
    answers_as_alone(scene, 1)


def test_cancelled_in_the_middle_of_its_text_it_goes_on_behind_what_was_computed(scene: Scene) -> None:
    first, second, third = pieces(1, 6, 13, 17)
    go_on(scene)
    scene.wait(scene.submit(first, joins=[joined(1)]))
    scene.executor.suspend(FIRST)
    steps = scene.submit(second), scene.submit(third)
    scene.executor.cancel(steps[0], [SeqId(1)])
    go_on(scene)
    assert statuses(scene, *steps) == [[CANCELLED], [CANCELLED]]
    answers_as_alone(scene, 1, start=6)


def test_a_gap_is_refused_after_both_were_cancelled(scene: Scene) -> None:
    first, second = pieces(1, 8, 16)
    steps = scene.submit(first, joins=[joined(1)]), scene.submit(second)
    scene.executor.cancel(steps[0], [SeqId(1)])
    scene.wait(steps[1])
    with pytest.raises(InvariantError, match="starts at 8, but 0 tokens"):
        scene.submit(second)


def test_the_token_on_the_device_outlives_a_cancelled_chunk_behind_it(scene: Scene) -> None:
    """What was sampled before is still there, though the cancelled chunk would have sampled nothing itself."""
    go_on(scene)
    scene.wait(scene.start(1))
    scene.executor.suspend(FIRST)
    silent = scene.submit(Chunk(SeqId(1), AT, 1, FROM_DEVICE))
    scene.executor.cancel(silent, [SeqId(1)])
    scene.wait(silent)
    go_on(scene)
    again = scene.submit(next_chunk(1, AT))
    assert result_of(1, scene.wait(again)).tokens == (scene.right_token(1, [*PROMPT, scene.right_token(1, PROMPT)]),)


def test_a_token_that_a_cancelled_chunk_would_have_sampled_is_not_there(scene: Scene) -> None:
    step = scene.start(1)
    scene.executor.cancel(step, [SeqId(1)])
    scene.wait(step)
    with pytest.raises(InvariantError, match="nothing was sampled before it"):
        scene.submit(Chunk(SeqId(1), 0, 1, FROM_DEVICE, outputs=sampling(0)))


def test_suspended_cancelled_and_resumed_again_and_again_it_ends_with_the_right_token(scene: Scene) -> None:
    go_on(scene)
    computed, joins = 0, [joined(1)]
    for turns in range(0, 24, 3):
        end = computed + 3
        if end >= AT:  # the steps came through before they were cancelled
            break
        front = scene.submit(prompt_chunk(1, computed, end), joins=joins)
        behind = scene.submit(prompt_chunk(1, end, AT))
        scene.collect(turns)
        scene.executor.suspend(FIRST)
        scene.executor.cancel(front if turns % 2 else behind, [SeqId(1)])
        go_on(scene)
        for step in (front, behind):
            computed += result_of(1, scene.wait(step)).num_computed
        joins = []
    if computed < AT:
        scene.wait(scene.submit(prompt_chunk(1, computed)))
    again = scene.submit(next_chunk(1, AT))
    assert result_of(1, scene.wait(again)).tokens == (scene.right_token(1, [*PROMPT, scene.right_token(1, PROMPT)]),)


# Leaving and joining while in flight


def leave_and_join(scene: Scene, row: int = 1, first_block: int = 40) -> StepId:
    """Sequence 1 leaves and joins at once, with other blocks, and computes its prompt from its beginning."""
    blocks = tuple(BlockId(first_block + place) for place in range(4))
    made = scene.plan(prompt_chunk(1))
    roster = (Leave(SeqId(1)), replace(joined(1), row=row))
    scene.executor.submit(replace(made, roster=roster, blocks=(BlockGrant(SeqId(1), GroupId(0), 0, blocks),)))
    return made.step


@pytest.mark.parametrize("row", [1, 5])
@pytest.mark.parametrize("cancelled_after", [False, True])
def test_a_sequence_that_joins_anew_has_nothing_to_do_with_its_cancelled_chunk(
    scene: Scene, cancelled_after: bool, row: int
) -> None:
    front = scene.start(1)
    if cancelled_after:
        behind = leave_and_join(scene, row)
        scene.executor.cancel(front, [SeqId(1)])
    else:
        scene.executor.cancel(front, [SeqId(1)])
        behind = leave_and_join(scene, row)
    go_on(scene)
    assert statuses(scene, front, behind) == [[CANCELLED], [OK]]
    assert result_of(1, scene.wait(behind)).tokens == (scene.right_token(1, PROMPT),)
    token = scene.right_token(1, PROMPT)
    after = scene.submit(next_chunk(1, AT))
    assert result_of(1, scene.wait(after)).tokens == (scene.right_token(1, [*PROMPT, token]),)


def test_a_chunk_in_flight_when_its_sequence_joins_anew_still_gives_its_result(scene: Scene) -> None:
    front, behind = scene.start(1), leave_and_join(scene)
    go_on(scene)
    assert statuses(scene, front, behind) == [[OK], [OK]]
    assert result_of(1, scene.wait(front)).tokens == result_of(1, scene.wait(behind)).tokens


def test_cancelling_the_new_chunk_leaves_the_old_one_alone(scene: Scene) -> None:
    front, behind = scene.start(1), leave_and_join(scene)
    scene.executor.cancel(behind, [SeqId(1)])
    go_on(scene)
    assert statuses(scene, front, behind) == [[OK], [CANCELLED]]
    answers_as_alone(scene, 1)


def test_its_old_blocks_are_not_its_own_before_the_step_in_flight_was_collected(scene: Scene) -> None:
    scene.start(1)
    with pytest.raises(InvariantError, match="in flight on lane 0, holds it"):
        leave_and_join(scene, first_block=BLOCK)


def test_a_sequence_cancelled_on_one_lane_goes_on_on_the_other(scene: Scene) -> None:
    first, second = pieces(1, 8, 16)
    steps = scene.submit(first, joins=[joined(1)]), scene.submit(second)
    scene.executor.cancel(steps[0], [SeqId(1)])
    for step in steps:
        scene.wait(step)
    scene.wait(scene.leave(1, lane=SECOND))
    again = scene.start(1, lane=SECOND)
    assert result_of(1, scene.wait(again)).tokens == (scene.right_token(1, PROMPT),)


# Failures


def broken_scene(executor: str) -> Scene:
    model = model_named("causal")
    embed = model.arrays["embed"].copy()
    embed[BAD] = np.nan
    made = Scene(executor, replace(model, arrays={**model.arrays, "embed": embed}))
    made.share()
    return made


def bad_chunk(seq: int) -> Chunk:
    tokens = (*PROMPT[:-1], BAD)
    return Chunk(SeqId(seq), 0, AT, tokens, outputs=sampling(AT - 1))


@pytest.mark.parametrize("executor", COMPUTING)
def test_what_is_queued_behind_a_failed_chunk_is_cancelled_and_its_neighbours_go_on(executor: str) -> None:
    scene = broken_scene(executor)
    front = scene.submit(bad_chunk(1), prompt_chunk(2), joins=[joined(1), joined(2)])
    behind = scene.submit(next_chunk(1, AT), next_chunk(2, AT))
    assert statuses(scene, front, behind) == [[FAILED, OK], [CANCELLED, OK]]
    tokens = [*PROMPT, int(expect(model_named("causal"), PROMPT).logits[-1].argmax())]
    right = int(expect(model_named("causal"), tokens).logits[-1].argmax())
    assert result_of(2, scene.wait(behind)).tokens == (right,)


@pytest.mark.parametrize("executor", COMPUTING)
def test_a_sequence_that_failed_with_a_step_behind_it_starts_again_at_the_failed_chunk(executor: str) -> None:
    scene = broken_scene(executor)
    steps = scene.submit(bad_chunk(1), joins=[joined(1)]), scene.submit(next_chunk(1, AT))
    assert statuses(scene, *steps) == [[FAILED], [CANCELLED]]
    again = scene.submit(prompt_chunk(1))
    right = int(expect(model_named("causal"), PROMPT).logits[-1].argmax())
    assert result_of(1, scene.wait(again)).tokens == (right,)


@pytest.mark.parametrize("executor", COMPUTING)
def test_a_step_whose_every_chunk_stood_behind_a_failed_one_ends_as_cancelled(executor: str) -> None:
    scene = broken_scene(executor)
    scene.submit(bad_chunk(1), joins=[joined(1)])
    behind = scene.submit(next_chunk(1, AT))
    assert scene.wait(behind).status is StepStatus.CANCELLED


# Programs


def test_a_program_that_was_not_loaded_is_refused(scene: Scene) -> None:
    drafting: StepPlan = replace(scene.plan(prompt_chunk(1), joins=[joined(1)]), program="draft")
    with pytest.raises(InvariantError, match="runs program 'draft'; only 'step' is loaded"):
        scene.executor.submit(drafting)
