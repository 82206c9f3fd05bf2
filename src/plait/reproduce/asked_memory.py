"""Asked: the report behind `plait inspect memory`, for models by their public names.

Owns how Jenga's cases put a question; the figures are in the cases beside it.
"""

from __future__ import annotations

from functools import cache

from plait.core.errors import InvariantError
from plait.inspect.facts import ModelFacts
from plait.inspect.layers import NumberType
from plait.inspect.memory import LayoutReport, MemoryQuestion, answer
from plait.inspect.sources import find_facts
from plait.kv.layouts.cuts import Cut
from plait.kv.layouts.layout import Layout, Refused

MLLAMA = "meta-llama/Llama-3.2-11B-Vision"
MINISTRAL = "mistralai/Ministral-8B-Instruct-2410"
SCOUT = "meta-llama/Llama-4-Scout-17B-16E"
JAMBA = "ai21labs/AI21-Jamba-1.5-Mini"
GEMMA_3 = {size: f"google/gemma-3-{size.lower()}-it" for size in ("4B", "12B", "27B")}
MEMORY_BYTES = 90_900_000_000


@cache
def known(name: str) -> ModelFacts:
    return find_facts(name)


def memory_report(
    facts: ModelFacts,
    layout: str,
    size: tuple[int, int] = (8192, 0),
    *,
    cache_numbers: NumberType = NumberType.BF16,
    tokens_per_block: int = 16,
    ranks: int = 1,
) -> LayoutReport:
    """One sequence of `size` (tokens, tokens of images) under one layout."""
    question = MemoryQuestion(
        model=facts,
        draft=None,
        sizes={size: 1},
        memory_bytes=MEMORY_BYTES,
        cache=cache_numbers,
        tokens_per_block=tokens_per_block,
        ranks=ranks,
        layouts=(layout,),
        base=None,
    )
    return answer(question).layouts[0]


def layout_of(report: LayoutReport) -> Layout:
    if isinstance(report.layout, Refused):
        raise InvariantError(f"layout {report.name} refuses a published model: {report.layout.reason}")
    return report.layout


def cut_of(layout: Layout, group: str) -> Cut:
    """How the layout cuts a group, by the beginning of the group's name."""
    return next(cut for cut in layout.cuts if cut.group.name.startswith(group))
