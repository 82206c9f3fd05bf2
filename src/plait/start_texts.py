"""Start texts: how the start-up report says where memory goes and who computes.

Owns words alone; what is counted comes from whoever built the engine.
"""

from __future__ import annotations

from plait.config.resolve import Workers
from plait.model.cache_layout import CacheLayout, GroupLayout

KIB, MIB = 1024, 1024 * 1024
AHEAD_BYTES = 32 * MIB
"""Of cache memory, taken from the system before it is written; as kBytesAhead in csrc/bindings/runtime_bindings.cc."""


def memory_texts(now: int | None, weights: int, arena: int, layout: CacheLayout) -> list[str]:
    """What a look at the process with `ps` shows: now, and later. `now` holds the interpreter and its libraries too.

    Activations and the cache are taken from the system when they are first written.
    """
    per_block = " and ".join(map(block_text, layout.groups))
    whole = "" if now is None else f"{now / MIB:,.0f} MiB now: "
    rest = "" if now is None else f", {(now - weights) / MIB:,.0f} MiB of Python and what it holds"
    return [
        f"resident memory: {whole}{weights / MIB:,.0f} MiB of packed weights{rest}",
        f"later besides: up to {arena / MIB:,.0f} MiB of activations as steps grow, and {per_block}, taken "
        f"{min(AHEAD_BYTES, layout.pool_bytes) / MIB:,.0f} MiB ahead, up to {layout.pool_bytes / MIB:,.0f} MiB",
    ]


def block_text(placed: GroupLayout) -> str:
    size = f"{placed.block_bytes / KIB:,.0f} KiB of"
    if placed.group.is_state:
        return f"{size} state for every sequence, and for every checkpoint of it"
    return f"{size} KV cache for every {placed.tokens_per_block} tokens of a sequence"


def workers_text(workers: Workers) -> str:
    count = len(workers.cores)
    bound = "" if -1 in workers.cores else f" on processor{'s' * (count > 1)} {', '.join(map(str, workers.cores))}"
    return f"{count} worker{'s' * (count > 1)}{bound}: {workers.reason}"
