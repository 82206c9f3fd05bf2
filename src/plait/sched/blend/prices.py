"""Prices: how a forecast's few rates are set by the prices of whole steps.

Owns which steps are asked for. A forecast adds up two loads in each step; what steps of a model take in earnest, with
operations that are bound by one thing or the other and kernels that stay behind their roofs, is the cost model's.
Invariant: of the steps that were asked for, those of one phase take in the forecast what they are priced at.
"""

from __future__ import annotations

from dataclasses import replace

from plait.core.step import ChunkShape, StepShape
from plait.cost.model import CostModel
from plait.sched.blend.forecast import Machine
from plait.sched.blend.job import Lives, StepCosts

CONTEXT = 256
"""Of the decode rows that are asked for; twice as much for the growth."""


def step_costs(cost: CostModel, share: int, rows: int, tokens: int, context: int) -> StepCosts:
    """By the prices of a row alone, of as many `rows` as a step may hold and of a prompt of `tokens`, behind `context`
    tokens.
    """

    def seconds(*chunks: ChunkShape) -> float:
        return cost.price(StepShape(chunks), share).expected_s

    row = ChunkShape(max(1, context), 1, 1)
    one_s = seconds(row)
    row_s = max(0.0, seconds(*[row] * rows) - one_s) / (rows - 1) if rows > 1 else 0.0
    step_s = max(0.0, one_s - row_s)
    return StepCosts(step_s, max(0.0, seconds(ChunkShape(0, tokens, 1)) - step_s) / tokens, row_s, rows)


def priced(machine: Machine, cost: CostModel, share: int, lives: Lives) -> Machine:
    """`machine` has the overheads of a step and of a row as the prices do."""

    def seconds(*chunks: ChunkShape) -> float:
        price = cost.price(StepShape(chunks), share).expected_s
        return max(0.0, price - machine.step_overhead_s - len(chunks) * machine.row_overhead_s)

    tokens = machine.step_tokens
    prompt_s = seconds(ChunkShape(0, tokens, 1)) / tokens
    rows = max(1, min(machine.rows, 16))
    short, long = (seconds(*[ChunkShape(context, 1, 1)] * rows) for context in (CONTEXT, 2 * CONTEXT))
    read_s = rows * (lives.memory_s(2 * CONTEXT, 1) - lives.memory_s(CONTEXT, 1))
    memory_factor = (long - short) / read_s if read_s > 0 and long > short else 1.0
    one_row = seconds(ChunkShape(CONTEXT, 1, 1))
    return replace(
        machine,
        compute_factor=prompt_s / lives.prompt_token_s if lives.prompt_token_s else 1.0,
        memory_factor=memory_factor,
        weights_s=max(0.0, one_row - lives.memory_s(CONTEXT, 1) * memory_factor),
    )
