"""vLLM's hybrid manager of 2026: one pool of equal blocks, each a slice of equally many layers of one kind.

Layers of a kind are cut into groups of equal size, the last one padded. Where states are present, blocks of attention
grow until one is no smaller than a state, which is padded to it; other unequal blocks grow by whole factors.
Left out: windows while a prompt is being read, speculative blocks, and more than one state a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm

from plait.kv.layouts.cuts import Cut
from plait.kv.layouts.groups import MemoryGroup
from plait.kv.layouts.layout import Layout, Refused

ALIGNMENT = 16
"""Tokens by which a block of attention may grow where states are present."""
NEARLY_EQUAL = 1.5
"""Kinds with fewer layers than this times the rarest kind's are cut by the commonest kind's number instead."""


@dataclass(frozen=True, slots=True)
class _Spec:
    """One layer of a group: what its block holds, and how large it is."""

    group: MemoryGroup
    tokens_per_block: int
    page_bytes: int


def vllm(groups: Sequence[MemoryGroup], tokens_per_block: int) -> Layout | Refused:
    merged = _merged(groups)
    if len({(group.kind, group.window) for group in merged}) == 1:
        return _one_kind(merged, tokens_per_block)
    specs = _grown_for_states(merged, tokens_per_block)
    page = max(spec.page_bytes for spec in specs)
    uneven = [spec for spec in specs if page % spec.page_bytes]
    if uneven:
        spec = uneven[0]
        return Refused(
            "vllm",
            f"its pages must divide: a layer of {spec.group.name} takes {spec.page_bytes:,} bytes for "
            f"{spec.tokens_per_block} tokens, the largest {page:,}",
        )
    layers_per_group = layers_of_a_group([spec.group.num_layers for spec in specs])
    cuts = tuple(_cut(spec, page, layers_per_group, tokens_per_block) for spec in specs)
    block = layers_per_group * page
    # The first block stands for skipped positions and is never lent.
    sizes = [cut.tokens_per_block for cut in cuts if cut.tokens_per_block]
    return Layout("vllm", cuts, block, spare_bytes=block, hit_tokens=lcm(*sizes) if sizes else None)


def _merged(groups: Sequence[MemoryGroup]) -> list[MemoryGroup]:
    """Groups whose layers keep the same are one."""
    found: dict[tuple[object, ...], MemoryGroup] = {}
    for group in groups:
        key = (group.kind, group.token_bytes, group.window, group.state_bytes)
        if key in found:
            first = found[key]
            found[key] = replace(first, num_layers=first.num_layers + group.num_layers)
        else:
            found[key] = group
    return list(found.values())


def _one_kind(groups: Sequence[MemoryGroup], tokens_per_block: int) -> Layout:
    """All layers share one block table, whatever the width of each."""
    cuts = []
    for group in groups:
        size = group.num_layers * (group.state_bytes if group.is_state else tokens_per_block * group.token_bytes)
        tokens = 0 if group.is_state else tokens_per_block
        cuts.append(Cut(group, tokens, tokens, size))
    block = sum(cut.block_bytes for cut in cuts)
    hit = None if groups[0].is_state else tokens_per_block
    return Layout("vllm", tuple(cuts), block, spare_bytes=block, hit_tokens=hit)


def _grown_for_states(groups: Sequence[MemoryGroup], tokens_per_block: int) -> list[_Spec]:
    """The pages of one layer of each group, equal where that is possible."""
    states = max((group.state_bytes for group in groups if group.is_state), default=0)
    attention = [group for group in groups if not group.is_state]
    if not attention:
        return [_Spec(group, 0, states) for group in groups]
    widest = max(group.token_bytes for group in attention)
    least = ALIGNMENT * -(-states // (ALIGNMENT * widest))
    tokens = max(tokens_per_block, least)
    page = tokens * widest
    specs = []
    for group in groups:
        if group.is_state:
            specs.append(_Spec(group, 0, page))
        else:
            factor = page // (tokens * group.token_bytes) if page % (tokens * group.token_bytes) == 0 else 1
            specs.append(_Spec(group, tokens * factor, tokens * factor * group.token_bytes))
    return specs


def layers_of_a_group(counts: Sequence[int]) -> int:
    """`counts`: layers of each kind."""
    fewest, most = min(counts), max(counts)
    return most if most < NEARLY_EQUAL * fewest else fewest


def _cut(spec: _Spec, page: int, layers_per_group: int, asked_tokens: int) -> Cut:
    group = spec.group
    tables = -(-group.num_layers // layers_per_group)
    content = group.state_bytes if group.is_state else spec.tokens_per_block * group.token_bytes
    return Cut(
        group,
        0 if group.is_state else asked_tokens,
        spec.tokens_per_block,
        layers_per_group * page,
        num_tables=tables,
        layer_padding_bytes=(tables * layers_per_group - group.num_layers) * page,
        block_padding_bytes=group.num_layers * (page - content),
    )
