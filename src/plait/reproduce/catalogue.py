"""Catalogue: all cases, in the order in which they are listed.

Owns the list, the one place to change for a new case.
Invariant: a published number on which any case calibrates is a success in none.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.errors import InvariantError
from plait.reproduce.case import Case, check_calibration
from plait.reproduce.cases import (
    blendserve_densities,
    blendserve_table_1,
    bullet_chunk_size,
    bullet_chunks,
    bullet_roofline,
    bullet_table_2,
    jenga_pages,
    jenga_waste,
    muxwise_anchors,
    muxwise_n_pl,
    muxwise_splits,
)

ALL = "all"


@dataclass(frozen=True, slots=True)
class Catalogue:
    cases: tuple[Case, ...]

    def __post_init__(self) -> None:
        ids = [case.id for case in self.cases]
        if len({*ids, ALL}) != len(ids) + 1:
            raise InvariantError(f"two cases have one name, or one is called {ALL!r}: {', '.join(ids)}")
        check_calibration(self.cases)

    def choose(self, name: str) -> tuple[Case, ...]:
        """The case of that name, or all of them; nothing if there is none."""
        return self.cases if name == ALL else tuple(case for case in self.cases if case.id == name)


def catalogue() -> Catalogue:
    modules = (
        bullet_table_2,
        bullet_chunks,
        bullet_roofline,
        bullet_chunk_size,
        muxwise_splits,
        muxwise_n_pl,
        muxwise_anchors,
        blendserve_densities,
        blendserve_table_1,
        jenga_waste,
        jenga_pages,
    )
    return Catalogue(tuple(module.CASE for module in modules))
