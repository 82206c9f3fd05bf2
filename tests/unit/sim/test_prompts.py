"""Prompts made up for traces without text."""

from __future__ import annotations

import pytest

from plait.sim.prompts import made_up_prompt, prompt_of

VOCAB = 1000


def num_shared(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_prompts_share_what_their_leading_blocks_say() -> None:
    one = prompt_of(1100, [4, 5, 6], 512, 0, VOCAB)
    other = prompt_of(2048, [4, 5, 7, 8], 512, 1, VOCAB)
    assert (len(one), len(other)) == (1100, 2048)
    assert num_shared(one, other) == 1024
    assert num_shared(one, prompt_of(1100, [9, 5, 6], 512, 2, VOCAB)) == 0
    assert prompt_of(1100, [4, 5, 6], 512, 3, VOCAB) == one, "nothing is left for an ending of its own"
    assert all(0 <= token < VOCAB for token in other)


def test_names_beyond_the_vocabulary_differ_a_token_later() -> None:
    one = prompt_of(6, [3, 3 + VOCAB], 4, 0, VOCAB)
    assert num_shared(one, prompt_of(6, [3, 3 + 2 * VOCAB], 4, 0, VOCAB)) == 5


@pytest.mark.parametrize("name", [VOCAB**2, 2 * VOCAB**2, 1 << 40, (1 << 62) + 5])
def test_large_names_are_not_small_ones(name: int) -> None:
    large, small = prompt_of(64, [name], 64, 0, VOCAB), prompt_of(64, [name % VOCAB**2], 64, 0, VOCAB)
    assert num_shared(large, small) in (2, 3)


def test_an_ending_is_nobody_elses() -> None:
    assert num_shared(prompt_of(90, [1, 2], 32, 0, VOCAB), prompt_of(90, [1, 2], 32, 1, VOCAB)) == 64
    assert num_shared(prompt_of(90, [1, 2], 32, 0, VOCAB), prompt_of(96, [1, 2, 3], 32, 1, VOCAB)) == 64


def test_long_prompts_are_short_prompts_that_go_on() -> None:
    assert made_up_prompt(7, 5000, VOCAB)[:300] == made_up_prompt(7, 300, VOCAB)
    assert made_up_prompt(1003, 2, VOCAB) == (3, 1)
    assert made_up_prompt(1003, 1, VOCAB) == (3,)
