"""What the memory does for each block does not depend on how large the memory is: counted in calls, not timed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial

import pytest
from bench.memory_per_block import BLOCK, BLOCKS_OF_LIFE, GROUPS, ROOT, filled_memory, live, memory

from plait.core.ids import SeqId
from plait.kv.cache import KVCache

SIZES = (200, 1_600)
"""Pages; the larger memory has eight times as much cached."""
TOKENS = BLOCKS_OF_LIFE * BLOCK


def calls(work: Callable[[int], object], first: int, count: int = 20) -> float:
    """Of functions, built-in ones too, for a number and those behind it, in the mean."""
    seen = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    gc.disable()  # whoever listens to it would be counted
    sys.setprofile(note)
    try:
        for number in range(first, first + count):
            work(number)
    finally:
        sys.setprofile(None)
        gc.enable()
    return seen / count


def allocate(kv: KVCache, number: int) -> None:
    kv.open(SeqId(number), ROOT, kv.no_hit(), 0.0, publish=False)
    kv.reserve(SeqId(number), TOKENS, 0.0)
    kv.release(SeqId(number), 0.0)


def hit(kv: KVCache, prompt: list[int], now_s: float, number: int) -> None:
    found = kv.lookup(prompt, ROOT)
    assert found.num_tokens == TOKENS
    kv.open(SeqId(number), ROOT, found, now_s)
    kv.release(SeqId(number), now_s)


def evict(kv: KVCache, number: int) -> None:
    live(kv, number, TOKENS)


@pytest.mark.parametrize("groups", GROUPS)
def test_allocating_costs_the_same_in_a_large_memory(groups: str) -> None:
    found = []
    for pages in SIZES:
        kv = memory(GROUPS[groups], pages)
        allocate(kv, 0)
        found.append(calls(partial(allocate, kv), 1))
    assert found[0] == found[1] < 20 * BLOCKS_OF_LIFE


@pytest.mark.parametrize("groups", GROUPS)
def test_evicting_and_hitting_cost_the_same_in_a_large_memory(groups: str) -> None:
    evicting, hitting = [], []
    for pages in SIZES:
        kv, first = filled_memory(GROUPS[groups], pages)
        before = kv.explain().index.num_evictions
        evicting.append(calls(partial(evict, kv), first))
        assert kv.explain().index.num_evictions >= before + 20 * BLOCKS_OF_LIFE
        prompt, now_s = [first + 19] * TOKENS + [0], float(first + 20)
        hitting.append(calls(partial(hit, kv, prompt, now_s), first + 20, 60))
    assert max(evicting) <= 1.05 * min(evicting), evicting
    assert max(hitting) <= 1.05 * min(hitting), hitting
