"""Partition: each group has its own part of the memory for good, by a fixed rule (`static`) or by hand (`manual`).

Blocks fit exactly; what is lost is the room in one part while another is full, so a split suits one length only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from plait.kv.layouts.cuts import plain_cut
from plait.kv.layouts.groups import MemoryGroup
from plait.kv.layouts.jenga import CHECKPOINT_TOKENS
from plait.kv.layouts.layout import Layout, Refused, checkpoint_unit
from plait.model.parts import GroupKind

# The rule of Jenga's baseline: groups that stop growing get half of what their block size would give them.
_HALVED = (GroupKind.WINDOW, GroupKind.CHUNKED, GroupKind.STATE)


def static(groups: Sequence[MemoryGroup], tokens_per_block: int) -> Layout:
    weights = [
        plain_cut(group, tokens_per_block).block_bytes * (Fraction(1, 2) if group.kind in _HALVED else Fraction(1))
        for group in groups
    ]
    return _partition("static", groups, tokens_per_block, weights)


def manual(groups: Sequence[MemoryGroup], tokens_per_block: int, weights: Mapping[str, Fraction]) -> Layout | Refused:
    """`weights` by name or kind of group; only their ratios count, and every group needs one."""
    missing = [group.name for group in groups if group.name not in weights and group.kind not in weights]
    known = [name for group in groups for name in (group.name, str(group.kind))]
    extra = [name for name in weights if name not in known]
    if missing or extra:
        fault = f"no share for {', '.join(missing)}" if missing else f"no group is called {', '.join(extra)}"
        names = ", ".join(dict.fromkeys(group.name for group in groups))
        return Refused("manual", f"{fault}; write manual:GROUP=SHARE:GROUP=SHARE for the groups {names}")
    chosen = [weights.get(group.name, weights.get(group.kind, Fraction(0))) for group in groups]
    return _partition("manual", groups, tokens_per_block, chosen)


def _partition(name: str, groups: Sequence[MemoryGroup], tokens_per_block: int, weights: Sequence[Fraction]) -> Layout:
    cuts = tuple(plain_cut(group, tokens_per_block) for group in groups)
    whole = sum(weights, Fraction(0))
    unit = checkpoint_unit(cuts, tokens_per_block, CHECKPOINT_TOKENS)
    return Layout(name, cuts, 0, shares=tuple(weight / whole for weight in weights), hit_tokens=unit)
