"""Plait: the layout of this engine as it is today, `plait.model.cache_layout`.

Pages of the least common multiple of all block sizes. Layers with a window or a chunk keep every token as yet, in one
group with equally wide others; a sequence that reuses a prefix copies the part of a block that it shares, so that hits
end anywhere. States and rows of images are not served yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import lcm

from plait.kv.layouts.cuts import plain_cut
from plait.kv.layouts.groups import MemoryGroup
from plait.kv.layouts.layout import Layout, Refused
from plait.model.parts import GroupKind

_SERVED = (GroupKind.FULL, GroupKind.WINDOW, GroupKind.CHUNKED)


def plait(groups: Sequence[MemoryGroup], tokens_per_block: int) -> Layout | Refused:
    others = [group.name for group in groups if group.kind not in _SERVED]
    if others:
        return Refused("plait", f"not served yet: {', '.join(others)}")
    cuts = [plain_cut(group, tokens_per_block, keeps_all=True) for group in groups]
    # Layers of equal width are one group, so their blocks are counted together.
    blocks: Counter[int] = Counter()
    for cut in cuts:
        blocks[cut.group.token_bytes] += cut.block_bytes
    page = lcm(*blocks.values())
    paged = tuple(replace(cut, blocks_per_page=page // blocks[cut.group.token_bytes]) for cut in cuts)
    return Layout("plait", paged, page, hit_tokens=1)
