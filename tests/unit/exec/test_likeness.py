"""Likeness: figures that can be worked out by hand, and divergence against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from plait.exec.likeness import Likeness, likeness
from plait.exec.scoring import Rows


def rows(logits: list[list[float]], *logprobs: float) -> Rows:
    return Rows(np.array(logits, np.float32), logprobs)


def test_equal_rows_differ_by_exactly_nothing() -> None:
    logits = np.random.default_rng(1).normal(0, 5, (3, 1000)).astype(np.float32)
    same = likeness(Rows(logits, (-1.0, -2.0, -3.0)), Rows(logits.copy(), (-1.0, -2.0, -3.0)))
    assert (same.num_tokens, same.num_equal, same.num_logits) == (3, 3, 3000)
    assert (same.distance, same.largest_distance, same.divergence, same.squared_error) == (0.0, 0.0, 0.0, 0.0)
    assert same.true_loss == same.given_loss == 6.0


def test_losses_and_distances_are_of_the_targets() -> None:
    one = likeness(rows([[1.0, 0.0], [0.0, 1.0]], -1.0, -2.0), rows([[1.0, 0.0], [0.0, 1.0]], -1.5, -1.75))
    assert (one.true_loss, one.given_loss) == (3.0, 3.25)
    assert (one.distance, one.largest_distance) == (0.75, 0.5)


def test_rows_agree_where_the_likeliest_token_is_the_same() -> None:
    true = rows([[3.0, 1.0, 0.0], [0.0, 1.0, 2.0], [5.0, 0.0, 0.0]], -1.0, -1.0, -1.0)
    given = rows([[2.0, 1.0, 0.0], [0.0, 2.0, 1.0], [0.1, 0.0, 0.0]], -1.0, -1.0, -1.0)
    assert likeness(true, given).num_equal == 2


def test_errors_of_logits_are_summed_over_all_of_them() -> None:
    one = likeness(rows([[8.0, -10.0]], -1.0), rows([[7.0, -7.0]], -1.0))
    assert (one.squared_error, one.largest_error, one.largest_logit) == (10.0, 3.0, 10.0)


@pytest.mark.parametrize("spread", [1e-3, 0.1, 5.0, 200.0])
def test_divergence_is_that_of_the_definition(spread: float) -> None:
    random = np.random.default_rng(2)
    true = random.normal(0, 4, 5000).astype(np.float32)
    given = true + random.normal(0.5, spread, 5000).astype(np.float32)
    p, q = (wide - np.logaddexp.reduce(wide) for wide in (true.astype(np.float64), given.astype(np.float64)))
    expected = float((np.exp(p) * (p - q)).sum())
    found = likeness(Rows(true[None], (-1.0,)), Rows(given[None], (-1.0,))).divergence
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_rows_that_have_nothing_to_do_with_each_other_are_far_apart() -> None:
    assert likeness(rows([[900.0, 0.0]], -1.0), rows([[0.0, 900.0]], -1.0)).divergence == pytest.approx(900.0)


def test_an_error_that_all_logits_share_is_no_divergence() -> None:
    true = np.random.default_rng(3).normal(0, 4, 1000).astype(np.float32)
    moved = likeness(Rows(true[None], (-1.0,)), Rows(true[None] + np.float32(2), (-1.0,)))
    assert moved.divergence < 1e-12


def test_a_text_is_the_sum_of_its_parts() -> None:
    random = np.random.default_rng(4)
    true, given = (random.normal(0, 4, (6, 50)).astype(np.float32) for _ in range(2))
    logprobs = tuple(float(one) for one in random.normal(-3, 1, 12))
    whole = likeness(Rows(true, logprobs[:6]), Rows(given, logprobs[6:]))
    parts = [
        likeness(Rows(true[cut], logprobs[:6][cut]), Rows(given[cut], logprobs[6:][cut]))
        for cut in (slice(0, 2), slice(2, 6))
    ]
    total = sum(parts, Likeness())
    assert total.num_tokens == whole.num_tokens == 6
    assert total.largest_error == whole.largest_error
    assert total.divergence == pytest.approx(whole.divergence)
    assert total.given_loss == pytest.approx(whole.given_loss)
