"""Prompts made up for traces without text."""

from __future__ import annotations

import pytest

from plait.core.errors import UsageError
from plait.sim.prompts import block_prompt, made_up_prompt

VOCAB = 1000


def num_shared(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_block_prompts_share_what_their_leading_ids_say() -> None:
    one = block_prompt([4, 5, 6], 1100, VOCAB)
    other = block_prompt([4, 5, 7, 8], 2048, VOCAB)
    assert (len(one), len(other)) == (1100, 2048)
    assert num_shared(one, other) == 1024
    assert num_shared(one, block_prompt([9, 5, 6], 1100, VOCAB)) == 0
    assert block_prompt([4, 5, 6], 1100, VOCAB) == one
    assert all(0 <= token < VOCAB for token in other)


def test_blocks_of_another_size_and_ids_beyond_the_vocabulary() -> None:
    one = block_prompt([3, 3 + VOCAB], 6, VOCAB, block_tokens=4)
    other = block_prompt([3, 3 + 2 * VOCAB], 6, VOCAB, block_tokens=4)
    assert num_shared(one, other) == 5, "one token more than the block, because the ids are equal by the vocabulary"


def test_ids_that_do_not_fit_the_length_are_refused() -> None:
    with pytest.raises(UsageError, match=r"2 block ids for 1100 tokens; blocks of 512 tokens make that 3"):
        block_prompt([1, 2], 1100, VOCAB)


def test_long_prompts_are_short_prompts_that_go_on() -> None:
    assert made_up_prompt(7, 5000, VOCAB)[:300] == made_up_prompt(7, 300, VOCAB)
    assert made_up_prompt(1003, 2, VOCAB) == (3, 1)
    assert made_up_prompt(1003, 1, VOCAB) == (3,)
