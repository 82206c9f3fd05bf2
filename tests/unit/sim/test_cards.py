"""Cards: surrogates have the published moments, say what is assumed, and come out of a seed."""

from __future__ import annotations

from itertools import islice
from statistics import fmean

import pytest

from plait.core.errors import UsageError
from plait.sim.cards.card import Card, card_names, find_card
from plait.sim.cards.lengths import fitted
from plait.sim.traces.request import TraceRequest

DRAWS = 8000


def draws(card: Card, seed: int = 0, count: int = DRAWS) -> list[TraceRequest]:
    return list(islice(card.requests(seed), count))


def moments(card: Card, name: str) -> dict[str, float]:
    found = card.published[name]
    assert isinstance(found, dict)
    return found


def test_all_cards_that_were_promised_are_there() -> None:
    expected = "burstgpt conversation loogle mmlu openthoughts openvid sharegpt toolagent wildchat"
    assert card_names() == expected.split()


@pytest.mark.parametrize("name", card_names())
def test_means_are_the_published_ones_and_ends_are_kept(name: str) -> None:
    card = find_card(name)
    assert card.source
    assert card.assumed
    found = draws(card)
    for key, lengths, fit in (
        ("input_tokens", [one.num_prompt for one in found], card.prompt),
        ("output_tokens", [one.num_output for one in found], card.output),
    ):
        published = moments(card, key)
        assert fit.mean == pytest.approx(published["mean"], rel=1e-6)
        assert fmean(lengths) == pytest.approx(published["mean"], rel=0.08)
        assert min(lengths) >= published.get("min", 1)
        assert max(lengths) <= published.get("max", 131_072)


@pytest.mark.parametrize("name", card_names())
def test_a_card_is_a_function_of_its_seed(name: str) -> None:
    card = find_card(name)
    assert draws(card, 1, 50) == draws(card, 1, 50)
    if card.prompt.sigma:
        assert draws(card, 1, 50) != draws(card, 2, 50)


@pytest.mark.parametrize("name", ["toolagent", "conversation"])
def test_conversations_reuse_as_much_as_was_published(name: str) -> None:
    card = find_card(name)
    seen: set[int] = set()
    reused = []
    for one in draws(card, count=20_000):
        reused.append(one.block_tokens * sum(block in seen for block in one.blocks))
        seen.update(one.blocks)
    assert fmean(reused) == pytest.approx(moments(card, "reused_tokens")["mean"], rel=0.05)
    assert min(reused) == 0


@pytest.mark.parametrize(
    ("name", "share", "groups"), [("mmlu", 0.8646, 57), ("wildchat", 0.19, 1), ("burstgpt", 0.02, 1)]
)
def test_common_beginnings_make_the_published_share(name: str, share: float, groups: int) -> None:
    found = draws(find_card(name))
    assert len({one.blocks for one in found}) == groups
    common = sum(min(one.block_tokens, one.num_prompt) for one in found) / sum(one.num_prompt for one in found)
    assert common == pytest.approx(share, rel=0.05)


def test_a_reasoning_card_has_one_system_prompt() -> None:
    assert {(one.blocks, one.block_tokens) for one in draws(find_card("OpenThoughts"), count=100)} == {((0,), 243)}


def test_the_fit_is_the_lognormal_of_its_moments() -> None:
    wide = fitted(1, 1000.0, 1 << 40, sigma=0.5)
    assert (wide.sigma, wide.mean) == (0.5, pytest.approx(1000.0))
    constant = fitted(243, 243.0, 243)
    assert constant.mean == 243


def test_an_unknown_card_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no card is called 'chatgpt'; choose one of burstgpt, conversation"):
        find_card("chatgpt")
