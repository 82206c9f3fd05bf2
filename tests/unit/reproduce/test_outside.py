"""Figures that lie outside their bands: what the page says about why is what the formulas give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.core.step import ChunkShape, StepShape
from plait.cost.guard import Pair
from plait.cost.hardware import find_hardware
from plait.cost.roofline import RooflineModel
from plait.model.cost import Parallel
from plait.reproduce.cases.muxwise_anchors import alpha_of_long, step_ms
from plait.reproduce.cases.muxwise_guard import slowdown
from plait.reproduce.models import BF16_NEAR_CACHE, llama_70b

LONGEST = 131072
SHORT = Pair(share=52, new_tokens=2048, reused_tokens=2048, batch=112, context=LONGEST)
NEXT = Pair(share=68, new_tokens=2048, reused_tokens=2048, batch=160, context=LONGEST)


def slowdown_with(knee: int, pair: Pair) -> float:
    hardware = replace(find_hardware("h100-80g"), worst_slowdown=None, memory_knee_units=float(knee))
    return slowdown(RooflineModel(llama_70b(), BF16_NEAR_CACHE, hardware, Parallel(tensor=8)), pair)


@pytest.mark.parametrize("knee", [49, 52])
def test_a_split_above_the_knee_is_what_takes_decode_out_of_its_band(knee: int) -> None:
    assert slowdown_with(knee, SHORT) == pytest.approx(1.335, abs=1e-3)


def test_with_a_knee_above_that_split_the_largest_slowdown_is_inside() -> None:
    assert slowdown_with(54, SHORT) == pytest.approx(1.286, abs=1e-3)
    assert [slowdown_with(knee, NEXT) for knee in (56, 66)] == [pytest.approx(1.27, abs=3e-3)] * 2


def test_contexts_that_the_paper_reaches_make_the_short_step_as_long_as_its_target() -> None:
    def step(behind: int, context: int) -> StepShape:
        return StepShape((ChunkShape(behind, 224, 1), *(ChunkShape(context, 1, 1),) * 32))

    assert alpha_of_long() == pytest.approx(1.626, abs=1e-3)
    assert step_ms(step(0, 1024)) == pytest.approx(31.5, abs=0.05)
    assert step_ms(step(0, 65536)) == pytest.approx(98.9, abs=0.05)
    assert step_ms(step(100_000, 32768)) == pytest.approx(110.4, abs=0.05)
