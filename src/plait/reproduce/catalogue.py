"""Catalogue: all cases, in the order in which they are listed.

Owns the list, the one place to change for a new case.
Invariant: names are unique. That calibration is no success is each case's own invariant: another case, with another
model, may foretell a number on which this one calibrates.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.errors import InvariantError
from plait.cost.hardware import HardwareSpec
from plait.reproduce.case import Case
from plait.reproduce.cases import (
    blendserve_densities,
    blendserve_grid,
    blendserve_orders,
    blendserve_splits,
    blendserve_table_1,
    bullet_chunk_size,
    bullet_chunks,
    bullet_control,
    bullet_parts,
    bullet_roofline,
    bullet_table_2,
    bullet_waves,
    bullet_workloads,
    colocation,
    depth_and_share,
    estimator,
    jenga_fragmentation,
    jenga_hits,
    jenga_pages,
    jenga_throughput,
    jenga_waste,
    lanes_controls,
    muxwise_anchors,
    muxwise_goodput,
    muxwise_guard,
    muxwise_latencies,
    muxwise_n_pl,
    muxwise_parts,
    muxwise_splits,
    muxwise_violations,
)

ALL = "all"


@dataclass(frozen=True, slots=True)
class Catalogue:
    cases: tuple[Case, ...]

    def __post_init__(self) -> None:
        ids = [case.id for case in self.cases]
        if len({*ids, ALL}) != len(ids) + 1:
            raise InvariantError(f"two cases have one name, or one is called {ALL!r}: {', '.join(ids)}")

    def choose(self, name: str) -> tuple[Case, ...]:
        """The case of that name, those that have a figure of the paper of that name (`jenga`), or all of them; nothing
        if there is none.
        """
        if name == ALL:
            return self.cases
        return tuple(case for case in self.cases if name in (case.id, *_papers(case)))


def _papers(case: Case) -> list[str]:
    return [figure.reference.paper.name.lower() for figure in case.figures]


def catalogue(measured: HardwareSpec | None = None) -> Catalogue:
    """`measured`: a device whose file holds what `plait calibrate` found."""
    return Catalogue(
        (
            bullet_table_2.CASE,
            bullet_chunks.CASE,
            bullet_waves.CASE,
            bullet_roofline.CASE,
            bullet_chunk_size.CASE,
            bullet_workloads.CASE,
            bullet_parts.SPLIT_CASE,
            bullet_parts.PART_CASE,
            bullet_control.CASE,
            muxwise_splits.CASE,
            muxwise_n_pl.CASE,
            muxwise_guard.CASE,
            muxwise_anchors.CASE,
            muxwise_violations.CASE,
            *muxwise_goodput.CASES,
            muxwise_latencies.CASE,
            muxwise_parts.OVERTAKING_CASE,
            muxwise_parts.SHARES_CASE,
            muxwise_parts.POOL_CASE,
            lanes_controls.CASE,
            depth_and_share.CASE,
            estimator.estimator_case(measured),
            blendserve_densities.CASE,
            blendserve_table_1.CASE,
            blendserve_orders.CASE,
            blendserve_grid.CASE,
            blendserve_splits.CASE,
            colocation.CASE,
            jenga_waste.CASE,
            jenga_pages.CASE,
            jenga_fragmentation.CASE,
            jenga_hits.CASE,
            jenga_throughput.CASE,
        )
    )
