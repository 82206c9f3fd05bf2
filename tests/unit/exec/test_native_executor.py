"""The native executor alone: programs that no llama is, every weight format, what it says and what it refuses.

Plans, verbs and random traffic are in tests/conformance, which runs this executor beside the others.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.unit.exec import test_reference_step as odd
from tests.unit.weights.made_blocks import made_rows

from plait.core.clock import RealClock, Wake
from plait.core.errors import InvariantError, ModelError
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import BlockGrant, Chunk, Join, OutputKind, Outputs, SeqResult, SeqStatus, StepPlan, StepResult
from plait.exec.loading import Numbers
from plait.exec.native import tape
from plait.model.builder import ProgramBuilder
from plait.model.cache_layout import CacheLayout, GroupLayout, plan_layout
from plait.model.cache_type import INT8_TOKENS, CacheType
from plait.model.ops import Activation, ValueId
from plait.model.program import CacheGroup, GroupKind, Program
from plait.model.rope import RopeSpec
from plait.weights import formats
from plait.weights.formats import WeightFormat
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

_native = pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from plait.exec.native.executor import NativeConfig, NativeExecutor  # noqa: E402 - only where the runtime is
from plait.exec.native.packing import WeightDtype  # noqa: E402
from plait.exec.native.repacking import scheme_of  # noqa: E402

Floats = npt.NDArray[np.float32]
WIDTH, VOCAB_SIZE = 64, 24
TEXT = odd.TEXT
WORKERS = (-1, -1)
PATIENCE_S = 30.0


def run(executor: NativeExecutor, plan: StepPlan) -> StepResult:
    executor.submit(plan)
    clock = RealClock()
    until = clock.now() + PATIENCE_S
    while not executor.ready():
        assert clock.now() < until
        clock.wait(until=clock.now() + 0.0005)
    (result,) = executor.collect()
    return result


def scored(
    program: Program,
    table: WeightTable,
    cuts: tuple[int, ...] = odd.CUTS,
    cache_type: CacheType = CacheType.F32,
    **config: object,
) -> Floats:
    """Logits behind every token of TEXT, computed in chunks."""
    seen: list[Floats] = []
    made = NativeConfig(WORKERS, poison=True, observe_logits=lambda _, z: seen.append(z), **config)  # type: ignore[arg-type]
    executor = NativeExecutor(made)
    executor.load({"step": program}, table, layout_of(program, cache_type))
    for step, (start, end) in enumerate(pairwise(cuts)):
        rows = Outputs(0, end - start, OutputKind.LOGPROBS, (0,) * (end - start))
        chunk = Chunk(SeqId(0), start, end - start, TEXT[start:end], outputs=(rows,))
        assert len(run(executor, first_plan(chunk) if step == 0 else plan(step, chunk)).seqs[0].prompt_logprobs) > 0
    executor.close()
    return np.concatenate(seen)


def layout_of(program: Program, cache_type: CacheType = CacheType.F32) -> CacheLayout:
    size = INT8_TOKENS if cache_type is CacheType.INT8 else 4
    return plan_layout(program, memory_bytes=1 << 18, tokens_per_block=size, cache_type=cache_type)


def plan(step: int, *chunks: Chunk) -> StepPlan:
    return StepPlan(StepId(step), LaneId(0), (), (), (), chunks)


def first_plan(chunk: Chunk, params: SamplingParams | None = None) -> StepPlan:
    join = Join(chunk.seq, 0, params or SamplingParams(temperature=0.0), 0, 0, len(TEXT))
    grant = BlockGrant(chunk.seq, GroupId(0), 0, tuple(BlockId(b) for b in (5, 2, 7)))
    return StepPlan(StepId(0), LaneId(0), (join,), (grant,), (), (chunk,))


# Programs that no llama is


@pytest.mark.parametrize("name", odd.PROGRAMS)
@pytest.mark.parametrize("head", [{}, {"logit_scale": 0.25}, {"logit_scale": 2.0, "softcap": 1.5}], ids=str)
def test_a_program_in_chunks_is_its_definition_over_the_whole_text(name: str, head: dict[str, float]) -> None:
    body, exactly = odd.PROGRAMS[name]
    program = odd.build(body, **head)
    weights = odd.random_weights(program)
    x = exactly(weights, weights["embed"][list(TEXT)].astype(np.float64))
    z = head.get("logit_scale", 1.0) * x @ weights["head"].T.astype(np.float64)
    z = z if "softcap" not in head else head["softcap"] * np.tanh(z / head["softcap"])
    bound = (
        2.0**-24 * len(program.ops) * np.linalg.norm(x, axis=1).max() * np.linalg.norm(weights["head"], axis=1).max()
    )
    assert np.abs(scored(program, odd.table_of(weights)) - z).max() < 2 * bound


# Weight formats


def decoder(width: int = WIDTH, ffn_width: int = 96, head: str = "embed") -> Program:
    """Two layers as a llama has them, wide enough for groups of 32."""
    b = ProgramBuilder("decoder")
    group = b.kv_group("full", 2, 1, 32)
    spec = RopeSpec(10_000.0, 32, 40)
    b.span("all", "all")
    x = b.embed("embed", VOCAB_SIZE, width)
    for layer in range(2):
        x = _layer(b, x, f"layers.{layer}", group, layer, spec, (width, ffn_width))
    b.sample(b.linear(b.norm(b.select(x), "final_norm", 1e-5), head, VOCAB_SIZE))
    return b.finish()


def _layer(
    b: ProgramBuilder, x: ValueId, name: str, group: GroupId, slot: int, spec: RopeSpec, widths: tuple[int, int]
) -> ValueId:
    width, ffn_width = widths
    heads = width // 32
    y = b.norm(x, f"{name}.attn_norm", 1e-5)
    q, k, v = (b.linear(y, f"{name}.{part}", size) for part, size in (("q", width), ("k", 32), ("v", 32)))
    q, k = b.rope(q, spec, heads), b.rope(k, spec, 1)
    b.cache_write(k, v, group, slot)
    x = b.add(x, b.linear(b.attend(q, group, slot, heads), f"{name}.o", width))
    y = b.norm(x, f"{name}.ffn_norm", 1e-5)
    gate, up = b.linear(y, f"{name}.gate", ffn_width), b.linear(y, f"{name}.up", ffn_width)
    return b.add(x, b.linear(b.glu(gate, up, Activation.SILU), f"{name}.down", width))


def decoder_for(form: WeightFormat) -> Program:
    """Rows of whole blocks."""
    return decoder() if form.block_weights <= 32 else decoder(256, 512)


ROUNDED = (formats.Q8_0, formats.Q4_0, formats.Q4_1, formats.Q5_0, formats.Q5_1)


def stored(array: Floats, form: WeightFormat) -> npt.NDArray[np.uint8]:
    """Rows of a matrix in a format, rounded as plainly as can be."""
    rows, depth = array.shape
    if form is formats.F32:
        return array.view(np.uint8)
    if form is formats.F16:
        return array.astype(np.float16).view(np.uint8)
    if form is formats.BF16:
        return (array.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    if form not in ROUNDED:
        return made_rows(form, rows, depth, seed=rows * depth)
    groups = array.reshape(rows, depth // 32, 32)
    low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
    most = np.maximum(-low, high)
    if form is formats.Q8_0:
        scale = (most / 127).astype(np.float16)
        numbers = np.rint(groups / scale).clip(-127, 127).astype(np.int8).view(np.uint8)
        parts = [scale.view(np.uint8), numbers]
    else:
        with_minimum = form in (formats.Q4_1, formats.Q5_1)
        zero = 16 if form in (formats.Q5_0, formats.Q5_1) else 8
        scale = ((high - low) / (2 * zero - 1) if with_minimum else most / (zero - 1)).astype(np.float16)
        offset = low.astype(np.float16) if with_minimum else -zero * scale
        numbers = np.rint((groups - offset) / scale).clip(0, 2 * zero - 1).astype(np.uint8)
        halves = numbers[..., :16] & 15 | (numbers[..., 16:] & 15) << 4
        fifth = np.packbits(numbers >> 4, axis=2, bitorder="little")
        minima, upper = [offset.view(np.uint8)] * with_minimum, [fifth] * (zero == 16)
        parts = [scale.view(np.uint8), *minima, *upper, halves]
    return np.concatenate(parts, axis=2).reshape(rows, -1)


def table_in(program: Program, form: WeightFormat, **others: WeightFormat) -> WeightTable:
    tensors = {}
    for name, array in odd.random_weights(program).items():
        used = formats.F32 if array.ndim == 1 else others.get(name.split(".")[-1], form)
        raw = array.reshape(len(array), -1).view(np.uint8) if array.ndim == 1 else stored(array, used)
        tensors[name] = Tensor(name, array.shape, used, np.ascontiguousarray(raw))
    return WeightTable(tensors, Path("made-up"), "0" * 64)


def dequantized(table: WeightTable) -> WeightTable:
    return odd.table_of({name: tensor.dequantize() for name, tensor in table.items()})


EXACT = 3e-6
"""Of the largest logit: float32 sums in another order."""
EIGHT_BITS = 0.03
"""Of the largest logit: rows rounded to 8 bits a few times."""


@pytest.mark.parametrize("form", formats.ALL_FORMATS, ids=lambda one: one.name)
def test_every_format_gives_nearly_what_its_dequantised_weights_give(form: WeightFormat) -> None:
    program = decoder_for(form)
    table = table_in(program, form)
    exact = scored(program, dequantized(table))
    given = scored(program, table)
    allowed = EIGHT_BITS if scheme_of(form).is_integer else EXACT
    assert np.abs(given - exact).max() <= allowed * np.abs(exact).max()


@pytest.mark.parametrize(
    "form",
    [formats.F16, formats.Q4_1, formats.Q8_0, formats.Q6_K, formats.Q2_K, formats.IQ4_XS, formats.IQ3_S],
    ids=lambda one: one.name,
)
def test_asked_for_f32_it_computes_with_the_dequantised_weights_themselves(form: WeightFormat) -> None:
    program = decoder_for(form)
    table = table_in(program, form)
    exact = scored(program, dequantized(table))
    assert np.array_equal(scored(program, table, dtype=WeightDtype.F32), exact)


def test_an_activation_wider_than_a_workers_scratch_is_rounded_whole() -> None:
    b = ProgramBuilder("wide")
    group = b.kv_group("full", 1, 1, 32)
    b.span("all", "all")
    x = _layer(b, b.embed("embed", VOCAB_SIZE, WIDTH), "layers.0", group, 0, RopeSpec(10_000.0, 32, 40), (WIDTH, 96))
    x = b.linear(b.act(b.linear(x, "up", 24_576), Activation.GELU), "down", WIDTH)
    b.sample(b.linear(b.norm(b.select(x), "final_norm", 1e-5), "embed", VOCAB_SIZE))
    program = b.finish()
    table = table_in(program, formats.Q8_0)
    exact = scored(program, dequantized(table))
    assert np.abs(scored(program, table) - exact).max() <= EIGHT_BITS * np.abs(exact).max()


MIXED = {
    formats.Q4_1: {"v": formats.F16, "down": formats.Q8_0, "embed": formats.F16, "gate": formats.Q4_0},
    formats.Q5_0: {"v": formats.Q8_0, "down": formats.Q5_1, "embed": formats.Q8_0},
    formats.Q4_K: {"v": formats.Q6_K, "down": formats.Q5_K, "embed": formats.Q6_K, "gate": formats.Q5_0},
    formats.Q2_K: {"v": formats.Q3_K, "down": formats.IQ4_XS, "embed": formats.IQ3_S, "gate": formats.Q3_K},
}


@pytest.mark.parametrize("form", MIXED, ids=lambda one: one.name)
@pytest.mark.parametrize("cache_type", list(CacheType))
def test_bits_do_not_depend_on_chunks_blocks_of_work_or_instructions(cache_type: CacheType, form: WeightFormat) -> None:
    program = decoder_for(form)
    table = table_in(program, form, **MIXED[form])
    expected = scored(program, table, cache_type=cache_type)
    for target in _native.targets():
        for seed, cuts in ((0, (0, 11)), (3, (0, 1, 2, 3, 11)), (9, odd.CUTS)):
            given = scored(program, table, cuts, cache_type, target=target, blocking_seed=seed)
            assert np.array_equal(given.view(np.uint32), expected.view(np.uint32)), (target, seed)


WIDTHS = ((160, 288), (256, 416), (64, 96))
"""Rows that end within one of INT8's groups, heads that are whole groups, and rows that are less than one."""


def rounded_table(program: Program) -> WeightTable:
    names = {name: name for name, spec in program.weights.items() if len(spec.shape) == 2 and name != "embed"}
    return table_in(program, formats.F16).rounded("int8", names, head="head")


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_rounded_at_load_it_gives_nearly_what_the_same_rounded_weights_give(widths: tuple[int, int]) -> None:
    program = decoder(*widths, head="head")
    table = rounded_table(program)
    exact = scored(program, dequantized(table))
    given = scored(program, table)
    assert 0 < np.abs(given - exact).max() <= EIGHT_BITS * np.abs(exact).max()
    assert np.array_equal(scored(program, table, dtype=WeightDtype.F32), exact)


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("cache_type", [CacheType.F16, CacheType.INT8])
def test_bits_of_rounded_weights_do_not_depend_on_the_load_either(
    cache_type: CacheType, widths: tuple[int, int]
) -> None:
    program = decoder(*widths, head="head")
    table = rounded_table(program)
    expected = scored(program, table, cache_type=cache_type)
    for target in _native.targets():
        for seed, cuts in ((0, (0, 11)), (3, (0, 1, 2, 3, 11)), (9, odd.CUTS), (12, odd.CUTS)):
            given = scored(program, table, cuts, cache_type, target=target, blocking_seed=seed)
            assert np.array_equal(given.view(np.uint32), expected.view(np.uint32)), (target, seed)


@pytest.mark.parametrize(
    ("cache_type", "bound"), [(CacheType.F16, 2e-3), (CacheType.BF16, 1e-2), (CacheType.INT8, 2e-2)]
)
def test_every_type_of_cache_is_another_number_scheme(cache_type: CacheType, bound: float) -> None:
    program = decoder()
    table = table_in(program, formats.F32)
    exact, given = scored(program, table), scored(program, table, cache_type=cache_type)
    assert 0 < np.abs(exact - given).max() < bound * np.abs(exact).max()


# What it says, and what it refuses


@pytest.fixture
def executor() -> Iterator[NativeExecutor]:
    made = NativeExecutor(NativeConfig(WORKERS, max_step_tokens=16, max_rows=2))
    program = decoder()
    made.load({"step": program}, table_in(program, formats.Q8_0), layout_of(program))
    yield made
    made.close()


def chunk_of(*tokens: int) -> Chunk:
    return Chunk(SeqId(0), 0, len(tokens), tokens, outputs=(Outputs(len(tokens) - 1, 1, OutputKind.SAMPLE),))


def test_it_promises_bits_and_names_its_numbers(executor: NativeExecutor) -> None:
    info = executor.info
    assert info.bit_exact
    assert info.share_units == 2
    assert info.formats == tuple(scheme.name.lower() for scheme in tape.Scheme)
    assert info.fingerprint.startswith("native-")
    assert "-q8_0-kvf32-t256-rope" in info.fingerprint
    assert info.fingerprint.endswith("-" + "0" * 16)


def fingerprint_of(form: WeightFormat, cache_type: CacheType = CacheType.F32, **config: object) -> str:
    program = decoder()
    made = NativeExecutor(NativeConfig(WORKERS, **config))  # type: ignore[arg-type]
    made.load({"step": program}, table_in(program, form), layout_of(program, cache_type))
    made.close()
    return made.info.fingerprint


def test_fingerprints_differ_where_bits_do_and_nowhere_else() -> None:
    known = fingerprint_of(formats.Q8_0)
    for other in (
        fingerprint_of(formats.Q8_0, cache_type=CacheType.F16),
        fingerprint_of(formats.Q4_0),
        fingerprint_of(formats.Q8_0, dtype=WeightDtype.F32),
    ):
        assert other != known
    for target in _native.targets():
        same = fingerprint_of(formats.Q8_0, target=target, max_positions=17, max_step_tokens=3, blocking_seed=5)
        assert same == known


@pytest.mark.parametrize(
    ("form", "config", "expected"),
    [
        (formats.Q8_0, {}, Numbers(("q8_0",), ("int8",), ("f16",))),
        (formats.F16, {}, Numbers(("f16",), ("f32",), ("f16",))),
        (formats.Q8_0, {"dtype": WeightDtype.F32}, Numbers(("f32",), ("f32",), ("f16",))),
    ],
    ids=["eight bits", "halves", "dequantised"],
)
def test_it_says_which_numbers_it_computes_in(
    form: WeightFormat, config: dict[str, WeightDtype], expected: Numbers
) -> None:
    program = decoder()
    made = NativeExecutor(NativeConfig(WORKERS, **config))  # type: ignore[arg-type]
    made.load({"step": program}, table_in(program, form), layout_of(program, CacheType.F16))
    made.close()
    assert made.numbers == expected


def test_it_says_how_much_memory_it_keeps(executor: NativeExecutor) -> None:
    held = executor.footprint
    panels = sum(
        -(-columns // 16) * 16 * depth * 34 / 32
        for columns, depth in (
            (VOCAB_SIZE, 64),
            *((64, 64), (32, 64), (32, 64), (64, 64), (96, 64), (96, 64), (64, 96)) * 2,
        )
    )
    assert panels <= held.weights <= 1.25 * panels
    assert held.cache == layout_of(decoder()).pool_bytes
    assert held.arena > 0


def test_a_logit_that_is_not_a_number_fails_its_sequence_and_names_the_token() -> None:
    program = decoder()
    weights = odd.random_weights(program)
    weights["embed"][9] = np.nan
    made = NativeExecutor(NativeConfig(WORKERS))
    made.load({"step": program}, odd.table_of(weights), layout_of(program))
    result = run(made, first_plan(chunk_of(3, 9, 4)))
    made.close()
    (failed,) = result.seqs
    assert failed.status is SeqStatus.FAILED
    assert failed.error == "the model gave a logit that is not a number behind token 2 of the sequence"


def test_a_choice_of_nothing_fails_its_sequence(executor: NativeExecutor) -> None:
    biased = SamplingParams(temperature=0.0, min_tokens=5, stop_token_ids=tuple(range(VOCAB_SIZE)))
    result = run(executor, first_plan(chunk_of(3, 4), biased))
    assert result.seqs == (
        SeqResult(
            SeqId(0),
            SeqStatus.FAILED,
            error="bias, penalties and masks leave no token to choose behind token 1 of the sequence",
        ),
    )


@pytest.mark.parametrize(
    "params", [SamplingParams(stop_token_ids=(VOCAB_SIZE,)), SamplingParams(logit_bias=((VOCAB_SIZE, 1.0),))]
)
def test_parameters_that_name_a_token_that_there_is_not_are_refused(
    executor: NativeExecutor, params: SamplingParams
) -> None:
    with pytest.raises(InvariantError, match=f"joins token {VOCAB_SIZE}; ids go from 0 to {VOCAB_SIZE - 1}"):
        executor.submit(first_plan(chunk_of(3), params))


def test_a_sequence_with_penalties_brings_the_tokens_that_it_starts_behind(executor: NativeExecutor) -> None:
    told = first_plan(chunk_of(3), SamplingParams(temperature=0.0, presence_penalty=1.0))
    (join,) = told.roster
    assert isinstance(join, Join)
    with pytest.raises(InvariantError, match="starts behind 0 tokens, but joined with 2 of them"):
        executor.submit(replace(told, roster=(replace(join, history=(1, 2)),)))


def test_positions_end_where_it_was_told() -> None:
    program = decoder()
    made = NativeExecutor(NativeConfig(WORKERS, max_positions=3))
    made.load({"step": program}, table_in(program, formats.F32), layout_of(program))
    with pytest.raises(InvariantError, match=r"positions up to 3; they must lie in \[0, 3\)"):
        made.submit(first_plan(chunk_of(1, 2, 3, 4)))
    made.close()


def test_a_finished_step_writes_to_the_descriptor_of_whoever_waits(executor: NativeExecutor) -> None:
    wake = Wake()
    executor.subscribe(wake)
    executor.submit(first_plan(chunk_of(3, 4)))
    wake.wait(PATIENCE_S)
    assert executor.ready()
    assert len(os.read(wake.fd, 8)) == 8
    with pytest.raises(InvariantError, match="there can be one"):
        executor.subscribe(Wake())


def test_it_counts_what_its_workers_did(executor: NativeExecutor) -> None:
    run(executor, first_plan(chunk_of(3, 4)))
    counters = executor.counters()
    assert counters["steps"] == 1
    assert counters["units"] > 10
    assert 0 < counters["kernel_s"] <= counters["busy_s"]


def test_it_is_loaded_once_used_afterwards_and_not_after_it_was_closed() -> None:
    program = decoder()
    made = NativeExecutor(NativeConfig(WORKERS))
    with pytest.raises(InvariantError, match="before a model was loaded"):
        made.submit(first_plan(chunk_of(3)))
    assert made.collect() == []
    assert not made.ready()
    parts = ({"step": program}, table_in(program, formats.F32), layout_of(program))
    made.load(*parts)
    with pytest.raises(InvariantError, match="loaded already"):
        made.load(*parts)
    made.close()
    with pytest.raises(InvariantError, match="closed executor"):
        made.submit(first_plan(chunk_of(3)))


def test_a_program_with_an_operation_it_does_not_have_is_refused_by_name() -> None:
    program = odd.build(odd.with_groups_of_experts)
    with pytest.raises(ModelError, match="made-up needs the operation Route, which the native executor does not have"):
        NativeExecutor(NativeConfig(WORKERS)).load({"step": program}, odd.table_of({}), layout_of(decoder()))


STATES = CacheGroup(GroupId(0), "memory", GroupKind.STATE, 1, state_parts=(8,))
IMAGES = CacheGroup(GroupId(0), "memory", GroupKind.EMBEDDING, 1, 1, 8, 0)


@pytest.mark.parametrize(
    ("group", "cache_type", "why"),
    [
        (IMAGES, CacheType.F32, "is embedding; the native executor keeps keys, values and states only"),
        (STATES, CacheType.F16, "keeps states of f16; the native executor keeps them in f32 only"),
    ],
)
def test_a_cache_that_it_does_not_keep_is_refused(group: CacheGroup, cache_type: CacheType, why: str) -> None:
    program = decoder()
    placed = GroupLayout(group, 0 if group.is_state else 1, cache_type, 1)
    refused = CacheLayout(placed.block_bytes, 1, (placed,))
    with pytest.raises(ModelError, match=f"cache group memory {why}"):
        NativeExecutor(NativeConfig(WORKERS)).load({"step": program}, table_in(program, formats.F32), refused)


# The border


ENUMERATIONS: tuple[type[IntEnum], ...] = (
    tape.Scheme,
    tape.RowSpace,
    tape.OpKind,
    tape.ReachCode,
    tape.NormCode,
    tape.ActivationCode,
    tape.ArithmeticCode,
    tape.CacheCode,
    tape.ScanCode,
)


def test_python_and_native_number_everything_alike() -> None:
    native: Mapping[str, tuple[str, ...]] = _native.tape_enumerations()
    assert set(native) == {kind.__name__ for kind in ENUMERATIONS}
    for kind in ENUMERATIONS:
        assert native[kind.__name__] == tuple(one.name for one in kind)
        assert [one.value for one in kind] == list(range(len(kind)))


def test_seats_stay_with_their_runtime(executor: NativeExecutor) -> None:
    told = first_plan(chunk_of(3))
    (join,) = told.roster
    other = NativeExecutor(NativeConfig((-1,)))
    other.load({"step": decoder()}, table_in(decoder(), formats.F32), layout_of(decoder()))
    stranger = other._loaded().runtime.join(join)
    runtime = executor._loaded().runtime
    with pytest.raises(ValueError, match="a seat of another runtime"):
        runtime.submit(told, [stranger], [runtime.join(join)] * len(told.blocks))
    with pytest.raises(ValueError, match="a seat of another runtime"):
        runtime.submit(told, [runtime.join(join)], [stranger] * len(told.blocks))
    other.close()


def test_what_is_no_number_is_refused_by_type_and_what_is_not_a_number_by_value(executor: NativeExecutor) -> None:
    runtime = executor._loaded().runtime
    with pytest.raises(ValueError, match="timeout_s is not a number"):
        runtime.wait_finished(float("nan"))
    (join,) = first_plan(chunk_of(3)).roster
    assert isinstance(join, Join)
    with pytest.raises(TypeError, match="an argument holds something of another type"):
        runtime.join(replace(join, params=replace(SamplingParams(), top_p="all")))  # type: ignore[arg-type]


def test_sizes_that_no_memory_has_are_refused_before_they_overflow() -> None:
    with pytest.raises(ValueError, match="the matrices take more than 281474976710656 bytes"):
        _native.Panels([(tape.Scheme.F32, 1 << 31, 1 << 31)])
    with pytest.raises(ValueError, match="the matrices take more than"):
        _native.Panels([(tape.Scheme.F32, 1 << 22, 1 << 22)] * 5)


def test_panels_take_what_belongs_to_them_and_nothing_else() -> None:
    panels = _native.Panels([(tape.Scheme.F32, 17, 8), (tape.Scheme.Q8_0, 4, 32)])
    assert panels.num_bytes >= 2 * 16 * 8 * 4 + 16 * 34
    for index, size in ((0, 17 * 32 - 1), (0, 15 * 32), (0, 0), (1, 4 * 34 + 1)):
        with pytest.raises(ValueError, match=f"matrix {index} is given {size} bytes but has"):
            panels.pack(index, np.zeros(size, np.uint8), 0, 1)
    with pytest.raises(ValueError, match="matrix 0 goes on at row 0, not 16"):
        panels.pack(0, np.zeros((1, 32), np.uint8), 16, 1)
    panels.pack(0, np.zeros((16, 32), np.uint8), 0, 2)
    with pytest.raises(ValueError, match="matrix 0 goes on at row 16, not 0"):
        panels.pack(0, np.zeros((17, 32), np.uint8), 0, 2)
    panels.pack(0, np.zeros((1, 32), np.uint8), 16, 2)
    with pytest.raises(ValueError, match="matrix 2 of 2"):
        panels.pack(2, np.zeros(1, np.uint8), 0, 1)
    with pytest.raises(ValueError, match="num_threads is 0"):
        panels.pack(1, np.zeros((4, 34), np.uint8), 0, 0)
    with pytest.raises(ValueError, match="depth is 33 but must be a multiple of 32"):
        _native.Panels([(tape.Scheme.Q4_1, 4, 33)])
    with pytest.raises(ValueError, match="depth is 288 but must be a multiple of 256"):
        _native.Panels([(tape.Scheme.Q5_K, 4, 288)])
    with pytest.raises(ValueError, match="scheme is 16 but must be between 0 and 15"):
        _native.Panels([(16, 4, 32)])


def test_a_record_of_more_events_than_memory_could_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"record_events is 268435457 but may be 268435456 at most"):
        _native.Runtime(object(), _native.Panels([]), [], [], [], 0, [-1], 1, 1, "", 0, False, False, (1 << 28) + 1)


def test_a_runtime_has_workers_and_lanes_and_gives_a_lane_no_worker_that_there_is_not(executor: NativeExecutor) -> None:
    for workers, lanes, said in (([], 2, "0 workers; 1 to"), ([-1], 0, "0 lanes; 1 to"), ([-1], 65, "65 lanes; 1 to")):
        with pytest.raises(ValueError, match=said):
            _native.Runtime(object(), _native.Panels([]), [], [], [], 0, workers, lanes, 1, "", 0, False, False, 0)
    for core in (-2, 1 << 16):
        with pytest.raises(ValueError, match=f"bound to processor {core}; -1"):
            _native.Runtime(object(), _native.Panels([]), [], [], [], 0, [core], 2, 1, "", 0, False, False, 0)
    runtime = executor._loaded().runtime
    with pytest.raises(ValueError, match="1 shares for 2 lanes"):
        runtime.assign([[0]], False)
    with pytest.raises(ValueError, match=f"worker {len(WORKERS)} of {len(WORKERS)}"):
        runtime.assign([[0], [len(WORKERS)]], False)


def test_pages_of_a_file_are_let_go_once_their_matrix_is_packed(tmp_path: Path) -> None:
    program = decoder()
    given = table_in(program, formats.F32)
    path = tmp_path / "weights"
    path.write_bytes(b"".join(tensor.stored.tobytes() for tensor in given.values()))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    contents, at, tensors = np.frombuffer(mapped, np.uint8), 0, {}
    for name, tensor in given.items():
        rows = contents[at : at + tensor.num_bytes].reshape(tensor.stored.shape)
        tensors[name] = Tensor(name, tensor.shape, tensor.format, rows)
        at += tensor.num_bytes
    from_file = WeightTable(tensors, path, "0" * 64)
    assert np.array_equal(scored(program, from_file), scored(program, given))
    # What was let go is still in the file: a second executor reads it again.
    assert np.array_equal(scored(program, from_file), scored(program, given))
