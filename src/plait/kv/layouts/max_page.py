"""Max page: every block is as large as the largest group's, the baseline that pads instead of dividing.

Simple to manage, since any block fits anywhere; small groups pay for large ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait.kv.layouts.cuts import plain_cut
from plait.kv.layouts.groups import MemoryGroup
from plait.kv.layouts.jenga import CHECKPOINT_TOKENS, by_part
from plait.kv.layouts.layout import Layout, checkpoint_unit


def max_page(groups: Sequence[MemoryGroup], tokens_per_block: int) -> Layout:
    cuts = [plain_cut(group, tokens_per_block) for group in by_part(groups)]
    page = max(cut.block_bytes for cut in cuts)
    padded = tuple(replace(cut, block_bytes=page, block_padding_bytes=page - cut.block_bytes) for cut in cuts)
    return Layout("max-page", padded, page, hit_tokens=checkpoint_unit(padded, tokens_per_block, CHECKPOINT_TOKENS))
