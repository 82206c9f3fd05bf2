"""Reports: fractions and the one line that people read."""

from __future__ import annotations

from dataclasses import replace

from plait.core.ids import GroupId
from plait.kv.report import BlockCounts, CacheReport, GroupReport, IndexReport, Usage

COUNTS = BlockCounts(used=3, evictable=2, free=1, quarantined=4)
USAGE = Usage(total_bytes=1000, used_bytes=700, evictable_bytes=200, free_bytes=100, free_pages=5, groups=(COUNTS,))
GROUP = GroupReport(GroupId(0), "layers 0-29", "full", 30, 32, 640, 20.0, 2, 5, COUNTS)
INDEX = IndexReport(True, 1, 5, 2, 7, 0, asked_tokens=80, hit_tokens=20)


def make_report(*groups: GroupReport) -> CacheReport:
    return CacheReport(1280, 10, 4, 2, 1, 96, 640, USAGE, groups or (GROUP,), INDEX)


def test_the_used_fraction_leaves_out_what_eviction_could_free() -> None:
    assert USAGE.fraction == 0.7


def test_the_hit_fraction_is_zero_before_anybody_asked() -> None:
    assert INDEX.hit_fraction == 0.25
    assert replace(INDEX, asked_tokens=0, hit_tokens=0).hit_fraction == 0.0


def test_a_report_reads_as_one_line_with_every_group() -> None:
    assert str(make_report(GROUP, replace(GROUP, name="layer 30"))) == (
        "5 of 10 pages free; "
        "layers 0-29 (full): 3 blocks used, 2 evictable, 1 free, 4 quarantined; "
        "layer 30 (full): 3 blocks used, 2 evictable, 1 free, 4 quarantined; "
        "room for 96 of 640 tokens; 4 sequences, 1 steps in flight"
    )
