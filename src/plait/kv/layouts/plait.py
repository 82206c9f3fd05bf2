"""Plait: the layout of this engine, `plait.model.cache_layout` with the geometry that `geometry` chooses.

Every kind of layer keeps what its rows will look at. A sequence that reuses a prefix copies the part of a block that it
shares, so that hits end anywhere; where there are states, at the checkpoints. Rows of images are not served yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.kv.layouts.geometry import Geometry, choose
from plait.kv.layouts.groups import MemoryGroup
from plait.kv.layouts.layout import Layout, Refused
from plait.model.parts import OF_IMAGES


def plait(groups: Sequence[MemoryGroup], tokens_per_block: int) -> Layout | Refused:
    return plait_of(groups, tokens_per_block)[0]


def plait_of(groups: Sequence[MemoryGroup], tokens_per_block: int) -> tuple[Layout | Refused, Geometry | None]:
    """The layout, and what was chosen among for it."""
    others = [group.name for group in groups if group.kind in OF_IMAGES]
    if others:
        return Refused("plait", f"not served yet: {', '.join(others)}"), None
    has_state = any(group.is_state for group in groups)
    geometry = choose(groups, tokens_per_block, pads=has_state)
    unit = tokens_per_block if has_state else 1
    return Layout("plait", geometry.cuts, geometry.page_bytes, hit_tokens=unit), geometry
