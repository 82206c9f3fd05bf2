"""Leases, on a tiny memory: what somebody who waits will want goes last, and nobody goes short for it."""

from __future__ import annotations

import pytest
from tests.unit.kv.kit import ROOT, Stage, make_kv, words

from plait.core.errors import InvariantError
from plait.core.ids import SeqId
from plait.kv.leases import LEASED_FRACTION

WAITING, OTHER = SeqId(1000), SeqId(1001)


def stage(num_pages: int = 20) -> Stage:
    """Blocks of four tokens; a fifth of them may be leased."""
    return Stage(make_kv(num_pages))


def lease(on: Stage, text: str, seq: SeqId = WAITING, seconds: float = 10.0) -> bool:
    hit = on.kv.lookup(words(text), ROOT)
    return on.kv.leases.take(seq, hit, on.now_s, on.now_s + seconds)


def pressure(on: Stage, num_blocks: int) -> SeqId:
    """Somebody runs who needs so many blocks."""
    seq = on.admit("z" * (4 * num_blocks), publish=False)
    on.kv.check()
    return seq


def test_what_is_leased_outlives_what_is_younger() -> None:
    on = stage()
    on.cache("aaaabbbb")
    on.cache("cccc" * 4)
    assert lease(on, "aaaabbbbx")
    pressure(on, 16)
    assert (on.cached_tokens("aaaabbbb"), on.cached_tokens("cccc" * 4)) == (8, 8)
    assert lease(on, "nothing of it is cached", OTHER) is False


def test_without_a_lease_the_oldest_goes() -> None:
    on = stage()
    on.cache("aaaabbbb")
    on.cache("cccc" * 4)
    pressure(on, 16)
    assert (on.cached_tokens("aaaabbbb"), on.cached_tokens("cccc" * 4)) == (0, 16)


def test_who_runs_takes_leased_blocks_before_he_goes_without() -> None:
    on = stage()
    on.cache("aaaabbbb")
    assert lease(on, "aaaabbbbx")
    assert on.kv.available_tokens == 80
    pressure(on, 19)
    assert on.cached_tokens("aaaabbbb") == 4
    assert on.kv.leases.leased_bytes == 4 * 8
    on.kv.leases.end(WAITING)
    on.kv.check()
    assert on.kv.leases.leased_bytes == 0


def test_leases_have_a_fifth_of_the_memory_all_together() -> None:
    on = stage()
    for text in ("aaaabbbbcccc", "ddddeeee", "ffff"):
        on.cache(text)
    assert lease(on, "aaaabbbbccccx")
    assert not lease(on, "ddddeeeex", OTHER), "3 + 2 of 20 blocks"
    assert lease(on, "ffffx", OTHER)
    assert on.kv.leases.leased_bytes == LEASED_FRACTION * on.kv.usage().total_bytes
    on.kv.leases.end(WAITING)
    assert lease(on, "ddddeeeex")


def test_what_two_lease_counts_once_and_stays_until_both_have_ended() -> None:
    on = stage()
    on.cache("aaaabbbb")
    on.cache("cccc" * 4)
    assert lease(on, "aaaabbbbx")
    assert lease(on, "aaaabbbby", OTHER)
    assert on.kv.leases.leased_bytes == 2 * 4 * 8
    on.kv.leases.end(WAITING)
    pressure(on, 16)
    assert on.cached_tokens("aaaabbbb") == 8


def test_a_lease_ends_with_its_time() -> None:
    on = stage()
    on.cache("aaaabbbb")
    on.cache("cccc" * 4)
    assert lease(on, "aaaabbbbx", seconds=5.0)
    on.now_s += 5.0
    pressure(on, 16)
    assert len(on.kv.leases) == 0
    assert on.cached_tokens("aaaabbbb") == 0
    assert not lease(on, "ccccx", seconds=0.0)


def test_leases_of_who_is_not_there_are_nothing_to_end_and_two_of_one_are_a_fault() -> None:
    on = stage()
    on.cache("aaaa")
    on.kv.leases.end(OTHER)
    assert lease(on, "aaaax")
    with pytest.raises(InvariantError, match="leases a second hit"):
        lease(on, "aaaax")
