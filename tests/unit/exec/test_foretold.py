"""Foretold results: the tokens that were given out, accepted drafts, and the refusal of any other text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InvariantError
from plait.core.ids import SeqId
from plait.core.sampling import SamplingParams
from plait.core.step import FROM_DEVICE, Chunk, Drafts, Join, OutputKind, Outputs, SeqStatus, TokenLogprob
from plait.exec.foretold import check_known_tokens, chunk_result

SEQ = SeqId(3)
VOCAB_SIZE = 5


def token_at(seq: SeqId, position: int) -> int:
    return 100 * seq + position


def few_tokens(seq: SeqId, position: int) -> int:
    """So few that a guess is often right."""
    return (seq + position * position) % VOCAB_SIZE


def joined(num_prompt: int = 4, logprobs: int | None = None) -> Join:
    return Join(SEQ, 0, SamplingParams(logprobs=logprobs), seed=0, choice=0, num_prompt=num_prompt)


def sampling(first: int, num_rows: int = 1) -> tuple[Outputs, ...]:
    return (Outputs(first, num_rows, OutputKind.SAMPLE),)


def test_every_sampled_row_gives_the_token_behind_it() -> None:
    chunk = Chunk(SEQ, 2, 3, (1, 1, 302), outputs=(*sampling(0), *sampling(2)))
    found = chunk_result(chunk, joined(), token_at)
    assert (found.status, found.num_computed, found.tokens) == (SeqStatus.OK, 3, (303, 305))


def test_a_chunk_without_outputs_gives_nothing_but_its_length() -> None:
    found = chunk_result(Chunk(SEQ, 0, 2, (1, 1)), joined(), token_at)
    assert (found.num_computed, found.tokens, found.logprobs, found.pooled) == (2, (), (), None)


@pytest.mark.parametrize(("top", "alternatives"), [(0, ()), (3, ((304, 0.0),))])
def test_a_foretold_token_is_certain(top: int, alternatives: tuple[tuple[int, float], ...]) -> None:
    found = chunk_result(Chunk(SEQ, 3, 1, (1,), outputs=sampling(0)), joined(logprobs=top), token_at)
    assert found.logprobs == (TokenLogprob(304, 0.0, alternatives),)


def test_prompt_tokens_may_be_any_and_output_tokens_only_those_given_out() -> None:
    join = joined(num_prompt=4)
    check_known_tokens(Chunk(SEQ, 0, 4, (9, 9, 9, 9)), join, token_at)
    check_known_tokens(Chunk(SEQ, 2, 4, (9, 9, 304, 305)), join, token_at)
    check_known_tokens(Chunk(SEQ, 6, 1, FROM_DEVICE), join, token_at)
    with pytest.raises(InvariantError, match="sequence 3 is fed token 9 at position 5, but 305 was sampled there"):
        check_known_tokens(Chunk(SEQ, 2, 4, (9, 9, 304, 9)), join, token_at)


def test_drafts_that_nothing_verifies_are_refused() -> None:
    with pytest.raises(InvariantError, match="no sampled rows that could verify"):
        chunk_result(Chunk(SEQ, 4, 2, (304,), Drafts((305,), (-1,))), joined(), token_at)


@given(start=st.integers(4, 40), guesses=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8))
def test_a_chain_is_accepted_up_to_its_first_wrong_guess(start: int, guesses: list[int]) -> None:
    parents = tuple(range(-1, len(guesses) - 1))
    known = few_tokens(SEQ, start)
    size = 1 + len(guesses)
    chunk = Chunk(SEQ, start, size, (known,), Drafts(tuple(guesses), parents), outputs=sampling(0, size))
    found = chunk_result(chunk, joined(), few_tokens)
    truth = [few_tokens(SEQ, start + 1 + place) for place in range(size)]
    right = next((place for place, guess in enumerate(guesses) if guess != truth[place]), len(guesses))
    assert (found.num_accepted, found.num_computed) == (right, 1 + right)
    assert list(found.tokens) == truth[: right + 1]


@given(st.data())
def test_in_a_tree_some_branch_that_agrees_is_followed_to_its_end(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 10))
    parents = tuple(data.draw(st.integers(-1, place - 1)) for place in range(count))
    guesses = tuple(data.draw(st.integers(0, VOCAB_SIZE - 1)) for _ in range(count))
    start = data.draw(st.integers(4, 40))
    size = 1 + count
    chunk = Chunk(SEQ, start, size, (few_tokens(SEQ, start),), Drafts(guesses, parents), outputs=sampling(0, size))
    found = chunk_result(chunk, joined(), few_tokens)
    assert list(found.tokens) == [few_tokens(SEQ, start + 1 + place) for place in range(found.num_accepted + 1)]
    ends = {-1}
    for token in found.tokens[:-1]:
        ends = {place for place in range(count) if parents[place] in ends and guesses[place] == token}
        assert ends, "accepted what nobody guessed"
    assert found.num_computed == 1 + found.num_accepted
