"""Reports: how full the memory is and what it holds, as values.

Owns the types of `KVCache.usage` (cheap, every step) and `KVCache.explain` (for people), and how the latter reads.
Invariant: used + evictable + free bytes == total bytes; quarantined blocks count as used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plait.core.ids import GroupId
from plait.kv.blocks import BlockPool, BlockState
from plait.kv.hit import Hit
from plait.kv.index import PrefixIndex


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks of one group by state, on the pages lent to it."""

    used: int
    """In the table of a sequence, private or shared."""
    evictable: int
    """A cached prefix that nobody uses."""
    free: int
    quarantined: int
    """Of released sequences, until no step in flight names them."""


@dataclass(frozen=True, slots=True)
class Usage:
    total_bytes: int
    used_bytes: int
    evictable_bytes: int
    free_bytes: int
    free_pages: int
    groups: tuple[BlockCounts, ...]

    @property
    def fraction(self) -> float:
        """Share of the memory that eviction could not free now."""
        return self.used_bytes / self.total_bytes


@dataclass(frozen=True, slots=True)
class GroupReport:
    group: GroupId
    name: str
    kind: str
    num_layers: int
    tokens_per_block: int
    block_bytes: int
    bytes_per_token: float
    """0 for states."""
    blocks_per_page: int
    num_pages: int
    """Pages lent to this group now."""
    blocks: BlockCounts
    lost_tokens: int = 0
    """Prompt tokens of full blocks that would have been hits but for this group alone."""
    idle_bytes: int = 0
    """Of its used blocks, those of slots that no step so far fills."""
    allowed_tokens: int = 0
    """Prompt tokens of full blocks that would have been hits if no other group gave some up."""
    num_evicted: int = 0
    """Cached blocks that were given up for others, since the start."""
    padding_bytes: int = 0
    """In blocks that hold something, to make blocks of all groups equal."""

    @property
    def page_idle_bytes(self) -> int:
        """Free blocks on the group's pages, which no other group can use."""
        return self.blocks.free * self.block_bytes

    @property
    def waste_bytes(self) -> int:
        return self.idle_bytes + self.padding_bytes + self.page_idle_bytes

    @property
    def lent_bytes(self) -> int:
        return self.num_pages * self.blocks_per_page * self.block_bytes

    @property
    def waste_fraction(self) -> float:
        """Of what is lent to the group now."""
        return self.waste_bytes / self.lent_bytes if self.num_pages else 0.0


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The prefix index. Tokens are counted when a sequence opens, again after each preemption."""

    is_enabled: bool
    num_roots: int
    num_nodes: int
    num_evictable: int
    num_evictions: int
    num_duplicates: int
    """Blocks that were computed although an equal one had been published meanwhile."""
    asked_tokens: int
    hit_tokens: int

    @property
    def hit_fraction(self) -> float:
        return self.hit_tokens / self.asked_tokens if self.asked_tokens else 0.0


@dataclass(frozen=True, slots=True)
class CacheReport:
    page_bytes: int
    num_pages: int
    num_sequences: int
    num_quarantined: int
    """Released sequences whose blocks wait for a step in flight."""
    num_steps_in_flight: int
    available_tokens: int
    capacity_tokens: int
    usage: Usage
    groups: tuple[GroupReport, ...]
    index: IndexReport

    def __str__(self) -> str:
        groups = "; ".join(
            f"{g.name} ({g.kind}): {g.blocks.used} blocks used, {g.blocks.evictable} evictable, {g.blocks.free} free, "
            f"{g.blocks.quarantined} quarantined"
            for g in self.groups
        )
        return (
            f"{self.usage.free_pages} of {self.num_pages} pages free; {groups}; room for {self.available_tokens} of "
            f"{self.capacity_tokens} tokens; {self.num_sequences} sequences, {self.num_steps_in_flight} steps in flight"
        )


def counts_of(pool: BlockPool) -> BlockCounts:
    counts = pool.counts
    return BlockCounts(
        used=counts[BlockState.PRIVATE] + counts[BlockState.SHARED],
        evictable=counts[BlockState.EVICTABLE],
        free=counts[BlockState.FREE],
        quarantined=counts[BlockState.QUARANTINED],
    )


def usage_of(pools: Sequence[BlockPool], drafts: Sequence[BlockPool], total_bytes: int, free_pages: int) -> Usage:
    """`drafts`: groups whose blocks can be had at any time, like cached ones."""
    counts = tuple(counts_of(pool) for pool in pools)
    sizes = [pool.layout.block_bytes for pool in pools]
    used = sum((c.used + c.quarantined) * size for c, size in zip(counts, sizes, strict=True))
    evictable = sum(c.evictable * size for c, size in zip(counts, sizes, strict=True))
    evictable += sum(num_held(counts_of(pool)) * pool.layout.block_bytes for pool in drafts)
    return Usage(total_bytes, used, evictable, total_bytes - used - evictable, free_pages, counts)


class HitTotals:
    """What sequences that were opened asked for and found, since the start."""

    def __init__(self, num_groups: int) -> None:
        self.asked_tokens = 0
        self.hit_tokens = 0
        self.lost_tokens = [0] * num_groups
        self.allowed_tokens = [0] * num_groups

    def add(self, hit: Hit) -> None:
        self.asked_tokens += hit.num_asked
        self.hit_tokens += hit.num_reused
        for g in range(len(self.lost_tokens)):
            self.lost_tokens[g] += hit.losses[g] if hit.losses else 0
            self.allowed_tokens[g] += hit.allowed[g] if hit.allowed else hit.num_tokens


def index_report(index: PrefixIndex, totals: HitTotals, num_duplicates: int, is_enabled: bool) -> IndexReport:
    return IndexReport(
        is_enabled=is_enabled,
        num_roots=index.num_roots,
        num_nodes=index.num_nodes,
        num_evictable=index.num_evictable,
        num_evictions=index.num_evictions,
        num_duplicates=num_duplicates,
        asked_tokens=totals.asked_tokens,
        hit_tokens=totals.hit_tokens,
    )


def num_held(blocks: BlockCounts) -> int:
    """Those that hold something."""
    return blocks.used + blocks.evictable + blocks.quarantined


def group_report(pool: BlockPool, blocks: BlockCounts, totals: HitTotals | None, idle_bytes: int) -> GroupReport:
    """`totals`: None for a group that nothing is found in again."""
    layout = pool.layout
    held = num_held(blocks) + blocks.free
    return GroupReport(
        group=pool.group,
        name=layout.group.name,
        kind=layout.group.kind.value,
        num_layers=layout.group.num_layers,
        tokens_per_block=layout.tokens_per_block,
        block_bytes=layout.block_bytes,
        bytes_per_token=layout.block_bytes / layout.tokens_per_block if layout.tokens_per_block else 0.0,
        blocks_per_page=pool.blocks_per_page,
        num_pages=held // pool.blocks_per_page,
        blocks=blocks,
        lost_tokens=0 if totals is None else totals.lost_tokens[pool.group],
        idle_bytes=idle_bytes,
        allowed_tokens=0 if totals is None else totals.allowed_tokens[pool.group],
        num_evicted=pool.num_evicted,
        padding_bytes=(held - blocks.free) * layout.padding_bytes,
    )
