"""What a running server says about its memory, from a real memory that was used, and how it reads."""

from __future__ import annotations

import json

import pytest
from tests.unit.kv.kit import ROOT, Stage, make_layout, mixed_groups

from plait.cli.inspect_server import Told, live_lines
from plait.cli.serve_memory import SCHEMA, debug_memory, explained, group_blocks, status_memory
from plait.config.engine_options import EngineOptions
from plait.core.ids import GroupId
from plait.kv.cache import KVCache

WINDOW = GroupId(1)


def used_memory() -> Stage:
    """A prompt of three blocks is cached; the window's last one is given up; the prompt comes again and runs."""
    groups = mixed_groups((1, 3), [("full", 0), ("window", 5)], 4)
    layout = make_layout(20, groups, groups[0].num_layers, 4)
    stage = Stage(KVCache(layout, groups))
    stage.cache("aaaabbbbcccc")
    index = stage.kv._index
    node = index.root(ROOT)
    while node is not None and node.children:
        node = next(iter(node.children.values()))
    assert node is not None
    index.drop(node.pieces[WINDOW])
    stage.now_s += 1
    stage.admit("aaaabbbbccccd")
    return stage


def test_a_group_s_loss_is_what_the_others_would_have_allowed() -> None:
    report = used_memory().kv.explain()
    full, window = report.groups
    assert (full.allowed_tokens, full.lost_tokens) == (12, 0)
    assert (window.allowed_tokens, window.lost_tokens) == (8, 4)
    assert report.index.asked_tokens == 12 + 13
    assert window.num_evicted == 1


def test_waste_is_empty_slots_padding_and_free_blocks_on_lent_pages() -> None:
    """The running sequence holds 13 tokens in four blocks; a page has three of the window's."""
    stage = used_memory()
    stage.now_s += 1
    report = stage.kv.explain()
    for group in report.groups:
        held = group.blocks.used + group.blocks.evictable + group.blocks.quarantined + group.blocks.free
        assert held * group.block_bytes == group.lent_bytes
        assert group.waste_bytes == group.idle_bytes + group.page_idle_bytes
        assert 0 < group.waste_bytes < group.lent_bytes
    full, window = report.groups
    # Eight tokens are hit and nothing behind them is computed yet: two blocks of four slots.
    assert full.idle_bytes == 8 * full.block_bytes // 4
    assert window.page_idle_bytes == window.blocks.free * window.block_bytes > 0


def test_the_answer_is_json_and_says_the_sentence() -> None:
    kv = used_memory().kv
    told = json.loads(json.dumps(debug_memory(kv.explain, None, EngineOptions(ablate="tails,balance"))))
    assert (told["schema"], told["layout"], told["ablated"]) == (SCHEMA, "paged", ["tails", "balance"])
    assert told["used_bytes"] + told["evictable_bytes"] + told["free_bytes"] == told["total_bytes"]
    assert told["waste_bytes"] == sum(sum(group["waste_bytes"].values()) for group in told["groups"])
    window = told["groups"][WINDOW]
    assert (window["allowed_hit_tokens"], window["lost_hit_tokens"], window["lost_hit_fraction"]) == (8, 4, 4 / 25)
    assert window["blocks"]["evicted"] == 1
    assert (
        "window1 alone kept 4 tokens from being hit, 16.0% of those asked for: its part of the prefix had been given up"
        in told["explained"]
    )


def test_metrics_and_the_status_page_say_the_same() -> None:
    kv = used_memory().kv
    of_groups, status = group_blocks(kv.explain), status_memory(kv.explain)
    rows = json.loads(json.dumps(status))["groups"]
    for one, row in zip(of_groups, rows, strict=True):
        assert (one.used, one.cached, one.free) == (row["used"], row["evictable"], row["free"])
        assert (one.allowed_hit_tokens, one.lost_hit_tokens) == (row["allowed_hit_tokens"], row["lost_hit_tokens"])
        assert one.idle_bytes + one.padding_bytes + one.page_idle_bytes == row["waste_bytes"]


def test_an_engine_without_a_cache_says_so() -> None:
    assert group_blocks(None) == []
    assert status_memory(None)["groups"] == []
    assert debug_memory(None, None, EngineOptions())["groups"] == []


def test_memory_that_finds_nothing_again_says_why() -> None:
    groups = mixed_groups((1,), [("full", 0)], 4)
    kv = KVCache(make_layout(4, groups, groups[0].num_layers, 4), groups, enable_prefix=False)
    assert explained(kv.explain()) == [
        "prefix caching is off (--enable-prefix-caching false), so nothing is found again"
    ]


def test_people_read_it_as_a_table() -> None:
    kv = used_memory().kv
    told = debug_memory(kv.explain, "cache pages of 1 KiB " + "and so on " * 20, EngineOptions())
    lines = live_lines(Told(dict(told), "a test"))
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    assert "hits    8 of 25 prompt tokens, 32.0 %; 1 blocks given up" in text
    assert next(line.split() for line in lines if line.startswith("window1"))[-4:] == ["32.0", "%", "16.0", "%"]


@pytest.mark.parametrize("missing", ["total_bytes", "prefix", "waste_bytes"])
def test_what_a_server_does_not_say_is_named(missing: str) -> None:
    told = dict(debug_memory(used_memory().kv.explain, None, EngineOptions()))
    del told[missing]
    with pytest.raises(Exception, match=missing):
        live_lines(Told(told, "http://there"))
