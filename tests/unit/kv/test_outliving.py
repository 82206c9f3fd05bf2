"""Outliving: what a sequence computed and will never look at again does not push out what others can still hit.

Four tokens per block, a window of 5 tokens, one block per page, so that every block of any group helps any other.
"""

from __future__ import annotations

import pytest
from tests.unit.kv.kit import Stage, make_layout, mixed_groups

from plait.core.ids import GroupId
from plait.kv.cache import KVCache
from plait.kv.rules import MemoryRules

WINDOW = GroupId(1)


def make(num_pages: int, kept_behind: int = 4) -> Stage:
    groups = mixed_groups((1, 1), [("full", 0), ("window", 5)], 4)
    layout = make_layout(num_pages, groups, groups[0].num_layers, 4)
    return Stage(KVCache(layout, groups, rules=MemoryRules(kept_behind=kept_behind)))


def letters(start: int, num_blocks: int) -> str:
    return "".join(chr(start + block) * 4 for block in range(num_blocks))


def compute(stage: Stage, text: str, *, prompt: int | None = None, chunk: int = 8) -> None:
    """A prompt in chunks, then an answer token by token, at a second each; the prompt's length is what is reserved."""
    seq = stage.open(text)
    end = len(text) if prompt is None else prompt
    while (done := stage.done[seq]) < len(text):
        stage.now_s += 1
        size = min(chunk, end - done) if done < end else 1
        grants = stage.kv.reserve(seq, max(end, done + 1), stage.now_s, up_to=done + size)
        assert grants is not None
        stage.finish(stage.submit(stage.chunk(seq, size), moves=grants.moves))
    stage.release(seq)
    stage.kv.check()


def pieces(stage: Stage, text: str) -> list[bool]:
    """Which blocks of a cached text the window has."""
    node, found = stage.kv._index.root(next(iter(stage.kv._index.roots())).root), []
    for start in range(0, len(text) - len(text) % 4, 4):
        node = node.children.get(tuple(ord(letter) for letter in text[start : start + 4])) if node else None
        found.append(node is not None and WINDOW in node.pieces)
    return found


def test_a_new_document_does_not_push_out_an_old_one_with_what_nobody_will_read() -> None:
    """Ten blocks each: ten of full attention and three of the window are of use. 27 pages hold two that way, and one if
    all that was ever in the window counts as younger than the old document.
    """
    stage, old, new = make(27), letters(100, 10), letters(300, 10)
    compute(stage, old)
    compute(stage, new)
    assert (stage.cached_tokens(old), stage.cached_tokens(new)) == (40, 40)
    unbalanced = Stage(
        KVCache(stage.kv._layout, [one.group for one in stage.kv._layout.groups], rules=MemoryRules(balanced=False))
    )
    compute(unbalanced, old)
    compute(unbalanced, new)
    assert unbalanced.cached_tokens(old) < 40


def give_up(stage: Stage, num_blocks: int) -> None:
    """Make others need so many blocks, half of each group, beyond what is free."""
    stage.now_s += 1
    free = stage.kv.usage().free_pages
    stage.admit("".join(chr(5000 + n) for n in range(4 * ((free + num_blocks + 1) // 2))))


def test_the_end_of_the_prompt_can_be_hit_after_a_long_answer() -> None:
    """Another question about the same text: it parts where the prompt ended, which the window left long ago."""
    stage, text = make(60), letters(100, 6) + letters(300, 8)
    compute(stage, text, prompt=24)
    give_up(stage, 10)
    assert pieces(stage, text) == [False] * 4 + [True] * 2 + [False] * 6 + [True] * 2
    assert stage.cached_tokens(letters(100, 6)) == 24


def test_where_two_prompts_part_a_third_can_go_on() -> None:
    """The first never knew; the second, which computes the same beginning again if need be, keeps what a hit needs."""
    stage, shared = make(60), letters(100, 4)
    compute(stage, shared + letters(300, 8))
    give_up(stage, 4)
    stage.release(*list(stage.texts))
    assert stage.cached_tokens(shared) == 0, "what stands before the end of the shared beginning went first"
    compute(stage, shared + letters(400, 8))
    give_up(stage, 2)
    assert pieces(stage, shared)[-2:] == [True, True]
    assert stage.cached_tokens(shared) == 16


def test_what_was_hit_once_is_as_old_as_its_last_use() -> None:
    stage, shared = make(60), letters(100, 3)
    compute(stage, shared)
    compute(stage, shared + letters(300, 8))
    give_up(stage, 2)
    assert stage.cached_tokens(shared) == 12


@pytest.mark.parametrize(("kept_behind", "hit"), [(0, 0), (8, 32)])
def test_a_hit_may_end_some_tokens_before_what_is_cached(kept_behind: int, hit: int) -> None:
    """A question of eight tokens behind a text of 32: the next one's hit ends before the question."""
    stage, text = make(40, kept_behind), letters(100, 8)
    compute(stage, text + "qqqqrrrr")
    give_up(stage, 9)
    assert stage.cached_tokens(text + "ssss") == hit
