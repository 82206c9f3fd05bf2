"""The words of --ablate."""

from __future__ import annotations

import pytest

from plait.config.ablations import ABLATIONS, OF_MEMORY, OF_SCHEDULERS, memory_ablations, scheduler_ablations, some_of
from plait.kv import rules

parse = some_of(ABLATIONS)


@pytest.mark.parametrize(
    ("text", "memory", "scheduler"),
    [
        ("none", (), ()),
        ("tails", ("tails",), ()),
        (" tails , balance,tails", ("tails", "balance"), ()),
        ("guard, layers,guard,alignment", ("alignment",), ("guard", "layers")),
    ],
)
def test_ablations_are_names_with_commas(text: str, memory: tuple[str, ...], scheduler: tuple[str, ...]) -> None:
    assert memory_ablations(parse(text)) == memory
    assert scheduler_ablations(parse(text)) == scheduler


@pytest.mark.parametrize("text", ["", "tail", "tails,", "none,tails", "owners"])
def test_what_is_no_ablation_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="none, or some of request-awareness, alignment, balance, tails"):
        parse(text)


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(ValueError, match="did you mean guard"):
        some_of(OF_SCHEDULERS)("gard")


def test_every_ablation_of_memory_is_a_habit_of_it() -> None:
    assert OF_MEMORY == rules.ABLATIONS
    for name in OF_MEMORY:
        without = rules.rules_without([name])
        assert sum(getattr(without, field) for field in ("by_owner", "aligned", "balanced", "tails")) == 3
