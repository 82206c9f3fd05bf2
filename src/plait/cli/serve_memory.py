"""Serve memory: what a running server says about its KV memory, group by group.

Owns `GET /debug/memory`'s figures, the short form on the status page, and those for /metrics. Reads reports alone.
Invariant: waste by cause is of bytes that are lent to a group now, so it is never more than these.
"""

from __future__ import annotations

from collections.abc import Callable

from plait.api.bodies import JsonObject, JsonValue
from plait.config.ablations import memory_ablations
from plait.config.engine_options import EngineOptions
from plait.kv.report import CacheReport, GroupReport
from plait.server.metrics_page import GroupBlocks

SCHEMA = "plait.debug.memory/1"


Report = Callable[[], CacheReport]
"""Of the memory as it is now; it may be off by the step that is running."""


def group_blocks(report: Report | None) -> list[GroupBlocks]:
    """For /metrics."""
    if report is None:
        return []
    return [
        GroupBlocks(
            name=group.name,
            kind=group.kind,
            num_layers=group.num_layers,
            tokens_per_block=group.tokens_per_block,
            used=group.blocks.used + group.blocks.quarantined,
            cached=group.blocks.evictable,
            free=group.blocks.free,
            idle_bytes=group.idle_bytes,
            padding_bytes=group.padding_bytes,
            page_idle_bytes=group.page_idle_bytes,
            evicted=group.num_evicted,
            allowed_hit_tokens=group.allowed_tokens,
            lost_hit_tokens=group.lost_tokens,
        )
        for group in report().groups
    ]


def status_memory(report: Report | None) -> JsonObject:
    """Part of /status.json."""
    if report is None:
        return {"total_bytes": 0, "used_bytes": 0, "evictable_bytes": 0, "groups": []}
    now = report()
    return {
        "total_bytes": now.usage.total_bytes,
        "used_bytes": now.usage.used_bytes,
        "evictable_bytes": now.usage.evictable_bytes,
        "asked_tokens": now.index.asked_tokens,
        "groups": [
            {
                "name": group.name,
                "kind": group.kind,
                "layers": group.num_layers,
                "tokens_per_block": group.tokens_per_block,
                "used": group.blocks.used + group.blocks.quarantined,
                "evictable": group.blocks.evictable,
                "free": group.blocks.free,
                "idle_bytes": group.idle_bytes,
                "waste_bytes": group.waste_bytes,
                "allowed_hit_tokens": group.allowed_tokens,
                "lost_hit_tokens": group.lost_tokens,
            }
            for group in now.groups
        ],
    }


def debug_memory(report: Report | None, geometry: str | None, options: EngineOptions) -> JsonObject:
    """All there is to say; docs/reference/http.md has its form. `geometry`: how memory is cut, in words."""
    if report is None:
        return {"schema": SCHEMA, "layout": options.kv_layout, "groups": []}
    now = report()
    ablated: list[JsonValue] = list(memory_ablations(options.ablate))
    groups: list[JsonValue] = [_group(group, now) for group in now.groups]
    said: list[JsonValue] = list(explained(now))
    usage, index = now.usage, now.index
    return {
        "schema": SCHEMA,
        "layout": options.kv_layout,
        "ablated": ablated,
        "geometry": geometry,
        "page_bytes": now.page_bytes,
        "pages": now.num_pages,
        "free_pages": usage.free_pages,
        "total_bytes": usage.total_bytes,
        "used_bytes": usage.used_bytes,
        "evictable_bytes": usage.evictable_bytes,
        "free_bytes": usage.free_bytes,
        "waste_bytes": sum(group.waste_bytes for group in now.groups),
        "sequences": now.num_sequences,
        "capacity_tokens": now.capacity_tokens,
        "available_tokens": now.available_tokens,
        "prefix": {
            "enabled": index.is_enabled,
            "asked_tokens": index.asked_tokens,
            "hit_tokens": index.hit_tokens,
            "hit_fraction": round(index.hit_fraction, 4),
            "nodes": index.num_nodes,
            "evictions": index.num_evictions,
            "computed_twice": index.num_duplicates,
        },
        "groups": groups,
        "explained": said,
    }


def _group(group: GroupReport, report: CacheReport) -> JsonObject:
    asked = report.index.asked_tokens
    return {
        "name": group.name,
        "kind": group.kind,
        "layers": group.num_layers,
        "tokens_per_block": group.tokens_per_block,
        "block_bytes": group.block_bytes,
        "blocks_per_page": group.blocks_per_page,
        "pages": group.num_pages,
        "lent_bytes": group.lent_bytes,
        "blocks": {
            "used": group.blocks.used,
            "quarantined": group.blocks.quarantined,
            "cached": group.blocks.evictable,
            "free": group.blocks.free,
            "evicted": group.num_evicted,
        },
        "waste_bytes": {
            "empty_slots": group.idle_bytes,
            "padding": group.padding_bytes,
            "free_on_lent_pages": group.page_idle_bytes,
        },
        "waste_fraction": round(group.waste_fraction, 5),
        "allowed_hit_tokens": group.allowed_tokens,
        "lost_hit_tokens": group.lost_tokens,
        "lost_hit_fraction": round(group.lost_tokens / asked, 4) if asked else 0.0,
    }


def explained(report: CacheReport) -> list[str]:
    """What is worth a sentence."""
    said = []
    asked, index = report.index.asked_tokens, report.index
    if not index.is_enabled:
        said.append("prefix caching is off (--enable-prefix-caching false), so nothing is found again")
    for group in report.groups:
        if asked and group.lost_tokens:
            said.append(
                f"{group.name} alone kept {group.lost_tokens:,} tokens from being hit, {group.lost_tokens / asked:.1%} "
                "of those asked for: its part of the prefix had been given up"
            )
        if group.num_pages and group.waste_fraction > NOTABLE:
            said.append(f"{group.waste_fraction:.0%} of what {group.name} has is waste: {_causes(group)}")
    return said


NOTABLE = 0.1
"""Part of a group's memory from which its waste is worth a sentence."""


def _causes(group: GroupReport) -> str:
    sizes = {
        "slots that hold no token yet": group.idle_bytes,
        "padding that makes blocks equal": group.padding_bytes,
        "free blocks on its pages": group.page_idle_bytes,
    }
    return ", ".join(
        f"{word} {size / group.lent_bytes:.0%}"
        for word, size in sorted(sizes.items(), key=lambda item: -item[1])
        if size / group.lent_bytes >= 0.005
    )
