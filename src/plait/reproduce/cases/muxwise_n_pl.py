"""MuxWise's N_PL: layers of a prefill to launch beside a decode step.

Owns the worked example, and what the rule promises: never none, and long enough to cover the step.
"""

from __future__ import annotations

from itertools import product

from plait.cost.partitions import layers_to_launch
from plait.reproduce.band import Between
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import MUXWISE, Figure, Reference

LAYERS = 80
DECODE_MS, PREFILL_MS = (1, 8, 25, 80, 400), (5, 80, 505, 842, 30_000)

RULE = Reference(MUXWISE, "3.4", "N_PL = ceil(T_d N_T / T_P)")
COVERS = Reference(MUXWISE, "3.2", "launched layers cover the decode step")


def _work_out() -> Answers:
    pairs = list(product(DECODE_MS, PREFILL_MS))
    launched = {pair: layers_to_launch(pair[0] / 1e3, pair[1] / 1e3, LAYERS) for pair in pairs}
    cover = [launched[pair] / LAYERS * pair[1] / pair[0] for pair in pairs if pair[1] >= pair[0]]
    return {
        "T_d 80 ms, T_P 842 ms, 80 layers": launched[80, 842],
        "fewest, 25 pairs of T_d and T_P": min(launched.values()),
        "their time over T_d, at least": min(cover),
    }


CASE = Case(
    "muxwise-n-pl",
    "layers of a prefill beside a decode step",
    MUXWISE,
    (
        Figure("T_d 80 ms, T_P 842 ms, 80 layers", RULE, "", worked_out="8"),
        Figure("fewest, 25 pairs of T_d and T_P", COVERS, "1", Between(low=1), note="never 0"),
        Figure(
            "their time over T_d, at least",
            COVERS,
            "1",
            Between(low=1),
            unit="x",
            note="over pairs whose prefill is no shorter than the decode step",
        ),
    ),
    _work_out,
)
