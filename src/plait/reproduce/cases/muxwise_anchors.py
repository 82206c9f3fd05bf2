"""MuxWise's two times of one step: Llama-70B on eight A100 with tensor parallelism.

Owns the calibration on the long step and the prediction of the short one by the priced Program.
"""

from __future__ import annotations

from functools import cache

from plait.core.step import ChunkShape, StepShape
from plait.cost.hardware import find_hardware
from plait.cost.roofline import RooflineModel
from plait.model.cost import Parallel
from plait.reproduce.band import Near, Printed
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import BULLET, MUXWISE, Evidence, Figure, Reference
from plait.reproduce.models import BF16, llama_70b

DECODE_ROWS, CONTEXT = 32, 1024
LONG, SHORT = 4096, 256
LONG_S = 0.505

LONG_STEP = Reference(MUXWISE, "3.1", f"a step of {LONG:,} tokens takes 505 ms")
SHORT_STEP = Reference(MUXWISE, "3.1", f"a step of {SHORT} tokens holds 100 ms")
MEAN_ALPHA = Reference(BULLET, "2.3", "mean calibration factor")


@cache
def _model() -> RooflineModel:
    return RooflineModel(llama_70b(), BF16, find_hardware("a100-80g"), Parallel(tensor=8))


@cache
def alpha_of_long() -> float:
    """The factor that makes the long step take what it is said to take."""
    return (LONG_S - _overhead_s()) / _bare_s(step_of(LONG))


def step_ms(shape: StepShape) -> float:
    """What a step takes by that factor."""
    return 1e3 * (alpha_of_long() * _bare_s(shape) + _overhead_s())


def _bare_s(shape: StepShape) -> float:
    return _model().price(shape, _model().hardware.share_units).expected_s - _overhead_s()


def _overhead_s() -> float:
    device = _model().hardware
    return device.step_overhead_s + device.seq_overhead_s * (DECODE_ROWS + 1)


def _work_out() -> Answers:
    return {
        f"step of {LONG:,} tokens": step_ms(step_of(LONG)),
        "alpha": alpha_of_long(),
        f"step of {SHORT} tokens": step_ms(step_of(SHORT)),
    }


def step_of(tokens: int) -> StepShape:
    """32 sequences of 1,024 tokens decode; the rest of the budget is the beginning of a prompt."""
    return StepShape((ChunkShape(0, tokens - DECODE_ROWS, 1), *(ChunkShape(CONTEXT, 1, 1),) * DECODE_ROWS))


CASE = Case(
    "muxwise-anchors",
    "steps of Llama-70B on eight A100",
    MUXWISE,
    (
        Figure(
            f"step of {LONG:,} tokens",
            LONG_STEP,
            "505",
            Printed(),
            " ms",
            Evidence.SIMULATED,
            calibrated_on=(LONG_STEP,),
        ),
        Figure(
            "alpha",
            MEAN_ALPHA,
            "1.61",
            Near(0.1),
            "",
            Evidence.SIMULATED,
            calibrated_on=(LONG_STEP,),
            note="Bullet's mean, of Llama-8B on one A100 and Qwen3-32B on H20, beside what MuxWise's step asks for",
        ),
        Figure(
            f"step of {SHORT} tokens",
            SHORT_STEP,
            "100",
            Near(0.25),
            " ms",
            Evidence.SIMULATED,
            calibrated_on=(LONG_STEP,),
            note=(
                "one factor for steps of every size does not give it. The paper says that launching a prefill takes "
                "tens of ms of processor time (10 ms with piecewise graphs); a price has 0.5 ms. It may also mean "
                "longer contexts: 100 ms is the limit that 256 tokens hold, not a measured step, and 32 sequences of "
                "65,536 tokens take 99 ms here"
            ),
        ),
    ),
    _work_out,
)
