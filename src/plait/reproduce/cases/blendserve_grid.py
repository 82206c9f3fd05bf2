"""BlendServe's grid (figure 11): 13 densities by 5 parts of sharing, blended over depth first.

Owns the published grid. Jobs are small: 40,000 requests on 15 GB, where a job is over before its last long answers are,
which costs both orders and hides some of the gain; the claims are the mean and that sharing hardly matters.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.reproduce.band import Between, Within
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.blendserve_orders import OURS, machine, mix_of
from plait.reproduce.figure import BLENDSERVE, Evidence, Figure, Reference
from plait.reproduce.models import LLAMA_8B_ON_A100
from plait.reproduce.offline_jobs import draw_job
from plait.sched.blend.feeds import JobOrder, Ordering

REQUESTS, MEMORY_BYTES = 40_000, 15e9
SHARING = (0.05, 0.15, 0.25, 0.35, 0.45)
# Of each density: the speed-up over depth-first order, by sharing.
PRINTED = {
    0.80: (1.15, 1.15, 1.16, 1.16, 1.16),
    0.85: (1.14, 1.15, 1.15, 1.15, 1.15),
    0.90: (1.19, 1.19, 1.20, 1.21, 1.20),
    0.95: (1.16, 1.16, 1.17, 1.17, 1.17),
    1.00: (1.21, 1.22, 1.23, 1.24, 1.23),
    1.05: (1.25, 1.25, 1.26, 1.26, 1.25),
    1.10: (1.23, 1.23, 1.23, 1.24, 1.24),
    1.15: (1.25, 1.25, 1.26, 1.26, 1.26),
    1.20: (1.24, 1.25, 1.25, 1.25, 1.26),
    1.25: (1.23, 1.24, 1.24, 1.24, 1.24),
    1.30: (1.34, 1.34, 1.34, 1.34, 1.33),
    1.35: (1.23, 1.23, 1.23, 1.24, 1.24),
    1.40: (1.23, 1.23, 1.24, 1.24, 1.24),
}
NOTE = "40,000 requests on 15 GB; the paper does not say which trace computes, nor how prompts spread"


def speed_up(density: float, sharing: float) -> float:
    job = draw_job(LLAMA_8B_ON_A100, mix_of(density, sharing, REQUESTS))
    here = machine(MEMORY_BYTES)
    blend, dfs = (
        job.run(Ordering(order, job.lives, MEMORY_BYTES), here).seconds for order in (JobOrder.BLEND, JobOrder.DFS)
    )
    return dfs / blend


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def answers(grid: dict[float, list[float]]) -> Answers:
    """Of speed-ups by density, each over all parts of sharing."""
    everything = [one for row in grid.values() for one in row]
    columns = [_mean([row[place] for row in grid.values()]) for place in range(len(SHARING))]
    return {
        "mean": _mean(everything),
        "mean against the published one": _mean(everything),
        "least": min(everything),
        "spread of means along sharing": max(columns) - min(columns),
        **{f"density {density:.2f}": _mean(row) for density, row in grid.items()},
    }


def _figure(name: str, published: str, band: Between | Within, note: str = NOTE) -> Figure:
    reference = Reference(BLENDSERVE, "Fig. 11", name)
    return Figure(name, reference, published, band, "x", Evidence.SIMULATED, note=note)


CASE = Case(
    "blendserve-grid",
    "speed-up over depth-first order by density and sharing",
    BLENDSERVE,
    (
        _figure("mean", "1.2257", Between(low=1.18), OURS),
        _figure("mean against the published one", "1.2257", Within(0.06), OURS),
        _figure("least", "1.14", Between(low=1.0)),
        _figure("spread of means along sharing", "0.02", Between(high=0.02)),
        *(_figure(f"density {density:.2f}", f"{_mean(row):.3f}", Within(0.1)) for density, row in PRINTED.items()),
    ),
    lambda: answers({density: [speed_up(density, sharing) for sharing in SHARING] for density in PRINTED}),
)
