"""Trials run what the model runs: every product by its name, with its kinds of operands, and whole steps."""

from __future__ import annotations

import pytest
from tests.unit.exec import test_native_executor as native

from plait.exec.native.blocking import Blocking, GemmBlocks, UnitSizes
from plait.exec.native.executor import NativeConfig, NativeExecutor
from plait.exec.native.lowering import lower
from plait.exec.native.packing import WeightDtype, schemes_of
from plait.exec.native.trials import Model, ProductTrial, StepTrials, memory_for, mixes_for
from plait.model.builder import ProgramBuilder
from plait.model.cache_layout import plan_layout, token_bytes
from plait.model.cache_type import CacheType
from plait.model.program import Program
from plait.model.rope import RopeSpec
from plait.weights import formats
from plait.weights.formats import WeightFormat

MAX_STEP_TOKENS = 64


def model_of(form: WeightFormat, **others: WeightFormat) -> Model:
    program = native.decoder_for(form)
    table = native.table_in(program, form, **others)
    schemes = schemes_of(program, table, WeightDtype.AUTO)
    return Model(lower(program, schemes), table, schemes, (-1, -1), "", MAX_STEP_TOKENS)


@pytest.mark.parametrize(
    ("form", "others"),
    [(formats.F32, {}), (formats.Q8_0, {}), *native.MIXED.items()],
    ids=lambda one: getattr(one, "name", ""),
)
def test_every_product_of_a_model_is_carried_out(form: WeightFormat, others: dict[str, WeightFormat]) -> None:
    model = model_of(form, **others)
    products = model.products()
    assert sum(map(len, products.values())) >= 9
    for name, ops in products.items():
        trial = ProductTrial(model, ops)
        for num_rows in (1, 7, MAX_STEP_TOKENS):
            for blocks in (None, GemmBlocks(5, 2), GemmBlocks(1000, 1000)):
                assert 0.0 < trial.seconds(num_rows, blocks) < native.PATIENCE_S, name
        trial.close()


def test_products_are_named_by_what_their_time_depends_on() -> None:
    assert list(model_of(formats.F32).products()) == [
        "64 to 64 f32 + 32 f32 + 32 f32",
        "64 to 64 f32",
        "64 to 96 f32 * 96 f32",
        "96 to 64 f32",
        "64 to 24 f32",
    ]


def test_a_trial_knows_the_panels_that_units_are_cut_from() -> None:
    panels = [
        ProductTrial(model, ops).num_panels for model in [model_of(formats.F32)] for ops in model.products().values()
    ]
    assert panels == [8, 4, 6, 4, 2]


def test_a_product_is_as_large_as_the_weights_that_are_multiplied_and_not_as_those_of_the_file() -> None:
    program = native.decoder_for(formats.F32)
    table = native.table_in(program, formats.F32)
    plain = schemes_of(program, table, WeightDtype.AUTO)
    rounded = table.rounded("int8", {name: name for name in plain}, head="head")
    schemes = schemes_of(program, rounded, WeightDtype.AUTO)
    of_file = Model(lower(program, plain), table, plain, (-1, -1), "", MAX_STEP_TOKENS)
    of_memory = Model(lower(program, schemes), rounded, schemes, (-1, -1), "", MAX_STEP_TOKENS)
    (large, *_), (small, *_) = (list(one.products().values())[1] for one in (of_file, of_memory))
    assert of_file.num_bytes(large) == 64 * 64 * 4
    assert of_memory.num_bytes(small) == 64 * 64 * 33 // 32


def decoder_of(max_positions: int) -> Program:
    """A layer with attention, for so many positions."""
    b = ProgramBuilder("decoder")
    group = b.kv_group("full", 1, 1, 32)
    b.span("all", "all")
    x = b.embed("embed", native.VOCAB_SIZE, native.WIDTH)
    q, k, v = (b.linear(x, part, size) for part, size in (("q", native.WIDTH), ("k", 32), ("v", 32)))
    spec = RopeSpec(10_000.0, 32, max_positions)
    q, k = b.rope(q, spec, 2), b.rope(k, spec, 1)
    b.cache_write(k, v, group, 0)
    x = b.add(x, b.linear(b.attend(q, group, 0, 2), "o", native.WIDTH))
    b.sample(b.linear(b.select(x), "embed", native.VOCAB_SIZE))
    return b.finish()


@pytest.mark.parametrize(("max_positions", "block_size"), [(40, 4), (600, 16), (4000, 256)])
def test_whole_steps_run_with_any_context_that_a_model_has(max_positions: int, block_size: int) -> None:
    program = decoder_of(max_positions)
    mixes = mixes_for(max_positions, MAX_STEP_TOKENS, max_rows=20)
    assert all(sum(tokens for tokens, _ in mix.chunks) <= MAX_STEP_TOKENS for mix in mixes)
    assert all(tokens + behind <= max_positions for mix in mixes for tokens, behind in mix.chunks)
    per_token = token_bytes(program, CacheType.F32)
    layout = plan_layout(
        program,
        memory_bytes=memory_for(per_token, block_size, 1, mixes),
        tokens_per_block=block_size,
        cache_type=CacheType.F32,
    )
    executor = NativeExecutor(NativeConfig(native.WORKERS, max_step_tokens=MAX_STEP_TOKENS, max_rows=20))
    executor.load({"step": program}, native.table_in(program, formats.F32), layout)
    trials = StepTrials(executor, layout, mixes)
    tuned = Blocking(UnitSizes(per_worker=2.0))
    assert trials.seconds(Blocking()) > 0.0
    assert all(trials.seconds_of(mix, tuned) > 0.0 for mix in mixes)
    executor.close()
