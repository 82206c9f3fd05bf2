"""MuxWise's contention guard: its grid of co-running pairs, and how much slower decode becomes at worst.

Owns the count of the grid, and what the roofline foretells for every point of it without knowing the answer: the cap on
slowdowns that hardware files hold is the published maximum, so it is taken away here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from plait.cost.guard import Pair, grid_points
from plait.cost.hardware import find_hardware
from plait.cost.partitions import splits
from plait.cost.roofline import RooflineModel
from plait.cost.solo import decode_shape, prefill_shape
from plait.model.cost import Parallel
from plait.model.program import Program
from plait.reproduce.band import Between, Equal
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.bullet_roofline import KNEE
from plait.reproduce.figure import BULLET, MUXWISE, Evidence, Figure, Reference
from plait.reproduce.models import BF16_NEAR_CACHE, llama_8b, llama_70b

DEVICES = {"A100": ("a100-80g", 1.2), "H100": ("h100-80g", 1.3)}
"""The device's file, and the largest slowdown that the paper saw."""
MANY_SMS = 0.6
PREFILL_LIMIT = 1.08
GRID = Reference(MUXWISE, "3.3", "7,200 samples")
PREFILL = Reference(BULLET, "2.3", "products with more than 60 % of the SMs lose less than 8 % beside a copy")
BATCHES = "the paper says about 20 decode batch sizes and names none; these are 20 from 1 to 256"
H100_KNEE = "the H100's memory knee is not published; it is assumed from the A100's bytes per SM"
UNCAPPED = "the largest of the grid, by the proportional sharing of bandwidth, without the cap that hardware files hold"


@cache
def models() -> dict[str, tuple[Program, Parallel | None]]:
    return {"8B": (llama_8b(), None), "70B, 8 ranks": (llama_70b(), Parallel(tensor=8))}


def slowdown(model: RooflineModel, pair: Pair, of_prefill: bool = False) -> float:
    """Time beside the other step over time alone, of the decode step or of the prefill."""
    decode = decode_shape(int(pair.batch), int(pair.context))
    prefill = prefill_shape(int(pair.new_tokens), int(pair.reused_tokens))
    mine, other, share = (decode, prefill, pair.share)
    if of_prefill:
        mine, other, share = prefill, decode, model.hardware.share_units - pair.share
    return model.price(mine, share, (other,)).expected_s / model.price(mine, share).expected_s


def pairs_on(model: RooflineModel) -> Iterator[Pair]:
    return grid_points([split.decode for split in splits(model.hardware.share_units)])


def _model(device: str, program: Program, parallel: Parallel | None) -> RooflineModel:
    hardware = replace(find_hardware(DEVICES[device][0]), worst_slowdown=None)
    return RooflineModel(program, BF16_NEAR_CACHE, hardware, parallel)


def _work_out() -> Answers:
    found: dict[str, float] = {}
    for device in DEVICES:
        for name, (program, parallel) in models().items():
            model = _model(device, program, parallel)
            found[_name(device, name)] = max(slowdown(model, pair) for pair in pairs_on(model))
    model = _model("A100", *models()["8B"])
    wide = [pair for pair in pairs_on(model) if 1 - pair.share / model.hardware.share_units > MANY_SMS]
    found["prefill beside decode, A100, 8B"] = max(slowdown(model, pair, of_prefill=True) for pair in wide)
    return {"points of the grid": sum(1 for _ in pairs_on(model)), **found}


def _name(device: str, model: str) -> str:
    return f"decode beside prefill, {device}, {model}"


def _figures() -> tuple[Figure, ...]:
    decode = [
        Figure(
            _name(device, model),
            Reference(MUXWISE, "3.3", f"decode slows down by at most {limit}x on {device}"),
            f"{limit}",
            Between(1.0, limit),
            "x",
            Evidence.SIMULATED,
            calibrated_on=(KNEE,),
            note=UNCAPPED if device == "A100" else f"{UNCAPPED}; {H100_KNEE}",
        )
        for device, (_, limit) in DEVICES.items()
        for model in models()
    ]
    return (
        Figure("points of the grid", GRID, "7,200", Equal(), note=BATCHES),
        *decode,
        Figure(
            "prefill beside decode, A100, 8B",
            PREFILL,
            f"{PREFILL_LIMIT}",
            Between(1.0, PREFILL_LIMIT),
            "x",
            Evidence.SIMULATED,
            calibrated_on=(KNEE,),
            note="a whole prefill beside decode, where the paper measures one product beside a copy",
        ),
    )


CASE = Case("muxwise-guard", "slowdown of steps that run side by side", MUXWISE, _figures(), _work_out)
