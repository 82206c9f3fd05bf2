"""What the memory costs in Python: a decode step of 64 sequences; allocating, evicting and hitting, per block.

    .venv/bin/python bench/memory_per_block.py [--repeat 5] [--against CHECKOUT] [--json]

Allocating: fresh blocks of an empty memory, and giving them back. Evicting: reserving where every block is cached, so
that each must be taken from somebody. Hitting: looking up a cached prompt, opening it, leaving. CPU time of this
process, the least of several repeats; for pools of three sizes, because the cost must not depend on them. `--against`
runs the same in turn (A B B A) with the sources of another checkout, and prints the quotients.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from math import lcm
from pathlib import Path

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


def live(kv: KVCache, number: int, num_tokens: int) -> int:
    """One sequence, from lookup to release, at second `number`. Nanoseconds that its reservation took."""
    tokens, seq, step, now = [number] * num_tokens, SeqId(number), StepId(number), float(number)
    hit = kv.lookup(tokens, ROOT)
    kv.open(seq, ROOT, hit, now)
    began = time.process_time_ns()
    granted = kv.reserve(seq, num_tokens, now)
    took = time.process_time_ns() - began
    if granted is None:
        raise SystemExit("the pool is too small for a sequence")
    kv.submitted(StepPlan(step, LANE, (), (), (), (Chunk(seq, 0, num_tokens, tuple(tokens)),)))
    kv.commit(step, seq, tokens, now)
    kv.collected(step)
    kv.release(seq, now)
    return took


def _timed(work: Callable[[int], None], numbers: Sequence[int]) -> float:
    """Nanoseconds for each number."""
    began = time.process_time_ns()
    for number in numbers:
        work(number)
    return (time.process_time_ns() - began) / len(numbers)


def allocate_ns(groups: list[CacheGroup], num_pages: int) -> float:
    kv = memory(groups, num_pages)
    blocks = BLOCKS_OF_LIFE * BLOCK

    def one(number: int) -> None:
        kv.open(SeqId(number), ROOT, kv.no_hit(), 0.0, publish=False)
        kv.reserve(SeqId(number), blocks, 0.0)
        kv.release(SeqId(number), 0.0)

    for number in range(LIVES):
        one(number)
    return _timed(one, range(LIVES, 5 * LIVES)) / BLOCKS_OF_LIFE


def filled_memory(groups: list[CacheGroup], num_pages: int) -> tuple[KVCache, int]:
    """Everything is cached, and the next sequence's number."""
    kv, filled = memory(groups, num_pages), num_pages * 5 // BLOCKS_OF_LIFE + 5
    for number in range(filled):
        live(kv, number, BLOCKS_OF_LIFE * BLOCK)
    return kv, filled


def evict_ns(groups: list[CacheGroup], num_pages: int) -> float:
    """Of `reserve` alone, while each life publishes what the next ones have to take."""
    kv, first = filled_memory(groups, num_pages)
    spent = sum(live(kv, number, BLOCKS_OF_LIFE * BLOCK) for number in range(first, first + LIVES))
    if not kv.explain().index.num_evictions:
        raise SystemExit("nothing was evicted")
    return spent / LIVES / BLOCKS_OF_LIFE


def hit_ns(groups: list[CacheGroup], num_pages: int) -> float:
    kv, first = filled_memory(groups, num_pages)
    prompt = [first - 1] * (BLOCKS_OF_LIFE * BLOCK) + [0]
    now = float(first)

    def one(number: int) -> None:
        hit = kv.lookup(prompt, ROOT)
        if hit.num_tokens != BLOCKS_OF_LIFE * BLOCK:
            raise SystemExit(f"only {hit.num_tokens} tokens were hit")
        kv.open(SeqId(number), ROOT, hit, now)
        kv.release(SeqId(number), now)

    return _timed(one, range(first, first + 2 * LIVES)) / BLOCKS_OF_LIFE


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


MEASURES = {"allocate": allocate_ns, "evict": evict_ns, "hit": hit_ns}
POOLS = (1000, 4000, 16_000)


def measured(repeat: int, names: Sequence[str]) -> dict[str, float]:
    """Nanoseconds by what was measured: per block and pool, and per sequence of a decode step."""
    found: dict[str, float] = {}
    for name in names:
        groups = GROUPS[name]
        found[f"{name}, step"] = 1e3 * min(us_per_step(groups) for _ in range(repeat))
        for what, measure in MEASURES.items():
            for pages in POOLS:
                times = []
                for _ in range(repeat):
                    gc.collect()
                    gc.disable()
                    times.append(measure(groups, pages))
                    gc.enable()
                found[f"{name}, {what}, {pages}"] = min(times)
    return found


def compared(checkout: Path, repeat: int) -> None:
    """One group, as every version has it."""
    here, script = Path(__file__).parents[1], Path(__file__)
    found: dict[Path, list[dict[str, float]]] = {here: [], checkout: []}
    for root in (here, checkout, checkout, here):
        command = [sys.executable, str(script), "--json", "--only", "full", "--repeat", str(repeat)]
        environment = {**os.environ, "PYTHONPATH": str(root / "src")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found[root].append(json.loads(done.stdout.splitlines()[-1]))
    quotients = {}
    for name in found[here][0]:
        ours, theirs = (min(one[name] for one in found[root]) for root in (here, checkout))
        quotients[name] = ours / theirs
        print(f"{name:<28}{ours:>10,.0f} ns{theirs:>10,.0f} ns{ours / theirs:>8.2f} x")
    print(json.dumps(quotients))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", choices=list(GROUPS))
    parser.add_argument("--against", type=Path, help="a checkout of another version")
    parser.add_argument("--json", action="store_true", help="nothing but the last line")
    parser.add_argument("--quick", action="store_true", help="once each")
    args = parser.parse_args()
    if args.against is not None:
        return compared(args.against, args.repeat)
    names = list(GROUPS) if args.only is None else [args.only]
    found = measured(1 if args.quick else args.repeat, names)
    for name in names if not args.json else ():
        print(f"{name}: {found[f'{name}, step']:,.0f} ns for a decode step of one sequence")
        print(f"  {'ns a block':<12}" + "".join(f"{pages:>9,} pages" for pages in POOLS))
        for what in MEASURES:
            print(f"  {what:<12}" + "".join(f"{found[f'{name}, {what}, {pages}']:>15,.0f}" for pages in POOLS))
    return print(json.dumps(found))


if __name__ == "__main__":
    main()
