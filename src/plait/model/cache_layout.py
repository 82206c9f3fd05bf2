"""Cache layout: where the bytes of a cache group lie in the one pool buffer.

Owns the arithmetic from (group, block, layer slot, KV head) to a byte offset, and the choice of page size at load.
Executors address memory with it; `kv` counts blocks and pages with it. Knows nothing about who holds a block.
Invariant: page_bytes is a multiple of every block_bytes, so block b of a group always lies at b * block_bytes of the
pool and its page is b // blocks_per_page.

A block is contiguous, layer after layer:

    attention block   for slot in layers: for head in KV heads:  K[head_dim_k][tokens]  then  V[tokens][head_dim_v]
                      (of 8 bits: csrc/ops/cache_layout.h)
    embedding block   tokens x width in the same form: K[width][tokens], no V
    state block       for slot in layers: part after part of the state (one sequence's state, no tokens)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, lcm

from plait.core.errors import InvariantError, UsageError
from plait.core.ids import BlockId, GroupId
from plait.model.cache_type import INT8_TOKENS, CacheType
from plait.model.ops import KEY_TILE
from plait.model.program import CacheGroup, Program


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Blocks of one cache group. `tokens_per_block` is 0 for a group of states, whose block is one state."""

    group: CacheGroup
    tokens_per_block: int
    cache_type: CacheType
    num_blocks: int
    """As many as fit if every page were lent to this group."""
    padding_bytes: int = 0
    """Behind the content of a block."""

    @property
    def head_bytes(self) -> int:
        """One KV head of one layer: K, then V."""
        return self.tokens_per_block * head_token_bytes(self.group, self.cache_type)

    @property
    def layer_bytes(self) -> int:
        if self.group.is_state:
            return sum(self.group.state_parts) * self.cache_type.number_bytes
        return self.group.num_kv_heads * self.head_bytes

    @property
    def block_bytes(self) -> int:
        return self.group.num_layers * self.layer_bytes + self.padding_bytes

    def block_offset(self, block: BlockId) -> int:
        """Byte of the pool at which a block begins."""
        return block * self.block_bytes

    def k_offset(self, slot: int, head: int) -> int:
        """Byte inside a block of K[head_dim_k][tokens_per_block]: element (d, t) is number d * tokens_per_block + t."""
        return slot * self.layer_bytes + head * self.head_bytes

    def v_offset(self, slot: int, head: int) -> int:
        """Byte inside a block of V[tokens_per_block][head_dim_v]: element (t, d) is number t * head_dim_v + d."""
        return self.k_offset(slot, head) + self.tokens_per_block * self.cache_type.vector_bytes(self.group.head_dim_k)

    def state_offset(self, slot: int, part: int) -> int:
        """Byte inside a block of a part of a layer's state."""
        return slot * self.layer_bytes + sum(self.group.state_parts[:part]) * self.cache_type.number_bytes

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold the first `num_tokens` tokens of a sequence; a state takes one, however many there are."""
        if self.group.is_state:
            return 1 if num_tokens > 0 else 0
        return -(-num_tokens // self.tokens_per_block)


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """One pool of `num_pages` pages, lent page by page to groups."""

    page_bytes: int
    num_pages: int
    groups: tuple[GroupLayout, ...]
    """`groups[g]` is the layout of the program's group g."""
    own_pages: tuple[int, ...] = ()
    """Pages that each group has for good, all together; nothing: every page is lent to whoever needs it."""

    def __post_init__(self) -> None:
        for place, layout in enumerate(self.groups):
            if layout.group.id != place:
                raise InvariantError(f"layout of group {layout.group.id} stands at {place}")
            if layout.block_bytes < 1 or self.page_bytes % layout.block_bytes:
                blocks = f"blocks of {layout.block_bytes} bytes ({layout.group.name})"
                raise InvariantError(f"pages of {self.page_bytes} bytes do not hold whole {blocks}")
            if self.own_pages and self.own_pages[place] < 1:
                raise InvariantError(f"group {layout.group.name} has no page of its own")
            if layout.num_blocks != self.num_pages * self.blocks_per_page(layout.group.id):
                raise InvariantError(
                    f"group {layout.group.name} has {layout.num_blocks} blocks in {self.num_pages} pages"
                )

    @property
    def pool_bytes(self) -> int:
        return self.page_bytes * self.num_pages

    def blocks_per_page(self, group: GroupId) -> int:
        return self.page_bytes // self.groups[group].block_bytes


def plan_layout(
    program: Program,
    *,
    memory_bytes: int,
    tokens_per_block: int = 32,
    cache_type: CacheType = CacheType.F32,
    state_type: CacheType = CacheType.F32,
    blocks_per_page_min: int = 1,
    equal_blocks: bool = False,
    padding: Sequence[int] = (),
    shares: Sequence[Fraction] = (),
) -> CacheLayout:
    """Cut `memory_bytes` into pages for the program's groups.

    The page is the least common multiple of the groups' block bytes, times the smallest factor that lets it hold at
    least `blocks_per_page_min` blocks of the group with the smallest block. `equal_blocks` pads all blocks to the
    largest instead, `padding` those of each group by so many bytes. `shares`: parts of the memory that belong to each
    group for good. `UsageError` if there is not one page for each group, or if blocks would straddle the key tiles of
    attention.
    """
    if tokens_per_block < 1 or KEY_TILE % tokens_per_block:
        raise UsageError(f"{tokens_per_block} tokens per block do not divide {KEY_TILE}; use a power of two up to that")
    common, sized = page_plan(program.cache_groups, tokens_per_block, cache_type, state_type, equal_blocks, padding)
    if not sized:
        return CacheLayout(0, 0, ())
    if cache_type is CacheType.INT8 and tokens_per_block % INT8_TOKENS:
        raise UsageError(
            f"{tokens_per_block} tokens per block are too few for a cache of int8, whose blocks hold {INT8_TOKENS}, or "
            f"a multiple of that; use --block-size {INT8_TOKENS}, or another --kv-cache-dtype"
        )
    smallest = min(layout.block_bytes for layout in sized)
    page_bytes = common * max(1, -(-blocks_per_page_min * smallest // common))
    num_pages = memory_bytes // page_bytes
    if num_pages < len(sized):
        raise UsageError(
            f"{memory_bytes} bytes of cache memory are too few: {program.name} has {len(sized)} kind(s) of cache and "
            f"each needs a page of {page_bytes} bytes; give at least {len(sized) * page_bytes} bytes"
        )
    return CacheLayout(
        page_bytes,
        num_pages,
        tuple(replace(one, num_blocks=num_pages * (page_bytes // one.block_bytes)) for one in sized),
        tuple(own_pages(num_pages, shares)),
    )


def own_pages(num_pages: int, shares: Sequence[Fraction]) -> list[int]:
    """So many pages, at least one for each group, by shares whose sum is 1: whole ones, at least one; then those left
    over where most of one is missing, or those too many from whom has most. So a group may have less than its share
    where others' shares are less than a page.
    """
    pages = [max(1, int(num_pages * share)) for share in shares]
    while sum(pages) < num_pages and pages:
        missing = [num_pages * share - count for share, count in zip(shares, pages, strict=True)]
        pages[missing.index(max(missing))] += 1
    while sum(pages) > num_pages:
        pages[pages.index(max(pages))] -= 1
    return pages


def least_pages(pages: Sequence[int], shares: Sequence[Fraction]) -> int:
    """So many that, split by shares, every group has its `pages`."""
    least = max(len(shares), max(ceil(count / share) for count, share in zip(pages, shares, strict=True)))
    # Who needs nothing has a page all the same, and it is taken from whoever has most.
    while any(have < count for have, count in zip(own_pages(least, shares), pages, strict=True)):
        least += 1
    return least


def page_plan(
    groups: Sequence[CacheGroup],
    tokens_per_block: int,
    cache_type: CacheType,
    state_type: CacheType = CacheType.F32,
    equal_blocks: bool = False,
    padding: Sequence[int] = (),
) -> tuple[int, list[GroupLayout]]:
    """The smallest page, in bytes, that holds whole blocks of every group; and the groups, without blocks yet."""
    sized = [_group_layout(group, tokens_per_block, cache_type, state_type) for group in groups]
    if equal_blocks:
        largest = max((layout.block_bytes for layout in sized), default=0)
        sized = [replace(layout, padding_bytes=largest - layout.block_bytes) for layout in sized]
    elif padding:
        sized = [replace(layout, padding_bytes=more) for layout, more in zip(sized, padding, strict=True)]
    return lcm(*(layout.block_bytes for layout in sized)), sized


def head_token_bytes(group: CacheGroup, cache_type: CacheType) -> int:
    """What one token takes in one KV head of one layer."""
    return cache_type.vector_bytes(group.head_dim_k) + cache_type.vector_bytes(group.head_dim_v)


def group_token_bytes(group: CacheGroup, cache_type: CacheType) -> int:
    """What one token takes in a group of keys and values."""
    return group.num_layers * group.num_kv_heads * head_token_bytes(group, cache_type)


def token_bytes(program: Program, cache_type: CacheType) -> int:
    """What one token takes in all caches of keys and values of a program."""
    return sum(group_token_bytes(group, cache_type) for group in program.cache_groups if not group.is_state)


def _group_layout(
    group: CacheGroup, tokens_per_block: int, cache_type: CacheType, state_type: CacheType
) -> GroupLayout:
    if group.is_state:
        return GroupLayout(group, 0, state_type, 0)
    return GroupLayout(group, tokens_per_block, cache_type, 0)
