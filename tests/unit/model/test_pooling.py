"""Pooling: every model that was made to generate can be asked for embeddings, and nothing else about it changes."""

from __future__ import annotations

from dataclasses import replace

from tests.conformance.models import model_named, tiny_model
from tests.unit.exec import test_reference_step as odd

from plait.model.families import build_program
from plait.model.ops import Linear, Norm, Pool, PoolKind
from plait.model.pooling import has_pool, with_pool


def test_what_the_head_is_multiplied_with_is_pooled() -> None:
    program = model_named("causal").program
    pooled = with_pool(program)
    (place,) = (index for index, op in enumerate(pooled.ops) if isinstance(op, Pool))
    pool, head = pooled.ops[place], pooled.ops[place + 1]
    assert isinstance(pool, Pool)
    assert isinstance(head, Linear)
    assert pool.inputs == head.inputs
    assert isinstance(pooled.ops[place - 1], Norm)
    assert (pool.kind, pool.normalize) == (PoolKind.MEAN, False)
    assert tuple(op for op in pooled.ops if not isinstance(op, Pool)) == program.ops
    assert has_pool(pooled)
    assert not has_pool(program)


def test_a_second_time_changes_nothing() -> None:
    pooled = with_pool(model_named("causal").program)
    assert with_pool(pooled) is pooled


def test_a_tied_head_can_be_pooled_too() -> None:
    config = replace(tiny_model().config, tied_embeddings=True)
    assert has_pool(with_pool(build_program(config)))


def test_a_program_without_logits_stays_as_it_is() -> None:
    program = odd.headless()
    assert with_pool(program) is program
