"""Is a pool for common prefixes worth having? Hit rates of caches of blocks on recorded traffic, by size and by split.

    python bench/common_prefixes.py mooncake_conversation.jsonl agentic_coding_sessions.jsonl

Compared are one list in order of last use (LRU, what Plait evicts by), a list with a pool beside it for blocks that
were hit twice, at fixed shares of the memory (Jenga, SOSP 2025: common page pool), and a share that follows the best of
its shadows. Traces: Mooncake's form (`hash_ids`) or sessions of coding agents (`blocks` as ranges); .gz too. Prints a
table, and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
PARTS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Sizes of the cache, of all blocks that a trace has."""
COMMON_HITS = 2
PERIOD = 100
"""Requests after which the share is set anew."""
MEMORY = 0.8
"""What a shadow's hits of earlier periods still count."""
UNIT = 8
"""Blocks of 64 tokens of an agent's trace that are one here."""
STAGGER_S = 40.0
"""Between the beginnings of two sessions of agents."""
WITHIN, NEVER_BELOW = 0.02, 0.0

Request = Sequence[object]


@dataclass
class Cache:
    """`size` blocks, of which those hit twice may have up to `share`; beyond that their oldest become regular."""

    size: int
    share: float
    hit_blocks: int = 0
    asked_blocks: int = 0
    regular: OrderedDict[object, int] = field(default_factory=OrderedDict)
    """Blocks and how often each was hit, the oldest first."""
    common: OrderedDict[object, int] = field(default_factory=OrderedDict)

    def ask(self, blocks: Request) -> int:
        """The blocks of a prompt from its first on; returns how many of its beginning were there."""
        hits = 0
        for block in blocks:
            if block not in self.regular and block not in self.common:
                break
            hits += 1
        # The tail is older than the head at equal times, as in the memory's index.
        for place in range(len(blocks) - 1, -1, -1):
            self._touch(blocks[place], place < hits)
        self._shrink()
        self.hit_blocks += hits
        self.asked_blocks += len(blocks)
        return hits

    def _touch(self, block: object, is_hit: bool) -> None:
        if block in self.common:
            self.common.move_to_end(block)
            return
        count = self.regular.pop(block, 0) + is_hit
        if count >= COMMON_HITS and self.share > 0:
            self.common[block] = count
        else:
            self.regular[block] = count

    def _shrink(self) -> None:
        while len(self.common) > self.share * self.size:
            block, count = self.common.popitem(last=False)
            self.regular[block] = count
        while len(self.regular) + len(self.common) > self.size:
            (self.regular or self.common).popitem(last=False)

    @property
    def hit_rate(self) -> float:
        return self.hit_blocks / self.asked_blocks if self.asked_blocks else 0.0


def follow(requests: Iterable[Request], size: int) -> float:
    """The hit rate of a cache whose share is that of the shadow with the most recent hits."""
    shadows = [Cache(size, share) for share in (0.0, *SHARES)]
    scores = [0.0] * len(shadows)
    cache = Cache(size, 0.0)
    for number, blocks in enumerate(requests, start=1):
        for place, shadow in enumerate(shadows):
            scores[place] += shadow.ask(blocks)
        cache.ask(blocks)
        if number % PERIOD == 0:
            # Ties go to the smaller share: the plain list, if nothing is better.
            cache.share = shadows[max(range(len(scores)), key=lambda place: (scores[place], -place))].share
            scores = [score * MEMORY for score in scores]
    return cache.hit_rate


def mooncake(lines: Iterable[str]) -> list[Request]:
    return [json.loads(line)["hash_ids"] for line in lines]


def agents(lines: Iterable[str]) -> list[Request]:
    """Requests of sessions that begin one after the other. Tools and instructions are common to all."""
    found: list[tuple[float, Request]] = []
    for number, line in enumerate(lines):
        session = json.loads(line)
        shared = (session["tool_tokens"] + session["system_tokens"]) // session["block_size"]
        for request in session["requests"]:
            ids = [block for first, last in request["blocks"] for block in range(first, last + 1)]
            whose = [-1 if place < shared else number for place in range(len(ids))]
            named = [(whose[place], *ids[place : place + UNIT]) for place in range(0, len(ids), UNIT)]
            found.append((STAGGER_S * number + request["t"], named))
    return [request for _, request in sorted(found, key=lambda one: one[0])]


def read(path: Path) -> list[Request]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        lines = file.read().splitlines()
    return mooncake(lines) if "hash_ids" in json.loads(lines[0]) else agents(lines)


def rates(requests: list[Request], size: int) -> Iterator[tuple[str, float]]:
    for share in (0.0, *SHARES):
        cache = Cache(size, share)
        for blocks in requests:
            cache.ask(blocks)
        yield "LRU" if not share else f"pool {share:.0%}", cache.hit_rate
    yield "following", follow(requests, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    results: list[dict[str, object]] = []
    is_worth_it = True
    for path in parser.parse_args().traces:
        requests = read(path)
        total = len({block for blocks in requests for block in blocks})
        print(f"{path.name}: {len(requests)} requests, {total} blocks")
        for part in PARTS:
            found = dict(rates(requests, max(1, int(part * total))))
            best = max(rate for name, rate in found.items() if name != "following")
            holds = found["following"] >= best - WITHIN and found["following"] >= found["LRU"] - NEVER_BELOW
            is_worth_it = is_worth_it and holds
            print(f"  {part:4.0%}  " + "  ".join(f"{name} {rate:6.2%}" for name, rate in found.items()))
            results.append({"trace": path.name, "part": part, **found})
    print(json.dumps({"schema": "plait.bench.common_prefixes/1", "kept": is_worth_it, "results": results}))


if __name__ == "__main__":
    main()
