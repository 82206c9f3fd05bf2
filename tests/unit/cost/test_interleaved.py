"""Interleaved steps: the longer part and some of the shorter one, never dearer than one after the other."""

from __future__ import annotations

from itertools import islice

import pytest
from tests.unit.cost.invented import LLAMA_8B, bare

from plait.core.errors import UsageError
from plait.core.step import ChunkShape, StepShape
from plait.cost.hardware import find_hardware
from plait.cost.interleaved import InterleavedModel
from plait.cost.roofline import RooflineModel
from plait.cost.solo import decode_shape, prefill_shape
from plait.model.cost import Formats

A100 = bare(find_hardware("a100-80g"))
ROOFLINE = RooflineModel(
    LLAMA_8B, Formats(default_weight_bytes=2.0, default_cache_bytes=2.0, activation_bytes=2.0), A100
)
UNITS = A100.share_units
BALANCED = StepShape((*decode_shape(100, 3000).chunks, ChunkShape(0, 900, 1)))


def test_a_balanced_step_takes_what_takes_longer() -> None:
    products, attention = ROOFLINE.parts(BALANCED, UNITS)
    overhead_s = ROOFLINE.overhead_s(BALANCED)
    for gamma in (0.0, 0.3, 1.0):
        price = InterleavedModel(ROOFLINE, gamma).price(BALANCED, UNITS)
        serial = ROOFLINE.price(BALANCED, UNITS)
        both = max(products, attention) + gamma * min(products, attention) + overhead_s
        assert price.expected_s == pytest.approx(min(both, serial.expected_s))
        assert price.worst_s == serial.worst_s >= price.expected_s
    serial_s = ROOFLINE.price(BALANCED, UNITS).expected_s
    assert InterleavedModel(ROOFLINE, 0.0).price(BALANCED, UNITS).expected_s < 0.75 * serial_s


def test_halves_read_weights_twice_so_that_a_small_step_stays_whole() -> None:
    for shape in (decode_shape(1, 100), prefill_shape(64), StepShape(())):
        assert InterleavedModel(ROOFLINE).price(shape, UNITS).expected_s == ROOFLINE.price(shape, UNITS).expected_s
    # Keys of one row are not worth another reading of 16 GB.
    products, _ = ROOFLINE.parts(decode_shape(2, 100), UNITS)
    assert products == pytest.approx(2 * ROOFLINE.price(decode_shape(1, 0), UNITS).expected_s, rel=0.05)


@pytest.mark.parametrize("shape", [decode_shape(40, 3000), decode_shape(1, 5), BALANCED])
def test_runs_have_the_prices_of_their_steps(shape: StepShape) -> None:
    model = InterleavedModel(ROOFLINE)
    later = [
        StepShape(tuple(chunk._replace(start=chunk.start + place) for chunk in shape.chunks)) for place in range(5)
    ]
    assert list(islice(model.run_prices(shape, UNITS), 5)) == [model.price(one, UNITS).expected_s for one in later]


def test_beside_others_steps_are_not_halved() -> None:
    beside = (prefill_shape(2048),)
    shape = decode_shape(100, 3000)
    assert InterleavedModel(ROOFLINE).price(shape, 54, beside) == ROOFLINE.price(shape, 54, beside)


def test_interference_is_a_part() -> None:
    with pytest.raises(UsageError, match=r"interference is 1\.5; it must be between 0 and 1"):
        InterleavedModel(ROOFLINE, 1.5)
