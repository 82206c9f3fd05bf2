"""A draft model's blocks: on the pages of all, and the first to go when running sequences need them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kv.kit import ROOT, Stage, full_groups, make_group, make_layout

from plait.core.errors import InvariantError
from plait.core.ids import SeqId, StepId
from plait.core.step import BlockGrant
from plait.kv.cache import KVCache

A, B, C = SeqId(100), SeqId(101), SeqId(102)
STEP = StepId(1000)


def make(num_pages: int = 8, draft_blocks_per_page: int = 2, *, enable_prefix: bool = True) -> KVCache:
    """Blocks of four tokens; one of the target is a page, and so are `draft_blocks_per_page` of the draft model."""
    layers = draft_blocks_per_page
    groups = [make_group(0, layers)]
    target = make_layout(num_pages, groups, layers, 4)
    return KVCache(target, groups, enable_prefix, drafts=make_layout(num_pages, [make_group(0, 1)], layers, 4))


def test_they_take_pages_of_the_one_pool_and_are_said_to() -> None:
    kv = make()
    granted = kv.drafts.reserve(A, 9, 0)
    assert granted is not None
    assert [(one.seq, one.group, one.first, len(one.blocks)) for one in granted] == [(A, 0, 0, 3)]
    assert kv.drafts.reserve(A, 12, 0) == ()
    more = kv.drafts.reserve(A, 13, 0)
    assert more is not None
    assert kv.drafts.whole(A) == (BlockGrant(A, granted[0].group, 0, granted[0].blocks + more[0].blocks),)
    report = kv.explain()
    assert [(one.name, one.num_pages, one.blocks.used) for one in report.groups] == [
        ("full0", 0, 0),
        ("draft full0", 2, 4),
    ]
    assert report.groups[1].idle_bytes == 3 * report.groups[1].bytes_per_token  # 13 of 16 slots
    usage = report.usage
    assert (usage.free_pages, usage.used_bytes, usage.evictable_bytes) == (6, 0, 2 * report.page_bytes)
    kv.check()
    kv.drafts.release(A)
    assert kv.usage().free_bytes == usage.total_bytes


def test_a_page_of_another_size_is_refused() -> None:
    groups = full_groups(1)
    with pytest.raises(InvariantError, match="a draft model has 9 pages of"):
        KVCache(make_layout(8, groups, 1, 4), groups, drafts=make_layout(9, groups, 1, 4))


def test_the_target_has_room_as_if_they_were_not_there() -> None:
    stage = Stage(make())
    empty = stage.kv.available_tokens
    for seq in (A, B, C):
        assert stage.kv.drafts.reserve(seq, 16, 0) is not None
    assert stage.kv.available_tokens == empty == stage.kv.capacity_tokens
    stage.admit("abcd abcd abcd abcd")
    assert A in stage.kv.drafts
    assert C not in stage.kv.drafts, "the youngest goes first"
    stage.admit("efgh efgh efgh efgh")
    assert list(stage.kv.drafts.sequences) == []
    assert stage.kv.drafts.num_dropped == 3
    assert stage.kv.explain().groups[1].num_evicted == 12
    stage.kv.check()


def test_cached_prefixes_go_before_them() -> None:
    stage = Stage(make())
    stage.cache("abcd abcd abcd abcd")
    assert stage.kv.drafts.reserve(A, 16, 0) is not None
    stage.admit("efgh efgh efgh efgh")
    assert A in stage.kv.drafts
    assert stage.cached_tokens("abcd abcd abcd abcd") < 16


def test_they_evict_cached_prefixes_but_leave_everybody_his_next_block() -> None:
    stage = Stage(make())
    stage.cache("abcd abcd abcd abcd")
    stage.admit("efgh")
    assert stage.kv.drafts.reserve(A, 48, 1) is not None  # six pages, one is left
    assert stage.cached_tokens("abcd abcd abcd abcd") == 4
    assert stage.kv.drafts.reserve(B, 4, 1) is None
    assert B not in stage.kv.drafts
    assert stage.kv.drafts.reserve(B, 4, 0) is not None
    stage.kv.check()


def test_what_a_step_in_flight_names_stays() -> None:
    stage = Stage(make())
    for seq in (A, B):
        assert stage.kv.drafts.reserve(seq, 16, 0) is not None
    stage.kv.drafts.submitted(STEP, [A])
    assert stage.kv.available_tokens == 16
    stage.kv.drafts.release(A)
    stage.kv.check()
    assert stage.kv.usage().free_pages == 4
    assert stage.kv.drafts.reserve(A, 4, 0) is not None
    stage.kv.drafts.collected(STEP)
    stage.kv.check()
    assert stage.kv.usage().free_pages == 5
    assert stage.kv.available_tokens == 32


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3]), st.booleans())
def test_whatever_happens_the_target_gets_what_it_was_promised(seed: int, per_page: int, enable_prefix: bool) -> None:
    dice = Random(seed)
    stage = Stage(make(8, per_page, enable_prefix=enable_prefix))
    kv, step = stage.kv, 1000
    flights: dict[StepId, list[SeqId]] = {}
    live: list[SeqId] = []
    for _ in range(80):
        stage.now_s += 1.0
        drafting = list(kv.drafts.sequences)
        match dice.randrange(6):
            case 0:
                text = "".join(dice.choice("ab") for _ in range(dice.randint(1, 20)))
                fits = kv.fits(stage.hit(text) if enable_prefix else kv.no_hit(), len(text), 0)
                seq = stage.open(text, root=ROOT)
                if stage.reserve(seq, len(text)) is None:
                    assert not fits
                    stage.release(seq)
                else:
                    stage.finish(stage.submit(stage.chunk(seq)))
                    live.append(seq)
            case 1 if live:
                stage.release(live.pop(dice.randrange(len(live))))
            case 2 | 3:
                kv.drafts.reserve(SeqId(100 + dice.randrange(4)), dice.randint(1, 24), len(live))
            case 4 if drafting:
                named = dice.sample(drafting, dice.randint(1, len(drafting)))
                step += 1
                kv.drafts.submitted(StepId(step), named)
                flights[StepId(step)] = named
            case 5 if drafting and dice.random() < 0.5:
                kv.drafts.release(dice.choice(drafting))
            case _ if flights:
                done = next(iter(flights))
                del flights[done]
                kv.drafts.collected(done)
        kv.check()
    for done in flights:
        kv.drafts.collected(done)
    for seq in [*kv.drafts.sequences]:
        kv.drafts.release(seq)
    stage.release(*live)
    kv.check()
    kv.reset_prefix_index()
    assert kv.usage().free_bytes == kv.usage().total_bytes
