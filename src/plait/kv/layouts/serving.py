"""Serving: a layout, made real for a program that is about to be served.

Owns the way from a program's cache groups to the layouts' words and back. Knows no executor.
Invariant: the program computes the same under every layout; its layers only lie in other block tables, blocks are
padded, and pages may belong to one group for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from plait.core.errors import UsageError
from plait.core.ids import GroupId
from plait.kv.layouts.geometry import Geometry, choose
from plait.kv.layouts.groups import MemoryGroup, StatePart
from plait.kv.layouts.layout import Layout, Refused
from plait.kv.layouts.partition import manual, static
from plait.kv.layouts.vllm import layers_of_a_group, vllm
from plait.kv.room import paged_bytes, sequence_bytes
from plait.kv.rules import MemoryRules
from plait.model.cache_layout import CacheLayout, head_token_bytes, page_plan, plan_layout
from plait.model.cache_type import CacheType
from plait.model.ops import KEY_TILE
from plait.model.parts import CacheGroup, GroupKind
from plait.model.program import Program
from plait.model.regrouping import in_parts, in_tables

_WAY_OUT: Final = "serve this model with --kv-layout paged"


def groups_of(groups: Sequence[CacheGroup], cache_type: CacheType, state_type: CacheType) -> list[MemoryGroup]:
    return [
        MemoryGroup(
            group.name,
            group.kind,
            group.num_layers,
            0 if group.is_state else group.num_kv_heads * head_token_bytes(group, cache_type),
            group.window,
            tuple(StatePart(str(n), size * state_type.number_bytes) for n, size in enumerate(group.state_parts)),
        )
        for group in groups
    ]


@dataclass(frozen=True, slots=True)
class Cutting:
    """How the memory of a program is cut."""

    name: str
    program: Program
    """With its layers in the block tables of the layout."""
    tokens_per_block: int
    cache_type: CacheType
    equal_blocks: bool = False
    """Blocks of all groups are padded to the largest."""
    padding: tuple[int, ...] = ()
    """Bytes behind a block of each group, which let pages be small; nothing: none."""
    shares: tuple[Fraction, ...] = ()
    """Part of the memory that belongs to each group for good; nothing: all of it to whoever needs it."""
    tails: bool = True
    """Whether a hit may end inside a block."""
    geometry: Geometry | None = None
    """What was chosen, where there was a choice."""
    draft: Program | None = None
    """Of a draft model, whose blocks lie on the same pages; `padding` is that of its groups, too, behind the others."""

    def plan(self, memory_bytes: int) -> CacheLayout:
        if self.draft is not None:
            return self.plan_pair(memory_bytes)[0]
        return plan_layout(
            self.program,
            memory_bytes=memory_bytes,
            tokens_per_block=self.tokens_per_block,
            cache_type=self.cache_type,
            equal_blocks=self.equal_blocks,
            padding=self.padding,
            shares=self.shares,
        )

    def plan_pair(self, memory_bytes: int) -> tuple[CacheLayout, CacheLayout]:
        """The layouts of the program and of its draft model, each with groups of its own numbers, on the same pages."""
        groups = self._groups()
        page_bytes, sized = page_plan(groups, self.tokens_per_block, self.cache_type, padding=self.padding)
        num_pages = memory_bytes // page_bytes
        if num_pages < len(sized):
            raise UsageError(
                f"{memory_bytes} bytes of cache memory are too few: {self.program.name} and its draft model have "
                f"{len(sized)} kinds of cache and each needs a page of {page_bytes} bytes; give at least "
                f"{len(sized) * page_bytes} bytes, or no draft model"
            )
        whole = [replace(one, num_blocks=num_pages * (page_bytes // one.block_bytes)) for one in sized]
        first = len(self.program.cache_groups)
        own = [replace(one, group=group) for one, group in zip(whole[first:], self._draft_groups(), strict=True)]
        return CacheLayout(page_bytes, num_pages, tuple(whole[:first])), CacheLayout(page_bytes, num_pages, tuple(own))

    def _draft_groups(self) -> tuple[CacheGroup, ...]:
        return () if self.draft is None else self.draft.cache_groups

    def _groups(self) -> list[CacheGroup]:
        return numbered(self.program.cache_groups, self._draft_groups())

    def sequence_bytes(self) -> Callable[[int], int] | None:
        """Of memory that one sequence of so many tokens takes, that of a draft model counted; None: as much for every
        token.
        """
        if self.draft is not None:
            return paged_bytes(self._groups(), self.tokens_per_block, self.cache_type, padding=self.padding)
        return sequence_bytes(
            self.program.cache_groups,
            self.tokens_per_block,
            self.cache_type,
            equal_blocks=self.equal_blocks,
            padding=self.padding,
            shares=self.shares,
        )

    def rules(self, rules: MemoryRules) -> MemoryRules:
        """Those asked for, without what the layout does not have."""
        return replace(rules, tails=rules.tails and self.tails)

    def described(self) -> str | None:
        """One line for whoever starts it; None: there is nothing to say."""
        if self.geometry is not None:
            return _chosen(self.geometry)
        if self.name in ("paged", "uniform"):
            return None
        groups = self.program.cache_groups
        page_bytes, sized = page_plan(
            groups,
            self.tokens_per_block,
            self.cache_type,
            equal_blocks=self.equal_blocks,
            padding=self.padding,
        )
        parts = []
        for place, one in enumerate(sized):
            part = f"{one.group.name}: {page_bytes // one.block_bytes} x {one.group.num_layers} layers"
            if one.padding_bytes:
                part += f", {one.padding_bytes / one.block_bytes:.1%} of it padding"
            if self.shares:
                part += f", {float(self.shares[place]):.1%} of the memory for good"
            parts.append(part)
        tokens = f" of {self.tokens_per_block} tokens a block" if self.name == "vllm" else ""
        return (
            f"cache layout {self.name}, to compare: pages of {page_bytes / 1024:,.0f} KiB{tokens} ({'; '.join(parts)})"
        )


def cut(program: Program, layout: str, tokens_per_block: int, cache_type: CacheType) -> Cutting:
    """`layout`: paged, uniform, vllm, max-page, static, or manual with shares by name or kind of group
    (manual:full=3:window=1). `UsageError` for a model that the layout cannot hold.
    """
    kind, _, shares = layout.partition(":")
    plain = Cutting(kind, program, tokens_per_block, cache_type)
    if len(program.cache_groups) < 2 and kind != "manual":
        return plain if kind != "vllm" else replace(plain, tails=False)
    groups = groups_of(program.cache_groups, cache_type, CacheType.F32)
    match kind:
        case "max-page":
            return replace(plain, equal_blocks=True)
        case "static":
            return _split(plain, groups, static(groups, tokens_per_block).shares)
        case "manual":
            return _split(plain, groups, _accepted(manual(groups, tokens_per_block, _weights(shares))).shares)
        case "vllm":
            return _as_vllm(plain, groups)
    return _chosen_for(plain, groups)


def numbered(target: Sequence[CacheGroup], draft: Sequence[CacheGroup]) -> list[CacheGroup]:
    """Those of a draft model behind the target's: of every token, for `plait.kv.drafts` drops none behind a window."""
    first = len(target)
    kept = [
        replace(one, id=GroupId(first + one.id), name=f"draft {one.name}", kind=GroupKind.FULL, window=0)
        for one in draft
    ]
    return [*target, *kept]


def cut_pair(program: Program, draft: Program, layout: str, tokens_per_block: int, cache_type: CacheType) -> Cutting:
    """As `cut`, with a draft model on the same pages. `UsageError` for layouts that are there to be compared."""
    if layout != "paged":
        raise UsageError(f"--kv-layout {layout} has no place for a draft model; take --kv-layout paged")
    groups = numbered(program.cache_groups, draft.cache_groups)
    geometry = choose(groups_of(groups, cache_type, CacheType.F32), tokens_per_block)
    counts = [one.num_tables for one in geometry.cuts]
    first = len(program.cache_groups)
    padding = tuple(one.block_padding_bytes // one.num_tables for one in geometry.cuts for _ in range(one.num_tables))
    return Cutting(
        layout,
        in_tables(program, {one.id: count for one, count in zip(program.cache_groups, counts, strict=False)}),
        tokens_per_block,
        cache_type,
        padding=padding if any(padding) else (),
        geometry=geometry,
        draft=in_tables(draft, {one.id: count for one, count in zip(draft.cache_groups, counts[first:], strict=True)}),
    )


def _chosen_for(plain: Cutting, groups: Sequence[MemoryGroup]) -> Cutting:
    # States are large and of odd sizes: without padding, whole blocks of both kinds make pages of hundreds of them.
    geometry = choose(groups, plain.tokens_per_block, pads=any(group.is_state for group in groups))
    tables = {group.id: one.num_tables for group, one in zip(plain.program.cache_groups, geometry.cuts, strict=True)}
    padding = [one.block_padding_bytes // one.num_tables for one in geometry.cuts for _ in range(one.num_tables)]
    return replace(
        plain,
        program=in_tables(plain.program, tables),
        padding=tuple(padding) if any(padding) else (),
        geometry=geometry,
    )


def _split(plain: Cutting, groups: Sequence[MemoryGroup], shares: Sequence[Fraction]) -> Cutting:
    """Pages that belong to groups for good. Beside states they are cut as if they were lent: whole blocks of both kinds
    would make pages of tens of megabytes, which nobody would split.
    """
    if not any(group.is_state for group in groups):
        return replace(plain, shares=tuple(shares))
    lent = _chosen_for(plain, groups)
    assert lent.geometry is not None
    cuts = zip(lent.geometry.cuts, shares, strict=True)
    parts = tuple(share / one.num_tables for one, share in cuts for _ in range(one.num_tables))
    return replace(lent, shares=parts, geometry=None)


def _weights(text: str) -> Mapping[str, Fraction]:
    named = (one.rpartition("=") for one in text.split(":"))
    return {group: Fraction(share) for group, _, share in named}


def _accepted(layout: Layout | Refused) -> Layout:
    if isinstance(layout, Refused):
        raise UsageError(f"--kv-layout {layout.name}: {layout.reason}, or {_WAY_OUT}")
    return layout


def vllm_fault(groups: Sequence[MemoryGroup], tokens_per_block: int) -> str | None:
    """Why this engine cannot cut memory for these groups as vLLM does; None: it can."""
    layout = vllm(groups, tokens_per_block)
    if isinstance(layout, Refused):
        return layout.reason
    sizes = _token_sizes(layout)
    if len(sizes) > 1:
        return f"kinds of layers with blocks of {sizes} tokens cannot share a prefix index"
    if _power_of_two(sizes, tokens_per_block) > KEY_TILE:
        larger = f"a state is as large as the keys and values of {sizes[0]} tokens of a layer"
        return f"{larger}, and blocks hold {KEY_TILE} at most"
    return None


def _token_sizes(layout: Layout) -> list[int]:
    return sorted({one.tokens_per_block for one in layout.cuts if one.tokens_per_block})


def _power_of_two(sizes: Sequence[int], tokens_per_block: int) -> int:
    return 1 << (sizes[0] - 1).bit_length() if sizes else tokens_per_block


def _as_vllm(plain: Cutting, groups: Sequence[MemoryGroup]) -> Cutting:
    """Blocks of equally many layers and equal bytes. Without its null block, and with this memory's order of eviction;
    hits are whole blocks. Where states make blocks larger, the next power of two, because attention's tiles need it.
    """
    fault = vllm_fault(groups, plain.tokens_per_block)
    if fault is not None:
        raise UsageError(f"--kv-layout vllm: {fault}; {_WAY_OUT}")
    if len({(group.kind, group.window) for group in groups}) == 1:
        return replace(plain, tails=False)
    layout = _accepted(vllm(groups, plain.tokens_per_block))
    layers = layers_of_a_group([one.group.num_layers for one in layout.cuts])
    program = in_parts(plain.program, {group.id: layers for group in plain.program.cache_groups})
    tokens = _power_of_two(_token_sizes(layout), plain.tokens_per_block)
    return replace(plain, program=program, tokens_per_block=tokens, equal_blocks=True, tails=False)


def _chosen(geometry: Geometry) -> str:
    parts = ", ".join(
        f"{one.group.name}: {one.blocks_per_page} x {one.group.num_layers // one.num_tables} layers"
        + (f" in {one.num_tables} tables" if one.num_tables > 1 else "")
        + (
            f" and {one.block_padding_bytes / (one.block_bytes * one.num_tables):.2%} padding"
            * bool(one.block_padding_bytes)
        )
        for one in geometry.cuts
    )
    raw = "" if geometry.is_raw else f", whole groups would waste {geometry.raw_waste_fraction:.1%}"
    return (
        f"cache pages of {geometry.page_bytes / 1024:,.0f} KiB ({parts}); predicted waste "
        f"{geometry.waste_fraction:.1%} of 32 sequences of 500 tokens or 8 of 16,384, whichever is more{raw}"
    )
