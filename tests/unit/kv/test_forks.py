"""Forks: what a living sequence has committed of a block that is not full yet is copied instead of computed."""

from __future__ import annotations

import pytest
from tests.unit.kv.kit import ROOT, Stage, make_kv

from plait.core.errors import InvariantError
from plait.core.ids import GroupId, SeqId
from plait.core.step import Move
from plait.kv.cache import Hit

LIMIT = 6
"""Tokens of a prompt of seven that need not be computed twice."""


def fork(stage: Stage, source: SeqId, text: str = "aaaabbc") -> tuple[SeqId, Hit]:
    """A sequence that was opened beside `source`, with all its blocks reserved."""
    seq = SeqId(90)
    hit = stage.kv.beside(stage.hit(text), source, LIMIT)
    stage.kv.open(seq, ROOT, hit, stage.now_s)
    stage.texts[seq], stage.done[seq] = [ord(letter) for letter in text], hit.num_reused
    return seq, hit


def test_committed_tokens_of_a_block_that_is_not_full_are_a_tail() -> None:
    stage = Stage(make_kv(8))
    source = stage.run("aaaabbc")
    assert stage.hit("aaaabbc").num_reused == 4
    seq, hit = fork(stage, source)
    assert hit.num_reused == LIMIT
    grants = stage.reserve(seq, 7)
    assert grants is not None
    assert grants.moves == (Move(GroupId(0), stage.table(source)[1], 0, stage.table(seq)[1], 0, 2),)
    stage.kv.check()
    step = stage.submit(stage.chunk(seq), moves=grants.moves)
    stage.kv.check()
    stage.kv.commit(step, seq, stage.texts[seq][4:], stage.now_s)
    stage.kv.collected(step)
    stage.release(source, seq)
    stage.kv.check()


def test_a_source_that_ends_while_it_is_copied_keeps_its_block_until_then() -> None:
    stage = Stage(make_kv(4))
    source = stage.run("aaaabbc")
    seq, _ = fork(stage, source)
    grants = stage.reserve(seq, 7)
    assert grants is not None
    step = stage.submit(stage.chunk(seq), moves=grants.moves)
    stage.release(source)
    stage.kv.check()
    assert stage.kv.num_quarantined == 1
    stage.kv.commit(step, seq, stage.texts[seq][4:], stage.now_s)
    stage.kv.collected(step)
    assert stage.kv.num_quarantined == 0
    stage.kv.check()


def test_one_that_ends_before_it_is_copied_is_a_broken_promise() -> None:
    stage = Stage(make_kv(8))
    source = stage.run("aaaabbc")
    seq, _ = fork(stage, source)
    grants = stage.reserve(seq, 7)
    assert grants is not None
    stage.release(source)
    with pytest.raises(InvariantError, match="copies"):
        stage.submit(stage.chunk(seq), moves=grants.moves)


def test_nothing_is_taken_that_is_in_flight_or_another_prefix_or_not_to_be_shared() -> None:
    stage = Stage(make_kv(16))
    source = stage.admit("aaaabbc")
    stage.finish(stage.submit(stage.chunk(source, 4)))
    running = stage.submit(stage.chunk(source))
    hit = stage.hit("aaaabbc")
    assert stage.kv.beside(hit, source, LIMIT) == hit, "what is in flight is not there"
    stage.finish(running)
    assert stage.kv.beside(stage.hit("xxxxbbc"), source, LIMIT).num_reused == 0, "its block is behind other tokens"
    private = stage.run("ccccdde", publish=False)
    assert stage.kv.beside(stage.hit("ccccdde"), private, LIMIT).num_reused == 0
    assert stage.kv.beside(hit, SeqId(77), LIMIT) == hit, "nobody of that name"


def test_a_longer_tail_of_the_index_stays() -> None:
    stage = Stage(make_kv(16))
    stage.cache("aaaabbcd")
    source = stage.run("aaaabb")
    assert stage.kv.beside(stage.hit("aaaabbc"), source, LIMIT).tail == stage.hit("aaaabbc").tail
