"""Steps of the reference executor on programs that no llama is: views, gates, learned positions, softcaps, sinks.

Every program is run in chunks through the cache, and compared with the same few lines of NumPy over the whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from plait.core.errors import ModelError
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import BlockGrant, Chunk, Join, OutputKind, Outputs, StepPlan, StepStatus
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor
from plait.model.builder import ProgramBuilder
from plait.model.cache_layout import plan_layout
from plait.model.cache_type import CacheType
from plait.model.ops import Activation, EmbedSource, NormKind, PoolKind, Space, ValueId
from plait.model.program import Program
from plait.model.rope import RopeSpec
from plait.model.visibility import ALL
from plait.weights.formats import F32
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

Doubles = npt.NDArray[np.float64]
Weights = Mapping[str, npt.NDArray[np.float32]]
WIDTH, VOCAB_SIZE, MAX_POSITIONS = 8, 24, 64
TEXT = (3, 17, 5, 0, 23, 9, 9, 1, 14, 20, 2)
CUTS = (0, 4, 5, 11)


def random_weights(program: Program) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(3)
    return {
        name: (random.standard_normal(spec.shape) / np.sqrt(spec.shape[-1]) + 0.1).astype(np.float32)
        for name, spec in program.weights.items()
    }


def table_of(weights: Weights) -> WeightTable:
    tensors = {
        name: Tensor(name, a.shape, F32, np.ascontiguousarray(a, "<f4").reshape(len(a), -1).view(np.uint8))
        for name, a in weights.items()
    }
    return WeightTable(tensors, Path("made-up"), "0" * 64)


def load(program: Program, weights: Weights, seen: list[npt.NDArray[np.float32]]) -> ReferenceExecutor:
    """An executor that keeps the logits of every step in `seen`."""
    config = ReferenceConfig(threaded=False, poison=True, observe_logits=lambda _, logits: seen.append(logits.copy()))
    executor = ReferenceExecutor(config, lambda: 0.0)
    layout = plan_layout(program, memory_bytes=1 << 16, tokens_per_block=4, cache_type=CacheType.F32)
    executor.load({"step": program}, table_of(weights), layout)
    return executor


def logits_of(program: Program, weights: Weights) -> npt.NDArray[np.float32]:
    """Logits behind every token of TEXT, computed in the chunks of CUTS."""
    seen: list[npt.NDArray[np.float32]] = []
    executor = load(program, weights, seen)
    join = Join(SeqId(0), 0, SamplingParams(temperature=0.0), 0, 0, len(TEXT))
    grant = BlockGrant(SeqId(0), GroupId(0), 0, tuple(BlockId(b) for b in (5, 2, 7)))
    for step, (start, end) in enumerate(pairwise(CUTS)):
        rows = Outputs(0, end - start, OutputKind.LOGPROBS, (0,) * (end - start))
        chunk = Chunk(SeqId(0), start, end - start, TEXT[start:end], outputs=(rows,))
        first = step == 0
        executor.submit(
            StepPlan(StepId(step), LaneId(0), (join,) if first else (), (grant,) if first else (), (), (chunk,))
        )
        while executor.advance():
            pass
        (result,) = executor.collect()
        assert result.status is StepStatus.COMPLETED
        assert len(result.seqs[0].prompt_logprobs) == end - start
    return np.concatenate(seen)


# Programs, each with its definition


def softmax(z: Doubles) -> Doubles:
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(p / p.sum(axis=-1, keepdims=True))


def causal(q: Doubles, k: Doubles, v: Doubles, scale: float, softcap: float | None, sink: float | None) -> Doubles:
    """One head."""
    z = scale * q @ k.T
    z = z if softcap is None else softcap * np.tanh(z / softcap)
    z = np.where(np.tril(np.ones_like(z)) > 0, z, -np.inf)
    if sink is None:
        return np.asarray(softmax(z) @ v)
    return np.asarray(softmax(np.concatenate([np.full((len(z), 1), sink), z], axis=1))[:, 1:] @ v)


def build(body: Callable[[ProgramBuilder, ValueId], ValueId], **head: float) -> Program:
    """embed -> body -> select -> head -> sample"""
    b = ProgramBuilder("made-up")
    b.span("all", "all")
    x = body(b, b.embed("embed", VOCAB_SIZE, WIDTH))
    b.sample(b.linear(b.select(x), "head", VOCAB_SIZE), **head)  # type: ignore[arg-type]
    return b.finish()


def attention(b: ProgramBuilder, x: ValueId, **how: object) -> ValueId:
    group = b.kv_group("full", 1, 1, WIDTH)
    q, k, v = (b.linear(x, name, WIDTH) for name in ("q", "k", "v"))
    b.cache_write(k, v, group, 0)
    return b.add(x, b.attend(q, group, 0, 1, **how))  # type: ignore[arg-type]


def fused_qkv(b: ProgramBuilder, x: ValueId) -> ValueId:
    group = b.kv_group("full", 1, 1, WIDTH)
    qkv = b.linear(x, "qkv", 3 * WIDTH)
    q, k, v = (b.view(qkv, at * WIDTH, WIDTH, name) for at, name in enumerate("qkv"))
    b.cache_write(k, v, group, 0)
    y = b.attend(q, group, 0, 1)
    # The queries once more, long after the product they are part of was first used.
    return b.add(b.add(x, y), b.view(qkv, WIDTH // 2, WIDTH, "across"))


def fused_qkv_exactly(w: Weights, x: Doubles) -> Doubles:
    qkv = x @ w["qkv"].T.astype(np.float64)
    q, k, v = np.split(qkv, 3, axis=1)
    return np.asarray(x + causal(q, k, v, WIDTH**-0.5, None, None) + qkv[:, WIDTH // 2 : WIDTH // 2 + WIDTH])


def gated(b: ProgramBuilder, x: ValueId) -> ValueId:
    x = attention(b, x, scale=0.7, softcap=1.5, sinks="sinks")
    wide = b.mul(x, b.act(b.linear(x, "gate", WIDTH), Activation.SIGMOID))
    narrow = b.mul(wide, b.act(b.linear(x, "gate1", 1), Activation.RELU2))
    return b.add(x, b.scale(narrow, 1.75), factor=-0.5)


def gated_exactly(w: Weights, x: Doubles) -> Doubles:
    q, k, v = (x @ w[name].T.astype(np.float64) for name in ("q", "k", "v"))
    x = x + causal(q, k, v, 0.7, 1.5, float(w["sinks"][0]))
    wide = x / (1 + np.exp(-x @ w["gate"].T.astype(np.float64)))
    narrow = wide * np.maximum(x @ w["gate1"].T.astype(np.float64), 0) ** 2
    return np.asarray(x - 0.5 * 1.75 * narrow)


def placed(b: ProgramBuilder, x: ValueId) -> ValueId:
    at = b.embed("positions", MAX_POSITIONS, WIDTH, scale=3.0, source=EmbedSource.POSITIONS)
    x = b.norm(b.add(x, at), "norm", 1e-5, kind=NormKind.LAYER, bias="norm_bias")
    return attention(b, x)


def placed_exactly(w: Weights, x: Doubles) -> Doubles:
    x = x + 3.0 * w["positions"][: len(x)].astype(np.float64)
    x = x - x.mean(axis=1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * w["norm"] + w["norm_bias"]
    q, k, v = (x @ w[name].T.astype(np.float64) for name in ("q", "k", "v"))
    return np.asarray(x + causal(q, k, v, WIDTH**-0.5, None, None))


Exactly = Callable[[Weights, Doubles], Doubles]
PROGRAMS: Mapping[str, tuple[Callable[[ProgramBuilder, ValueId], ValueId], Exactly]] = {
    "views of one product": (fused_qkv, fused_qkv_exactly),
    "gates, scales, softcap and sinks": (gated, gated_exactly),
    "learned positions and a layer norm": (placed, placed_exactly),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("head", [{}, {"logit_scale": 0.25}, {"logit_scale": 2.0, "softcap": 1.5}], ids=str)
def test_a_program_in_chunks_is_its_definition_over_the_whole_text(name: str, head: dict[str, float]) -> None:
    body, exactly = PROGRAMS[name]
    program = build(body, **head)
    weights = random_weights(program)
    x = exactly(weights, weights["embed"][list(TEXT)].astype(np.float64))
    z = head.get("logit_scale", 1.0) * x @ weights["head"].T.astype(np.float64)
    z = z if "softcap" not in head else head["softcap"] * np.tanh(z / head["softcap"])
    bound = (
        2.0**-24 * len(program.ops) * np.linalg.norm(x, axis=1).max() * np.linalg.norm(weights["head"], axis=1).max()
    )
    assert np.abs(logits_of(program, weights) - z).max() < 2 * bound


def test_a_step_keeps_no_value_longer_than_it_is_needed() -> None:
    program = build(fused_qkv)
    executor = load(program, random_weights(program), [])
    join = Join(SeqId(0), 0, SamplingParams(temperature=0.0), 0, 0, 3)
    grant = BlockGrant(SeqId(0), GroupId(0), 0, (BlockId(0),))
    chunk = Chunk(SeqId(0), 0, 3, (1, 2, 3), outputs=(Outputs(2, 1, OutputKind.SAMPLE),))
    executor.submit(StepPlan(StepId(0), LaneId(0), (join,), (grant,), (), (chunk,)))
    run = executor._lanes[LaneId(0)].queue[0].run
    most = 0
    while executor.advance():
        most = max(most, len(run._values))
    assert most <= 4
    assert run._values == {}


# What cannot be executed


def with_groups_of_experts(b: ProgramBuilder, x: ValueId) -> ValueId:
    routing = b.route(b.linear(x, "router", 4), 2, groups=2)
    return b.experts(x, routing, "experts", 4, WIDTH, Activation.SILU)


def without_a_cache(b: ProgramBuilder, x: ValueId) -> ValueId:
    return b.attend_values(x, x, x, 1, 1, ALL)


@pytest.mark.parametrize(("body", "named"), [(with_groups_of_experts, "Route"), (without_a_cache, "Attend")])
def test_a_program_with_an_operation_it_does_not_have_is_refused_by_name(
    body: Callable[[ProgramBuilder, ValueId], ValueId], named: str
) -> None:
    program = build(body)
    with pytest.raises(ModelError, match=f"made-up needs the operation {named}"):
        ReferenceExecutor(ReferenceConfig(threaded=False), lambda: 0.0).load(
            {"step": program}, table_of({}), plan_layout(build(fused_qkv), memory_bytes=1 << 16)
        )


def pooled() -> Program:
    b = ProgramBuilder("embedder")
    b.span("all", "all")
    x = attention(b, b.embed("embed", VOCAB_SIZE, WIDTH))
    b.pool(b.select(x), PoolKind.MEAN)
    return b.finish()


def headless() -> Program:
    b = ProgramBuilder("headless")
    b.span("all", "all")
    attention(b, b.embed("embed", VOCAB_SIZE, WIDTH))
    return b.finish()


def drafter() -> Program:
    b = ProgramBuilder("drafter")
    b.span("all", "all")
    x = b.input(Space.TOKENS, WIDTH, "hidden")
    b.sample(b.linear(b.select(attention(b, x)), "head", VOCAB_SIZE))
    return b.finish()


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (pooled(), "does not end in logits"),
        (headless(), "does not end in logits"),
        (drafter(), "other inputs than tokens"),
    ],
    ids=["pooled", "headless", "drafter"],
)
def test_a_program_that_does_not_turn_tokens_into_logits_is_refused(program: Program, named: str) -> None:
    layout = plan_layout(program, memory_bytes=1 << 16)
    with pytest.raises(ModelError, match=named):
        ReferenceExecutor(ReferenceConfig(threaded=False), lambda: 0.0).load({"step": program}, table_of({}), layout)


def test_positions_end_where_the_shortest_table_does() -> None:
    """Rope and learned positions: a slot behind either is a plan's mistake, not a number from somewhere else."""

    def both(b: ProgramBuilder, x: ValueId) -> ValueId:
        at = b.embed("positions", 12, WIDTH, source=EmbedSource.POSITIONS)
        return attention(b, b.rope(b.add(x, at), RopeSpec(10_000.0, WIDTH, 40), 1))

    program = build(both)
    executor = load(program, random_weights(program), [])
    assert executor._limits.num_positions == 12
