"""What the memory costs in Python: a decode step of 64 sequences, and a life of a sequence per block.

    .venv/bin/python bench/memory_per_block.py [--repeat 5]

A life looks up, opens, reserves, computes in one step, is published, released, and evicts what others left. CPU time of
this process, the least of several repeats; for pools of three sizes, because the cost must not depend on them.
"""

from __future__ import annotations

import argparse
import gc
import time
from math import lcm

from plait.core.ids import GroupId, LaneId, SeqId, StepId
from plait.core.step import FROM_DEVICE, Chunk, StepPlan
from plait.kv.cache import KVCache, Root
from plait.model.cache_layout import CacheLayout, GroupLayout
from plait.model.cache_type import CacheType
from plait.model.program import CacheGroup, GroupKind

ROOT = Root("bench")
BLOCK, LANE = 32, LaneId(0)
BLOCKS_OF_LIFE, LIVES = 40, 60
GROUPS = {
    "full": [CacheGroup(GroupId(0), "full", GroupKind.FULL, 3, 1, 1, 1)],
    "full and window": [
        CacheGroup(GroupId(0), "full", GroupKind.FULL, 3, 1, 1, 1),
        CacheGroup(GroupId(1), "window", GroupKind.WINDOW, 15, 1, 1, 1, window=512),
    ],
}


def memory(groups: list[CacheGroup], num_pages: int) -> KVCache:
    sized = [GroupLayout(group, BLOCK, CacheType.F16, 0) for group in groups]
    page_bytes = lcm(*(one.block_bytes for one in sized))
    placed = [
        GroupLayout(one.group, BLOCK, CacheType.F16, num_pages * (page_bytes // one.block_bytes)) for one in sized
    ]
    return KVCache(CacheLayout(page_bytes, num_pages, tuple(placed)), groups)


def live(kv: KVCache, number: int, num_tokens: int) -> None:
    """One sequence, from lookup to release, at second `number`."""
    tokens, seq, step, now = [number] * num_tokens, SeqId(number), StepId(number), float(number)
    hit = kv.lookup(tokens, ROOT)
    kv.open(seq, ROOT, hit, now)
    if kv.reserve(seq, num_tokens, now) is None:
        raise SystemExit("the pool is too small for a sequence")
    kv.submitted(StepPlan(step, LANE, (), (), (), (Chunk(seq, 0, num_tokens, tuple(tokens)),)))
    kv.commit(step, seq, tokens, now)
    kv.collected(step)
    kv.release(seq, now)


def us_per_block(groups: list[CacheGroup], num_pages: int) -> float:
    kv = memory(groups, num_pages)
    filled = num_pages * 5 // BLOCKS_OF_LIFE + 5
    for number in range(filled):
        live(kv, number, BLOCKS_OF_LIFE * BLOCK)
    gc.collect()
    gc.disable()
    began = time.process_time()
    for number in range(filled, filled + LIVES):
        live(kv, number, BLOCKS_OF_LIFE * BLOCK)
    taken = time.process_time() - began
    gc.enable()
    if not kv.explain().index.num_evictions:
        raise SystemExit("nothing was evicted")
    return taken / LIVES / BLOCKS_OF_LIFE * 1e6


def us_per_step(groups: list[CacheGroup], num_seqs: int = 64, num_steps: int = 400) -> float:
    """Per sequence and decode step."""
    kv = memory(groups, 4000)
    prompt = 200
    for n in range(num_seqs):
        kv.open(SeqId(n), ROOT, kv.no_hit(), 0.0)
        kv.reserve(SeqId(n), prompt, 0.0)
    chunks = tuple(Chunk(SeqId(n), 0, prompt, (n,) * prompt) for n in range(num_seqs))
    kv.submitted(StepPlan(StepId(0), LANE, (), (), (), chunks))
    for n in range(num_seqs):
        kv.commit(StepId(0), SeqId(n), (n,) * prompt, 0.0)
    kv.collected(StepId(0))
    gc.collect()
    gc.disable()
    began = time.process_time()
    for step in range(1, num_steps + 1):
        now, start = float(step), prompt + step - 1
        for n in range(num_seqs):
            kv.reserve(SeqId(n), start + 1, now)
        chunks = tuple(Chunk(SeqId(n), start, 1, FROM_DEVICE) for n in range(num_seqs))
        kv.submitted(StepPlan(StepId(step), LANE, (), (), (), chunks))
        for n in range(num_seqs):
            kv.commit(StepId(step), SeqId(n), (step,), now)
        kv.collected(StepId(step))
    taken = time.process_time() - began
    gc.enable()
    return taken / num_steps / num_seqs * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    print(f"{'groups':<18}{'us a step and sequence':>24}{'us a block: 1,000 pages':>25}{'4,000':>9}{'16,000':>9}")
    for name, groups in GROUPS.items():
        step = min(us_per_step(groups) for _ in range(repeat))
        blocks = [min(us_per_block(groups, pages) for _ in range(repeat)) for pages in (1000, 4000, 16_000)]
        print(f"{name:<18}{step:>24.2f}{blocks[0]:>25.2f}{blocks[1]:>9.2f}{blocks[2]:>9.2f}")


if __name__ == "__main__":
    main()
