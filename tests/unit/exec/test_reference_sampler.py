"""The sampler, rule by rule of docs/concepts/numerics.md, on vocabularies small enough to see the answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.oracle import Question

from plait.core.ids import SeqId
from plait.core.random import uniform
from plait.core.sampling import SamplingParams
from plait.core.step import Join
from plait.exec.reference.sampler import COLUMN_BLOCK, Row, log_probability, sample

Logits = npt.NDArray[np.float32]


def row(
    params: SamplingParams,
    *,
    position: int = 1,
    num_prompt: int = 1,
    history: Sequence[int] = (),
    seed: int = 0,
    choice: int = 0,
    eos: tuple[int, ...] = (),
    allowed: bytes | None = None,
) -> Row:
    return Row(Join(SeqId(0), 0, params, seed, choice, num_prompt, (), None, eos), history, position, allowed)


def of(*values: float) -> Logits:
    return np.asarray(values, np.float32)


def likely(*probabilities: float) -> Logits:
    """Logits of given probabilities, shifted as a model might."""
    return np.asarray(np.log(probabilities) + 3.0, np.float32)


def drawn(logits: Logits, params: SamplingParams, count: int = 400) -> set[int | None]:
    """The tokens that come up for many seeds."""
    return {sample(logits, row(params, seed=seed)) for seed in range(count)}


GREEDY = SamplingParams(temperature=0.0)


# Greedy


def test_greedy_takes_the_largest_and_among_equals_the_lowest_id() -> None:
    assert sample(of(1, 5, 3, 5), row(GREEDY)) == 1


def test_temperatures_up_to_the_limit_are_greedy_whatever_the_seed() -> None:
    assert drawn(of(1.0, 1.0001, 1.0), SamplingParams(temperature=1e-5)) == {1}


# Bias, penalties, forbidden tokens


def test_bias_is_added_to_the_logits() -> None:
    biased = SamplingParams(temperature=0.0, logit_bias=((0, 2.5), (2, -100.0)))
    assert sample(of(1, 3, 9), row(biased)) == 0


def test_the_repetition_penalty_divides_what_is_positive_and_multiplies_the_rest() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    # 8 / 2 = 4 < 5, and of the negative ones -1 * 2 = -2 < -1.5.
    assert sample(of(8, 5, 0), row(params, history=[0])) == 1
    assert sample(of(-1, -1.5, -9), row(params, history=[0])) == 1


def test_the_repetition_penalty_counts_a_token_once_and_knows_the_prompt() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    assert sample(of(8, 3.9, 0), row(params, history=[0, 0, 0], num_prompt=3, position=3)) == 0


def test_bias_comes_before_the_repetition_penalty() -> None:
    # (2 + 6) / 2 = 4 < 5; the other order would give 2 / 2 + 6 = 7.
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, logit_bias=((0, 6.0),))
    assert sample(of(2, 5), row(params, history=[0])) == 1


def test_frequency_counts_every_output_token_and_presence_only_once() -> None:
    frequency = SamplingParams(temperature=0.0, frequency_penalty=1.0)
    assert sample(of(5, 2.5, 0), row(frequency, num_prompt=1, position=3, history=[2, 0, 0])) == 0
    assert sample(of(5, 2.5, 0), row(frequency, num_prompt=1, position=4, history=[2, 0, 0, 0])) == 1
    presence = SamplingParams(temperature=0.0, presence_penalty=2.0)
    assert sample(of(5, 3.5, 0), row(presence, num_prompt=1, position=2, history=[2, 0])) == 1
    assert sample(of(5, 2.5, 0), row(presence, num_prompt=1, position=6, history=[2, 0, 0, 0, 0, 0])) == 0


def test_frequency_and_presence_do_not_know_the_prompt() -> None:
    params = SamplingParams(temperature=0.0, frequency_penalty=2.0, presence_penalty=2.0)
    assert sample(of(5, 4.9), row(params, num_prompt=3, position=3, history=[0, 0, 0])) == 0


def test_a_negative_penalty_draws_a_token_nearer() -> None:
    params = SamplingParams(temperature=0.0, presence_penalty=-2.0)
    assert sample(of(4, 3), row(params, num_prompt=0, position=1, history=[1])) == 1


def test_the_repetition_penalty_comes_before_frequency_and_presence() -> None:
    # 8 / 2 - 1 = 3 > 2.9; the other order gives (8 - 1) / 2 = 3.5, and 4 - 1.2 = 2.8 would be below.
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, presence_penalty=1.2)
    assert sample(of(8, 2.9), row(params, num_prompt=0, position=1, history=[0])) == 1


def test_end_tokens_are_forbidden_until_enough_tokens_came() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(1,))
    logits = of(9, 8, 7)
    assert sample(logits, row(params, num_prompt=4, position=4, eos=(0,))) == 2
    assert sample(logits, row(params, num_prompt=4, position=5, eos=(0,))) == 2
    assert sample(logits, row(params, num_prompt=4, position=6, eos=(0,))) == 0


def test_a_mask_allows_what_its_bits_say_lowest_bit_first() -> None:
    logits = of(*range(12))
    assert sample(logits, row(GREEDY, allowed=bytes([0b00010010, 0]))) == 4
    assert sample(logits, row(GREEDY, allowed=bytes([0b00010010, 0b1]))) == 8
    assert drawn(logits, SamplingParams(temperature=2.0)) > {8, 9, 10, 11}


def test_no_bias_brings_a_forbidden_token_back() -> None:
    params = SamplingParams(temperature=0.0, logit_bias=((1, 100.0),))
    assert sample(of(1, 2), row(params, allowed=bytes([0b01]))) == 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_nothing_is_left_when_everything_is_forbidden(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, min_tokens=1, top_k=2, top_p=0.9)
    assert sample(of(1, 2, 3), row(params, allowed=bytes(1))) is None
    assert sample(of(1, 2), row(params, eos=(0, 1))) is None


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_penalty_beyond_every_number_leaves_nothing_rather_than_a_wrong_token(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, repetition_penalty=5e-324)
    with np.errstate(all="ignore"):
        assert sample(of(4, 3), row(params, history=[0])) is None


# Filters


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest() -> None:
    params = SamplingParams(min_p=0.25)
    assert drawn(likely(0.4, 0.11, 0.09, 0.4), params) == {0, 1, 3}
    assert drawn(likely(0.2, 0.5, 0.3), SamplingParams(min_p=1.0)) == {1}


def test_top_k_keeps_the_likeliest_and_among_equals_the_lowest_ids() -> None:
    assert drawn(likely(0.1, 0.3, 0.3, 0.3), SamplingParams(top_k=2)) == {1, 2}
    assert drawn(likely(0.1, 0.3, 0.6), SamplingParams(top_k=99)) == {0, 1, 2}


def test_top_p_keeps_the_shortest_prefix_that_reaches_it() -> None:
    logits = likely(0.25, 0.5, 0.125, 0.125)
    assert drawn(logits, SamplingParams(top_p=0.74)) == {0, 1}
    assert drawn(logits, SamplingParams(top_p=0.76)) == {0, 1, 2}
    assert drawn(logits, SamplingParams(top_p=0.01)) == {1}
    assert drawn(of(1, 1, 1, 1), SamplingParams(top_p=0.5)) == {0, 1}


def test_the_filters_work_on_what_the_temperature_made() -> None:
    logits = likely(0.7, 0.2, 0.1)  # at temperature 2: 0.52, 0.28, 0.20
    assert drawn(logits, SamplingParams(top_p=0.65)) == {0}
    assert drawn(logits, SamplingParams(top_p=0.65, temperature=2.0)) == {0, 1}


def test_top_p_counts_among_what_min_p_and_top_k_left() -> None:
    logits = likely(0.4, 0.3, 0.2, 0.1)
    # 0.4 of 0.7 is 0.57: one token is not enough for 0.6, two of all would be.
    assert drawn(logits, SamplingParams(top_k=2, top_p=0.55)) == {0}
    assert drawn(logits, SamplingParams(top_k=2, top_p=0.6)) == {0, 1}
    assert drawn(logits, SamplingParams(min_p=0.7, top_p=0.6)) == {0, 1}


# Drawing


def test_the_answer_is_the_first_token_whose_running_sum_exceeds_the_number_drawn() -> None:
    probabilities = (0.125, 0.25, 0.5, 0.125)
    for seed in range(200):
        u = uniform(seed, 0, 7, 0)
        expected = 0 if u < 0.125 else 1 if u < 0.375 else 2 if u < 0.875 else 3
        assert sample(likely(*probabilities), row(SamplingParams(), position=7, seed=seed)) == expected


def test_seed_choice_and_position_give_different_numbers_and_nothing_else_does() -> None:
    logits = of(*[0.0] * 64)
    params = SamplingParams()
    first = sample(logits, row(params, seed=3, choice=1, position=9))
    others = [
        sample(logits, row(params, seed=4, choice=1, position=9)),
        sample(logits, row(params, seed=3, choice=2, position=9)),
        sample(logits, row(params, seed=3, choice=1, position=10)),
    ]
    assert first not in others
    assert sample(logits, row(params, seed=3, choice=1, position=9, num_prompt=5, history=[7, 8])) == first


def test_draws_follow_the_probabilities() -> None:
    """Chi-square with 5 degrees of freedom; 20.5 is exceeded once in a thousand."""
    probabilities = (0.05, 0.3, 0.15, 0.1, 0.25, 0.15)
    logits, count = likely(*probabilities), 4000
    seen = Counter(sample(logits, row(SamplingParams(), position=1 + at % 40, seed=at // 40)) for at in range(count))
    assert set(seen) == set(range(6))
    assert sum((seen[t] - count * p) ** 2 / (count * p) for t, p in enumerate(probabilities)) < 20.5


def test_draws_of_a_wide_vocabulary_run_through_its_blocks_in_order() -> None:
    logits = np.random.default_rng(5).normal(0, 1, 3 * COLUMN_BLOCK + 17).astype(np.float32)
    running = np.cumsum(np.exp(logits.astype(np.float64) - float(logits.max())))
    for seed in range(50):
        target = uniform(seed, 0, 1, 0) * running[-1]
        assert sample(logits, row(SamplingParams(), seed=seed)) == int(np.searchsorted(running, target, side="right"))


def test_where_a_row_lies_in_memory_changes_nothing() -> None:
    rows = np.random.default_rng(6).normal(0, 2, (7, 500)).astype(np.float32)
    strided = np.asfortranarray(rows)
    params = SamplingParams(top_k=50, top_p=0.95)
    for at in range(7):
        alone = sample(rows[at].copy(), row(params, seed=at))
        assert sample(strided[at], row(params, seed=at)) == alone
        assert log_probability(strided[at], 3, 4) == log_probability(rows[at].copy(), 3, 4)


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False).map(lambda value: round(value, 3))


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.5]),
    frequency_penalty=numbers(-2, 2),
    presence_penalty=numbers(-2, 2),
    logit_bias=st.lists(st.tuples(st.integers(0, 15), numbers(-5, 5)), max_size=3, unique_by=lambda one: one[0]).map(
        lambda bias: tuple(sorted(bias))
    ),
    min_tokens=st.integers(0, 4),
)


@given(
    params=PARAMS,
    # A few values only, so that ties are common.
    logits=st.lists(st.integers(-4, 4), min_size=16, max_size=16),
    tokens=st.lists(st.integers(0, 15), min_size=1, max_size=12),
    num_prompt=st.integers(0, 12),
    seed=st.integers(0, 2**64 - 1),
    mask=st.none() | st.binary(min_size=2, max_size=2).map(lambda bits: bytes([bits[0] | 1, bits[1]])),
)
def test_all_rules_together_agree_with_the_oracle(
    params: SamplingParams, logits: list[int], tokens: list[int], num_prompt: int, seed: int, mask: bytes | None
) -> None:
    join = Join(SeqId(0), 0, params, seed, 1, min(num_prompt, len(tokens)), (), None, (5,))
    question = Question(join, tuple(tokens), mask)
    given = of(*(value / 2 for value in logits))
    assert sample(given, Row(join, tokens, len(tokens), mask)) == question.answer(given.astype(np.float64))


# Log-probabilities


def test_a_log_probability_is_that_of_the_logits_as_they_are() -> None:
    given = log_probability(likely(0.125, 0.25, 0.5, 0.125), 1, 0)
    assert (given.token, given.top) == (1, ())
    assert given.logprob == pytest.approx(math.log(0.25), abs=1e-6)


def test_alternatives_descend_and_equals_come_by_id() -> None:
    given = log_probability(likely(0.1, 0.2, 0.3, 0.1, 0.3), 0, 4)
    assert [token for token, _ in given.top] == [2, 4, 1, 0]
    assert [value for _, value in given.top] == pytest.approx([math.log(p) for p in (0.3, 0.3, 0.2, 0.1)], abs=1e-6)


def test_more_alternatives_than_tokens_are_all_of_them() -> None:
    assert len(log_probability(of(1, 2, 3), 0, 20).top) == 3


def test_log_probabilities_of_a_wide_vocabulary_sum_to_one() -> None:
    logits = np.random.default_rng(7).normal(0, 4, 2 * COLUMN_BLOCK + 5).astype(np.float32)
    total = math.fsum(math.exp(log_probability(logits, token, 0).logprob) for token in range(0, len(logits)))
    assert total == pytest.approx(1.0, abs=1e-12)


def test_extreme_logits_neither_overflow_nor_vanish() -> None:
    given = log_probability(of(3e38, -3e38, 0), 1, 3)
    assert given.logprob == pytest.approx(-6e38, rel=1e-6)
    assert given.top[0] == (0, 0.0)
