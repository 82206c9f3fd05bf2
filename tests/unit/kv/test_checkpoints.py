"""Where copies of states are wanted: every so many tokens, or where prompts end and branch off."""

from __future__ import annotations

import pytest

from plait.kv.checkpoints import ByUse, CheckpointPolicy, EveryTokens, PromptMarks

PROMPT = PromptMarks(num_tokens=100)


def all_lengths(policy: CheckpointPolicy, marks: PromptMarks, chunks: list[tuple[int, int]], size: int) -> list[int]:
    return [length for start, end in chunks for length in policy.lengths(marks, start, end, size)]


def test_every_so_many_tokens_is_whole_blocks() -> None:
    assert EveryTokens(32).lengths(PROMPT, 0, 100, 16) == [32, 64, 96]
    assert EveryTokens(40).lengths(PROMPT, 0, 100, 16) == [48, 96]
    assert EveryTokens(512).lengths(PROMPT, 0, 100, 16) == []


def test_a_prompt_of_whole_blocks_can_be_hit_again_and_gone_on_from() -> None:
    """The same prompt computes its last token anew; one that goes on does not."""
    assert ByUse().lengths(PromptMarks(96), 0, 96, 16) == [80, 96]
    assert ByUse().lengths(PromptMarks(100), 0, 100, 16) == [96]


def test_a_branch_point_is_where_others_were_alike() -> None:
    assert ByUse().lengths(PromptMarks(100, num_matched=48), 16, 100, 16) == [48, 96]
    assert ByUse().lengths(PromptMarks(100, num_matched=48), 48, 100, 16) == [96], "it was hit, so it is there"


def test_of_the_ends_of_messages_the_first_and_the_last_are_wanted() -> None:
    marks = PromptMarks(200, message_ends=(40, 70, 100, 130, 199))
    assert ByUse(num_messages=2).lengths(marks, 0, 200, 10) == [40, 130, 190, 200]


def test_long_answers_have_some_too() -> None:
    assert ByUse(answer_tokens=64).lengths(PROMPT, 127, 128, 16) == [128]
    assert ByUse(answer_tokens=64).lengths(PROMPT, 128, 129, 16) == []


@pytest.mark.parametrize("policy", [EveryTokens(24), ByUse(answer_tokens=20)])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_how_a_prompt_is_cut_into_chunks_changes_nothing(policy: CheckpointPolicy, size: int) -> None:
    marks = PromptMarks(100, 37, (11, 50, 93))
    whole = all_lengths(policy, marks, [(0, 130)], size)
    assert whole == sorted(set(whole))
    assert all(0 < length <= 130 and length % size == 0 for length in whole)
    for step in (1, 7, 16, 33):
        chunks = [(start, min(start + step, 130)) for start in range(0, 130, step)]
        assert all_lengths(policy, marks, chunks, size) == whole
