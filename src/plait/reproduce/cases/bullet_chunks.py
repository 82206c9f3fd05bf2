"""Bullet's chunk arithmetic: a prompt of 16k tokens in chunks, on one A100 with Llama-3.1-8B.

Owns the counts (exact) and the times that follow from the published utilisations: how much longer chunks become, and
what the whole prompt takes.
"""

from __future__ import annotations

from plait.core.step import ChunkShape, StepShape
from plait.cost.chunking import iterations, key_reads
from plait.cost.hardware import find_hardware
from plait.model.cost import cost_sheet
from plait.reproduce.band import Near
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import BULLET, Evidence, Figure, Reference
from plait.reproduce.models import BF16, llama_8b

PROMPT = 16384
PEAK, FIRST, LAST = 0.77, 0.71, 0.61
LOSS_2K = 0.07
"""Of utilisation, by chunks of 2,048 tokens."""

UTILISATION = Reference(BULLET, "2.1", "utilisation falls from 71 to 61 % over chunks of 1,024 tokens")
SUSTAINED = Reference(BULLET, "2.1", "sustained utilisation is 77 %")
LOSSES = Reference(BULLET, "2.1", "chunks of 2,048 tokens cut the loss of utilisation from 18 to 7 %")


def _reference(what: str) -> Reference:
    return Reference(BULLET, "2.1", what)


def chunk_flops(chunk: int) -> list[float]:
    """FLOPs of each chunk of the prompt, counted op by op; logits of the last token alone."""
    sheet = cost_sheet(llama_8b(), BF16)
    found = []
    for start in range(0, PROMPT, chunk):
        is_last = start + chunk >= PROMPT
        shape = StepShape((ChunkShape(start, min(chunk, PROMPT - start), int(is_last)),))
        found.append(sum(cost.count * cost.flops for cost in sheet.costs(shape)))
    return found


def chunk_times(chunk: int, first: float, last: float) -> list[float]:
    """Seconds of each chunk if utilisation falls evenly from `first` to `last`."""
    peak = find_hardware("a100-80g").flops_per_s
    flops = chunk_flops(chunk)
    fall = (first - last) / max(1, len(flops) - 1)
    return [one / (peak * (first - place * fall)) for place, one in enumerate(flops)]


def _work_out() -> Answers:
    counts = {f"{what}, chunks of {chunk:,}": count for chunk in (1024, 2048) for what, count in _counts(chunk)}
    whole = sum(chunk_times(PROMPT, PEAK, PEAK))
    small = chunk_times(1024, FIRST, LAST)
    large = chunk_times(2048, PEAK * (1 - LOSS_2K), PEAK * (1 - LOSS_2K))
    return {
        **counts,
        "whole prompt": whole,
        "first chunk of 1,024": 1e3 * small[0],
        "last chunk of 1,024": 1e3 * small[-1],
        "last over first chunk": small[-1] / small[0],
        "all chunks over the whole": sum(small) / whole,
        "chunks of 2,048 over 1,024": (sum(large) / len(large)) / (sum(small) / len(small)),
    }


def _counts(chunk: int) -> list[tuple[str, int]]:
    number = iterations(PROMPT, chunk)
    return [("iterations", number), ("readings of keys", key_reads(number))]


EXACT = {
    "iterations, chunks of 1,024": "16",
    "readings of keys, chunks of 1,024": "136",
    "iterations, chunks of 2,048": "8",
    "readings of keys, chunks of 2,048": "36",
}
LOSS_NOTE = "the loss of 7 % is read as 7 % of the sustained 77 %, the same for every chunk; of what it is, is not said"


def _figures() -> tuple[Figure, ...]:
    both = (SUSTAINED, UTILISATION)
    return (
        *(Figure(name, _reference(name), "", worked_out=number) for name, number in EXACT.items()),
        _worked_out("whole prompt", SUSTAINED, "1.245", " s", (SUSTAINED,)),
        _worked_out("first chunk of 1,024", _reference("first chunk"), "66", " ms", (UTILISATION,)),
        _worked_out("last chunk of 1,024", _reference("last chunk"), "120", " ms", (UTILISATION,)),
        _published("last over first chunk", "1.9", "1.82", (UTILISATION,)),
        _published("all chunks over the whole", "1.13", "1.18", both),
        _published("chunks of 2,048 over 1,024", "1.86", "", (*both, LOSSES), LOSS_NOTE),
    )


def _worked_out(name: str, reference: Reference, number: str, unit: str, inputs: tuple[Reference, ...]) -> Figure:
    """A time that the paper does not print."""
    return Figure(name, reference, "", unit=unit, evidence=Evidence.SIMULATED, worked_out=number, calibrated_on=inputs)


def _published(name: str, printed: str, number: str, inputs: tuple[Reference, ...], note: str = "") -> Figure:
    """A ratio that the paper measured."""
    return Figure(
        name,
        _reference(name),
        printed,
        Near(0.1),
        "x",
        Evidence.SIMULATED,
        worked_out=number,
        calibrated_on=inputs,
        note=note,
    )


CASE = Case("bullet-chunks", "a prompt of 16k tokens in chunks, one A100", BULLET, _figures(), _work_out)
