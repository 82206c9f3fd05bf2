"""Verify rows on every executor: the longest beginning of the drafts that is right, the token behind it, and nothing
that a rejected draft could leave behind.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.conformance.executors import EXECUTORS
from tests.conformance.models import VOCAB_SIZE
from tests.conformance.scene import PROMPT, Scene, joined, next_chunk, prompt_chunk, result_of

from plait.core.ids import SeqId
from plait.core.sampling import SamplingParams
from plait.core.step import Chunk, Drafts, OutputKind, Outputs, RowMask, SeqResult, SeqStatus

AT = len(PROMPT)
COMPUTING = [name for name in ("reference", "native") if name in EXECUTORS]


def verify(start: int, known: tuple[int, ...], drafts: tuple[int, ...]) -> Chunk:
    """Known tokens, and drafts behind the last of them."""
    rows = Outputs(len(known) - 1, len(drafts) + 1, OutputKind.SAMPLE)
    chain = Drafts(drafts, tuple(range(-1, len(drafts) - 1)))
    return Chunk(SeqId(1), start, len(known) + len(drafts), known, chain, (rows,))


def begun(executor: str) -> tuple[Scene, list[int]]:
    """A scene whose sequence has its prompt, and the tokens that it says one after another without drafts."""
    scene = Scene(executor)
    said = list(result_of(1, scene.wait(scene.start(1))).tokens)
    while len(said) < 7:
        said.append(scene.right_token(1, [*PROMPT, *said]))
    return scene, said


def checked(scene: Scene, chunk: Chunk) -> SeqResult:
    return result_of(1, scene.wait(scene.submit(chunk)))


@pytest.mark.parametrize("right", range(5))
@pytest.mark.parametrize("executor", EXECUTORS)
def test_drafts_are_accepted_up_to_the_first_wrong_one_and_the_next_step_goes_on_there(
    executor: str, right: int
) -> None:
    scene, said = begun(executor)
    wrong = [(token + 1) % VOCAB_SIZE for token in said]
    drafts = (*said[1 : 1 + right], *wrong[1 + right : 5])
    result = checked(scene, verify(AT, (said[0],), drafts))
    assert result.tokens == tuple(said[1 : right + 2])
    assert (result.num_computed, result.num_accepted) == (1 + right, right)
    # Where rejected drafts were, the right tokens are written; and the device knows the last one that counts.
    behind = checked(scene, next_chunk(1, AT + right + 1))
    assert behind.tokens == (scene.right_token(1, [*PROMPT, *said[: right + 2]]),)


@pytest.mark.parametrize("executor", COMPUTING)
def test_the_known_token_may_be_the_devices_and_a_prompt_may_end_in_drafts(executor: str) -> None:
    scene, said = begun(executor)
    chunk = verify(AT, (said[0],), tuple(said[1:3]))
    unknown = chunk._replace(tokens=next_chunk(1, AT).tokens)
    assert checked(scene, unknown).tokens == tuple(said[1:4])
    other = Scene(executor)
    other.wait(other.submit(prompt_chunk(1, 0, AT - 3)._replace(outputs=()), joins=[joined(1)]))
    assert checked(other, verify(AT - 3, PROMPT[AT - 3 :], tuple(said[:2]))).tokens == tuple(said[:3])


@pytest.mark.parametrize("executor", COMPUTING)
def test_penalties_and_draws_of_a_verify_row_are_those_of_its_position(executor: str) -> None:
    params = SamplingParams(temperature=1.1, repetition_penalty=1.5, frequency_penalty=0.9, seed=5, logprobs=2)
    alone = Scene(executor)
    first = result_of(1, alone.wait(alone.submit(prompt_chunk(1), joins=[joined(1, params)])))
    one_by_one = [first]
    for place in range(5):
        one_by_one.append(checked(alone, next_chunk(1, AT + place)))
    said = [token for one in one_by_one for token in one.tokens]
    scene = Scene(executor)
    scene.wait(scene.submit(prompt_chunk(1), joins=[joined(1, params)]))
    drafted = checked(scene, verify(AT, (said[0],), (*said[1:3], (said[3] + 1) % VOCAB_SIZE, said[4])))
    assert drafted.tokens == tuple(said[1:4])
    assert drafted.logprobs == tuple(one.logprobs[0] for one in one_by_one[1:4])
    # What was rejected does not count as said.
    assert checked(scene, verify(AT + 3, (said[3],), (said[4],))).tokens == tuple(said[4:6])


@pytest.mark.parametrize("executor", COMPUTING)
def test_a_row_behind_drafts_that_leaves_no_choice_fails_when_it_is_reached_and_not_before(executor: str) -> None:
    scene, said = begun(executor)
    everything, nothing = b"\xff" * 13, bytes(13)
    chunk = verify(AT, (said[0],), (said[1], said[2]))
    masks = tuple(RowMask(SeqId(1), row, mask) for row, mask in enumerate((everything, nothing, everything)))
    plan = replace(scene.plan(chunk), sampling=masks)
    scene.executor.submit(plan)
    result = result_of(1, scene.wait(plan.step))
    assert (result.status, result.tokens, result.num_computed) == (SeqStatus.OK, (said[1],), 1)
    reached = next_chunk(1, AT + 1)._replace(tokens=(said[1],))
    again = replace(scene.plan(reached), sampling=(RowMask(SeqId(1), 0, nothing),))
    scene.executor.submit(again)
    assert result_of(1, scene.wait(again.step)).status is SeqStatus.FAILED
