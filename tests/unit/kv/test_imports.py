"""Keys and values that another device computed."""

from __future__ import annotations

import pytest
from tests.unit.kv.kit import Stage, make_kv, words

from plait.core.errors import InvariantError
from plait.core.ids import SeqId


def imported(text: str, num_tokens: int, *, publish: bool = True) -> tuple[Stage, SeqId]:
    stage = Stage(make_kv(6, 1))
    seq = stage.open(text, publish=publish)
    stage.reserve(seq, len(text))
    stage.kv.imported(seq, words(text)[:num_tokens], stage.now_s)
    stage.done[seq] = num_tokens
    stage.kv.check()
    return stage, seq


@pytest.mark.parametrize("publish", [True, False])
def test_what_was_imported_is_as_if_it_had_been_computed(publish: bool) -> None:
    stage, seq = imported("aaaabbbbcc", 9, publish=publish)
    assert stage.cached_tokens("aaaabbbbx") == (8 if publish else 0)
    chunk = stage.chunk(seq, 1)
    assert (chunk.start, chunk.num_tokens) == (9, 1)
    stage.finish(stage.submit(chunk))
    stage.kv.check()
    stage.release(seq)
    assert stage.kv.usage().used_bytes == 0


def test_nothing_is_imported_behind_what_is_there_or_beyond_the_reserved_slots() -> None:
    stage, seq = imported("aaaabbbb", 4)
    with pytest.raises(InvariantError, match="nothing may be there before"):
        stage.kv.imported(seq, words("aaaa"), stage.now_s)
    fresh = stage.open("cccc")
    with pytest.raises(InvariantError, match="imports 4 tokens into 0 slots"):
        stage.kv.imported(fresh, words("cccc"), stage.now_s)
