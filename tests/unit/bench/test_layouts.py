"""Layouts compared: what is found again by number of documents, and the prompts that every layout gets."""

from __future__ import annotations

import pytest
from bench.layouts.memory_alone import hit_fraction
from bench.layouts.workload import Sizes, answers_batch, capacity_batch, documents_batch
from tests.unit.model.programs import tiny_program

from plait.kv.layouts.serving import cut
from plait.model.cache_layout import group_token_bytes, token_bytes
from plait.model.cache_type import CacheType
from plait.model.keeping import keep_all_tokens
from plait.model.visibility import CAUSAL, window

F16, BLOCK, VOCAB, WINDOW = CacheType.F16, 16, 5000, 64
SIZES = Sizes(document=768, questions=4, question=16, reply=8)
LIKE_GEMMA = tiny_program(*[CAUSAL if layer % 6 == 5 else window(WINDOW) for layer in range(6)])
BUDGET = 2 * SIZES.document * token_bytes(LIKE_GEMMA, F16)
"""Two documents where every layer keeps every token."""


def found_again(layout: str) -> list[float]:
    """By number of documents, from one on."""
    program = keep_all_tokens(LIKE_GEMMA) if layout == "uniform" else LIKE_GEMMA
    batches = [documents_batch(SIZES, count, VOCAB, 1) for count in range(1, 9)]
    return [hit_fraction(cut(program, layout, BLOCK, F16), BUDGET, batch, 64) for batch in batches]


def test_kinds_of_layers_find_again_at_least_what_uniform_memory_finds() -> None:
    """Each layer with a window needs 64 tokens of 768, and the 192 behind them: the closed form is four documents."""
    uniform, paged = found_again("uniform"), found_again("paged")
    needed = sum(
        group_token_bytes(g, F16) * min(SIZES.document, g.window + 192 if g.window else 768)
        for g in LIKE_GEMMA.cache_groups
    )
    documents = int(BUDGET / needed)
    assert documents == 4
    most = 3 / 4 * (SIZES.document - 32) / (SIZES.document - 8)
    assert all(rate >= most for rate in paged[:documents]), "all that can be found: three questions of four"
    assert all(mine >= theirs for mine, theirs in zip(paged, uniform, strict=True))
    assert paged[3] >= 2 * uniform[3]


@pytest.mark.parametrize("layout", ["vllm", "max-page", "static", "manual:full=1:window=1"])
def test_every_layout_finds_one_document_again(layout: str) -> None:
    assert found_again(layout)[0] > 0.65


def test_every_layout_gets_the_same_prompts() -> None:
    for make in (
        lambda: answers_batch(SIZES, VOCAB),
        lambda: capacity_batch(SIZES, 800, 5, VOCAB),
        lambda: documents_batch(SIZES, 3, VOCAB, 2),
    ):
        assert make() == make()
    batch = documents_batch(SIZES, 3, VOCAB, 2)
    assert {len(prompt) for prompt in batch.prompts} == {SIZES.document - SIZES.reply}
    assert len({prompt[:-16] for prompt in batch.prompts}) == 3
    assert len(set(batch.prompts)) == 12
