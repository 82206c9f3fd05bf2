"""Buddy: blocks rounded up to powers of two, so that they can be split and joined in halves.

Rounding is what such an allocator costs before anything is split; it knows no other waste of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait.kv.layouts.cuts import plain_cut
from plait.kv.layouts.groups import MemoryGroup
from plait.kv.layouts.jenga import CHECKPOINT_TOKENS, by_part
from plait.kv.layouts.layout import Layout, checkpoint_unit


def buddy(groups: Sequence[MemoryGroup], tokens_per_block: int) -> Layout:
    cuts = []
    for group in by_part(groups):
        cut = plain_cut(group, tokens_per_block)
        size = 1 << (cut.block_bytes - 1).bit_length()
        cuts.append(replace(cut, block_bytes=size, block_padding_bytes=size - cut.block_bytes))
    rounded = tuple(cuts)
    return Layout("buddy", rounded, 0, hit_tokens=checkpoint_unit(rounded, tokens_per_block, CHECKPOINT_TOKENS))
