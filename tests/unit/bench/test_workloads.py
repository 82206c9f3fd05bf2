"""Workloads and prompts: lengths, sharing and arrivals as they are defined, words that are always new."""

from __future__ import annotations

import random
from functools import partial

import pytest
from bench.serving.prompts import Word, prompt, whole_words
from bench.serving.workloads import WORKLOADS, Ask, Draw, Sizes, workloads_named

WORDS = [Word(token, f"word{token}") for token in range(1000)]


def draw_with(seed: int) -> Draw:
    return partial(prompt, random.Random(seed), WORDS)


def asks_of(name: str, *, sizes: Sizes | None = None, shapes: int = 0, words: int = 0) -> list[Ask]:
    workload = workloads_named(name)[0]
    return workload.asks(sizes or Sizes(), random.Random(shapes), draw_with(words))


def test_w1_to_w4_have_the_lengths_of_their_definition() -> None:
    lengths = {
        name: [(len(ask.prompt), ask.output_tokens) for ask in asks_of(name)] for name in ("w1", "w2", "w3", "w4")
    }
    assert lengths == {"w1": [(128, 128)], "w2": [(1024, 1)], "w3": [(128, 128)] * 64, "w4": [(800, 64)] * 64}


def test_w4_shares_its_beginning_and_nothing_else() -> None:
    prompts = [ask.prompt for ask in asks_of("w4")]
    assert len({words[:768] for words in prompts}) == 1
    assert len({words[768:] for words in prompts}) == 64


def test_w5_arrives_within_its_time_with_lengths_within_their_bounds() -> None:
    asks = asks_of("w5", sizes=Sizes(arrivals_per_s=50.0))
    arrivals = [ask.arrival_s for ask in asks]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] <= 60.0
    assert 2700 < len(asks) < 3300
    assert {8 <= len(ask.prompt) <= 1024 and 4 <= ask.output_tokens <= 256 for ask in asks} == {True}
    assert 300 < sum(len(ask.prompt) for ask in asks) / len(asks) < 370
    assert 75 < sum(ask.output_tokens for ask in asks) / len(asks) < 92


def test_the_words_change_neither_lengths_nor_arrivals() -> None:
    first, second = asks_of("w5", words=1), asks_of("w5", words=2)
    assert [(len(a.prompt), a.output_tokens, a.arrival_s) for a in first] == [
        (len(a.prompt), a.output_tokens, a.arrival_s) for a in second
    ]
    assert all(a.prompt != b.prompt for a, b in zip(first, second, strict=True))
    assert asks_of("w5", shapes=1) != asks_of("w5", shapes=2)


def test_other_requests_at_once_means_other_words() -> None:
    assert len({ask.prompt for ask in asks_of("w3")}) == 64


def test_workloads_are_chosen_by_name() -> None:
    assert [one.name for one in workloads_named("w3, W1")] == ["W3", "W1"]
    assert workloads_named("w1,w2,w3,w4,w5") == list(WORKLOADS)
    with pytest.raises(ValueError, match="'W6' is no workload; choose from W1, W2, W3, W4, W5"):
        workloads_named("w1,w6")


def test_whole_words_are_lower_case_and_begin_with_a_space() -> None:
    filler = [f"\u0120{first}{second}ord" for first in "abcdefghijkl" for second in "abcdefghijkl"]
    odd = ["word", "\u0120", "\u0120to", "\u0120Word", "\u0120wo1d", "\u0120caf\u00e9", "\u0120wonderful", "<|end|>"]
    words = whole_words([*odd, *filler, "\u0120three"])
    assert len(words) == len(filler) + 1
    assert words[-1] == Word(len(odd) + len(filler), "three")
    assert all(word.token >= len(odd) for word in words)


def test_a_vocabulary_without_such_words_is_refused() -> None:
    with pytest.raises(ValueError, match="the vocabulary has 1 whole words and at least 100 are needed"):
        whole_words(["\u0120word", "\u2581piece"])
