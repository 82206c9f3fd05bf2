"""Synthetic load: what is drawn, and what the requests look like."""

from __future__ import annotations

import itertools
from statistics import fmean

import pytest

from plait.core.errors import UsageError
from plait.core.request import Slo
from plait.sim.arrivals import Lengths, TraceRow, arrivals_of, poisson_trace
from plait.sim.prompts import made_up_prompt


def test_poisson_load_is_a_function_of_its_seed() -> None:
    lengths = Lengths(100, 0.5, 1000)
    rows = poisson_trace(5.0, 50, lengths, lengths, seed=3)
    assert rows == poisson_trace(5.0, 50, lengths, lengths, seed=3)
    assert rows != poisson_trace(5.0, 50, lengths, lengths, seed=4)


def test_poisson_load_has_the_rate_and_the_lengths_it_was_asked_for() -> None:
    rows = poisson_trace(5.0, 4000, Lengths(334, 0.8, 100_000), Lengths(83, 0.0, 1000), seed=0)
    gaps = [later.at_s - row.at_s for row, later in itertools.pairwise(rows)]
    assert min(gaps) >= 0
    assert fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert fmean(gap**2 for gap in gaps) == pytest.approx(2 * 0.2**2, rel=0.15)  # exponential, not regular
    assert fmean(row.num_prompt for row in rows) == pytest.approx(334, rel=0.05)
    assert {row.num_output for row in rows} == {83}


def test_lengths_are_cut_to_what_a_model_holds() -> None:
    rows = poisson_trace(1.0, 500, Lengths(10, 3.0, 50), Lengths(1, 2.0, 50), seed=0)
    assert {row.num_prompt for row in rows} >= {1, 50}
    assert all(1 <= length <= 50 for row in rows for length in (row.num_prompt, row.num_output))


def test_a_rate_is_positive() -> None:
    with pytest.raises(UsageError, match=r"arrival rate is 0\.0"):
        poisson_trace(0.0, 1, Lengths(1, 0, 1), Lengths(1, 0, 1), seed=0)


def test_arrivals_ask_for_exactly_the_lengths_of_their_rows() -> None:
    slo = Slo(ttft_s=1.0)
    rows = [TraceRow(0.5, 40, 7), TraceRow(0.5, 1, 1)]
    arrivals = list(arrivals_of(rows, vocab_size=1000, slo=slo))
    assert [one.at_s for one in arrivals] == [0.5, 0.5]
    assert [len(one.request.prompt) for one in arrivals] == [40, 1]
    assert [one.request.sampling.max_tokens for one in arrivals] == [7, 1]
    assert all(one.request.sampling.ignore_eos and one.request.slo is slo for one in arrivals)
    assert len({one.request.id for one in arrivals}) == 2
    for one in arrivals:
        one.request.sampling.validate(1000)


def test_made_up_prompts_share_no_prefix_and_stay_in_the_vocabulary() -> None:
    prompts = [made_up_prompt(index, 5, vocab_size=10) for index in range(100)]
    assert len({prompt[:2] for prompt in prompts}) == 100
    assert len({prompt[0] for prompt in prompts[:10]}) == 10
    assert all(0 <= token < 10 for prompt in prompts for token in prompt)
