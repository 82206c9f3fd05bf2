"""Pooling: embeddings from a model that was made to generate.

Owns the change of a program that lets it be asked for pooled rows besides logits. Families know nothing of it, because
what is pooled is the same in all of them: the rows that the head is multiplied with.
Invariant: what the program computes for other rows stays the same, bit for bit.
"""

from __future__ import annotations

from dataclasses import replace

from plait.model.checks import live_after
from plait.model.ops import Linear, Op, Pool, PoolKind, Sample, Space
from plait.model.program import Program


def has_pool(program: Program) -> bool:
    return any(isinstance(op, Pool) for op in program.ops)


def with_pool(program: Program) -> Program:
    """The same program with a Pool in front of its head; itself where it has one, or no such head.

    Which rows are pooled, every one or the last alone, is said by plans: the mean of one row is that row.
    """
    place = _head(program)
    if place is None or has_pool(program):
        return program
    (hidden, *_) = program.ops[place].inputs
    ops: tuple[Op, ...] = (*program.ops[:place], Pool((hidden,), PoolKind.MEAN), *program.ops[place:])
    spans = [
        replace(
            span,
            first=span.first + (span.first > place),
            last=span.last + (span.last >= place),
            kind=f"{span.kind} and pool" if span.first <= place <= span.last else span.kind,
        )
        for span in program.spans
    ]
    alive = live_after(ops, program.values, [span.last for span in spans])
    lively = tuple(replace(span, live_out=live) for span, live in zip(spans, alive, strict=True))
    return program.rebuilt(ops, program.values, lively, program.weights, program.cache_groups)


def _head(program: Program) -> int | None:
    """The last product, if logits and nothing else come of it."""
    if not program.ops or not isinstance(program.ops[-1], Sample):
        return None
    for index in range(len(program.ops) - 1, -1, -1):
        op = program.ops[index]
        if isinstance(op, Linear):
            return index if program.values[op.inputs[0]].space is Space.OUTPUTS else None
    return None
