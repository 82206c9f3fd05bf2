"""Uniform: one block table for all layers, as in the first paged engines.

Every layer keeps every token of a sequence, needed or not; states lie in a place of their own, one for each sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.kv.layouts.cuts import plain_cut
from plait.kv.layouts.groups import MemoryGroup
from plait.kv.layouts.layout import Layout


def uniform(groups: Sequence[MemoryGroup], tokens_per_block: int) -> Layout:
    cuts = tuple(plain_cut(group, tokens_per_block, keeps_all=not group.is_state) for group in groups)
    has_state = any(group.is_state for group in groups)
    return Layout(
        "uniform",
        cuts,
        page_bytes=sum(cut.block_bytes for cut in cuts if not cut.group.is_state),
        # Nothing keeps a state as it was at the end of a prefix.
        hit_tokens=None if has_state else tokens_per_block,
    )
