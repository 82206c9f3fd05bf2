"""Prices of a run that are asked for twice are worked out once, and are those of the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from plait.core.step import ChunkShape, StepShape
from plait.cost.last_run import LastRun
from plait.cost.model import Bound, StepPrice

FIRST, OTHER = StepShape((ChunkShape(10, 1, 1), ChunkShape(50, 1, 1))), StepShape((ChunkShape(3, 1, 1),))


class Counting:
    """A cost model whose price is the tokens of context, and which counts how often it is asked."""

    def __init__(self) -> None:
        self.num_asked = 0

    def price(self, shape: StepShape, share: int, beside: Sequence[StepShape] = ()) -> StepPrice:
        self.num_asked += 1
        seconds = float(sum(chunk.start for chunk in shape.chunks)) / share
        return StepPrice(seconds, seconds, Bound.MEMORY)


def test_who_asks_again_gets_the_same_numbers_without_asking_the_model() -> None:
    cost = Counting()
    run = LastRun(cost)
    foreseen = list(islice(run(FIRST, 2), 4))
    assert foreseen == [30.0, 31.0, 32.0, 33.0]
    assert cost.num_asked == 4
    assert list(islice(run(StepShape(tuple(FIRST.chunks)), 2), 6)) == [*foreseen, 34.0, 35.0]
    assert cost.num_asked == 6


def test_another_shape_or_share_is_another_run() -> None:
    run = LastRun(Counting())
    assert list(islice(run(FIRST, 2), 2)) == [30.0, 31.0]
    assert list(islice(run(FIRST, 1), 2)) == [60.0, 62.0]
    assert list(islice(run(OTHER, 1), 2)) == [3.0, 4.0]
    assert list(islice(run(FIRST, 2), 2)) == [30.0, 31.0]


def test_two_who_take_turns_see_all_of_it() -> None:
    run = LastRun(Counting())
    one, other = run(OTHER, 1), run(OTHER, 1)
    assert [next(one), next(other), next(other), next(one), next(one), next(other)] == [3.0, 3.0, 4.0, 4.0, 5.0, 5.0]
