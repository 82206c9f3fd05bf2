"""Figures: rates and latencies from timestamps, and what errors and short answers do to them."""

from __future__ import annotations

import pytest
from bench.serving.figures import Answer, figures_of, percentile
from bench.serving.workloads import workloads_named

W1, W3, W5 = workloads_named("w1,w3,w5")


def answer(due: float, tokens: tuple[float, ...], *, prompt: int = 10, wanted: int | None = None) -> Answer:
    return Answer(due, tokens, tokens[-1], prompt, len(tokens), len(tokens) if wanted is None else wanted)


def test_one_stream_decodes_from_its_first_token_on() -> None:
    values = figures_of(W1, [answer(100.0, (102.0, 102.5, 103.0, 103.5))]).values
    assert values["decode_tokens_per_s"] == pytest.approx(2.0)
    assert values["ttft_p50_s"] == pytest.approx(2.0)
    assert values["seconds"] == pytest.approx(3.5)


def test_many_at_once_are_counted_from_the_first_due_to_the_last_end() -> None:
    values = figures_of(W3, [answer(0.0, (1.0, 2.0)), answer(1.0, (2.0, 3.0, 4.0))]).values
    assert values["output_tokens_per_s"] == pytest.approx(5 / 4)
    assert values["total_tokens_per_s"] == pytest.approx(25 / 4)
    assert "ttft_p50_s" not in values


def test_latencies_are_percentiles_over_requests_and_gaps() -> None:
    values = figures_of(W5, [answer(0.0, (1.0, 1.1, 1.2)), answer(0.0, (3.0, 3.1, 3.6)), answer(0.0, (5.0,))]).values
    assert values["ttft_p50_s"] == pytest.approx(3.0)
    assert values["tpot_p50_s"] == pytest.approx(0.2)
    assert values["itl_p99_s"] == pytest.approx(0.1 + 0.97 * 0.4)


def test_errors_and_short_answers_are_counted_and_errors_measure_nothing() -> None:
    failed = Answer(0.0, (), 0.001, 10, 0, 4, "HTTP/1.1 503 busy")
    figures = figures_of(W3, [answer(0.0, (2.0,), wanted=4), failed])
    assert (figures.num_errors, figures.num_short, figures.first_error) == (1, 2, "HTTP/1.1 503 busy")
    assert figures.values["output_tokens_per_s"] == pytest.approx(0.5)
    assert figures_of(W1, [failed]).values.get("decode_tokens_per_s") is None


@pytest.mark.parametrize(
    ("values", "fraction", "expected"),
    [([], 0.5, 0.0), ([7.0], 0.99, 7.0), ([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0, 2.0], 0.75, 1.75), ([1.0, 9.0], 1.0, 9.0)],
)
def test_percentiles_lie_between_the_nearest_values(values: list[float], fraction: float, expected: float) -> None:
    assert percentile(values, fraction) == pytest.approx(expected)
