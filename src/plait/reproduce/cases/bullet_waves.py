"""Bullet's utilisation of chunks, foretold by whole tiles and waves alone: no utilisation goes in.

Owns the comparison. The size of tiles is what Table 2 gives (`bullet_table_2`); the rest is the roofline with waves.
"""

from __future__ import annotations

from dataclasses import replace

from plait.core.step import ChunkShape, StepShape
from plait.cost.hardware import find_hardware
from plait.cost.roofline import RooflineModel
from plait.reproduce.band import Near
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.bullet_chunks import PROMPT, chunk_flops
from plait.reproduce.cases.bullet_table_2 import TILE_INPUTS
from plait.reproduce.figure import BULLET, Evidence, Figure, Reference
from plait.reproduce.models import BF16_NEAR_CACHE, llama_8b

EARLY = "waves explain what a chunk loses against the whole prompt"
WHOLE = "the whole prompt comes too near to its peak, where 77 % are published"
LATE = (
    "a chunk behind a long context is no worse by waves, as its attention has more blocks; what makes it worse on the "
    "device, attention below its peak and keys read again, is not in a roofline without alpha"
)


def chunk_times(chunk: int) -> list[float]:
    """Seconds of each chunk of the prompt on a whole A100, without overhead."""
    device = replace(find_hardware("a100-80g"), step_overhead_s=0.0)
    model = RooflineModel(llama_8b(), BF16_NEAR_CACHE, device, waves=True)
    starts = range(0, PROMPT, chunk)
    shapes = [StepShape((ChunkShape(start, chunk, int(start + chunk >= PROMPT)),)) for start in starts]
    return [model.price(shape, device.share_units).expected_s for shape in shapes]


def _work_out() -> Answers:
    peak = find_hardware("a100-80g").flops_per_s
    small, large, whole = (chunk_times(chunk) for chunk in (1024, 2048, PROMPT))
    used = [100 * flops / (peak * seconds) for flops, seconds in zip(chunk_flops(1024), small, strict=True)]
    return {
        "utilisation, first chunk of 1,024": used[0],
        "utilisation, last chunk of 1,024": used[-1],
        "last over first chunk": small[-1] / small[0],
        "all chunks over the whole": sum(small) / whole[0],
        "chunks of 2,048 over 1,024": (sum(large) / len(large)) / (sum(small) / len(small)),
    }


def _figure(name: str, printed: str, unit: str, note: str) -> Figure:
    return Figure(
        name,
        Reference(BULLET, "2.1", name),
        printed,
        Near(0.1),
        unit,
        Evidence.SIMULATED,
        calibrated_on=TILE_INPUTS,
        note=note,
    )


CASE = Case(
    "bullet-waves",
    "utilisation of chunks by waves alone, one A100",
    BULLET,
    (
        _figure("utilisation, first chunk of 1,024", "71", " %", EARLY),
        _figure("utilisation, last chunk of 1,024", "61", " %", LATE),
        _figure("last over first chunk", "1.9", "x", LATE),
        _figure("all chunks over the whole", "1.13", "x", WHOLE),
        _figure("chunks of 2,048 over 1,024", "1.86", "x", EARLY),
    ),
    _work_out,
)
