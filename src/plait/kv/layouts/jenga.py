"""Jenga (SOSP'25): pages of the least common multiple of all block sizes, lent to whichever group needs one.

A block holds some tokens of all layers of a group; parts of a state are groups of their own. Blocks of different
sequences share a page of their group when memory is short, so what is lost to pages is less than one page a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm

from plait.kv.layouts.cuts import plain_cut
from plait.kv.layouts.groups import MemoryGroup
from plait.kv.layouts.layout import Layout, checkpoint_unit

CHECKPOINT_TOKENS = 512
"""How often a state is kept for later prefixes, by default."""


def jenga(groups: Sequence[MemoryGroup], tokens_per_block: int) -> Layout:
    cuts = [plain_cut(group, tokens_per_block) for group in by_part(groups)]
    page = lcm(*(cut.block_bytes for cut in cuts))
    paged = tuple(replace(cut, blocks_per_page=page // cut.block_bytes) for cut in cuts)
    return Layout("jenga", paged, page, hit_tokens=checkpoint_unit(paged, tokens_per_block, CHECKPOINT_TOKENS))


def by_part(groups: Sequence[MemoryGroup]) -> list[MemoryGroup]:
    """The groups with every part of a state as a group of its own."""
    found = []
    for group in groups:
        if group.is_state and len(group.state_parts) > 1:
            names = [(f"{group.name} {part.name}", part) for part in group.state_parts]
            found += [replace(group, name=name, state_parts=(part,)) for name, part in names]
        else:
            found.append(group)
    return found
