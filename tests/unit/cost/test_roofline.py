"""Prices against closed forms, published figures and the properties that every caller relies on."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.families import CASES, one_of_each
from tests.unit.cost.invented import LLAMA_8B, SMOLLM2, bare

from plait.core.errors import InvariantError, UsageError
from plait.core.step import ChunkShape, StepShape
from plait.cost.hardware import HardwareSpec, find_hardware
from plait.cost.model import Bound, CostModel, both, pair_prices
from plait.cost.roofline import RooflineModel
from plait.cost.solo import decode_shape as decode
from plait.cost.solo import prefill_shape as prefill
from plait.model.cost import Formats, Parallel, cost_sheet
from plait.model.families import build_program

A100_80G = find_hardware("a100-80g")
ZEN3_2CORE = find_hardware("zen3-2core")
BF16 = Formats(default_weight_bytes=2.0, default_cache_bytes=2.0, activation_bytes=2.0)
F32_WITH_F16_CACHE = Formats(default_weight_bytes=4.0, default_cache_bytes=2.0)

QUANTIZED = Formats(default_weight_bytes=0.625, default_compute="int8", attention_reuse=4.0)
FAMILIES = [build_program(case.model_config()) for case in one_of_each(CASES)]
"""Windows, sinks, experts and states among them."""
PAIRED = [RooflineModel(SMOLLM2, QUANTIZED, A100_80G), *(RooflineModel(one, BF16, A100_80G) for one in FAMILIES)]
Pair = tuple[list[int], list[tuple[int, int]]]

# A device that multiplies 1e12 and reads 1e9 per second on four units, two of which saturate memory.
TOY = HardwareSpec("toy", 1e12, 1e9, 10**9, 4, 2.0, 0.0, 0.0, comm_bytes_per_s=1e8, comm_knee_units=1.0)


def test_it_is_a_cost_model() -> None:
    model: CostModel = RooflineModel(SMOLLM2, Formats(), TOY)
    assert model.price(decode(1, 0), 1).expected_s > 0


# Published and hand-computed figures:


@pytest.mark.parametrize(("rows", "expected_ms"), [(1, 31), (8, 36), (32, 84), (64, 167)])
def test_smollm2_decode_on_two_cores_costs_what_the_hand_computed_table_says(rows: int, expected_ms: float) -> None:
    """The table multiplies at OpenBLAS's 139 GFLOP/s, has 512 tokens of context and counts no activations."""
    model = RooflineModel(SMOLLM2, F32_WITH_F16_CACHE, bare(replace(ZEN3_2CORE, flops_per_s=139e9)))
    price = model.price(decode(rows, 512), share=2)
    assert price.expected_s * 1e3 == pytest.approx(expected_ms, rel=0.05)
    assert price.bound is (Bound.MEMORY if rows <= 8 else Bound.COMPUTE)


def test_smollm2_decode_of_one_row_is_its_weights_and_its_cache_over_bandwidth() -> None:
    model = RooflineModel(SMOLLM2, F32_WITH_F16_CACHE, bare(ZEN3_2CORE))
    weights, cache = 134.5e6 * 4, 513 * 23040
    assert model.price(decode(1, 512), 2).expected_s == pytest.approx((weights + cache) / 17.5e9, rel=0.01)


def test_llama_8b_decode_on_an_a100_cannot_beat_its_weights() -> None:
    model = RooflineModel(LLAMA_8B, BF16, bare(A100_80G))
    price = model.price(decode(1, 0), share=108)
    # 7.9 ms for all 8.03 B parameters; the rows of the input table that are not looked up need not be read.
    looked_up_elsewhere = 128256 * 4096
    assert LLAMA_8B.num_parameters * 2 / A100_80G.bytes_per_s == pytest.approx(7.9e-3, rel=0.01)
    floor_s = (LLAMA_8B.num_parameters - looked_up_elsewhere) * 2 / A100_80G.bytes_per_s
    assert floor_s < price.expected_s < floor_s * 1.01
    assert price.bound is Bound.MEMORY


def test_llama_8b_prefill_of_16k_tokens_on_an_a100_is_compute_bound() -> None:
    """Bullet: 1.245 s at 77 % utilisation, so 0.96 s at the peak; unfused element-wise ops and key re-reads add."""
    model = RooflineModel(LLAMA_8B, replace(BF16, attention_reuse=16.0), A100_80G)
    price = model.price(prefill(16384), share=108)
    assert price.bound is Bound.COMPUTE
    assert price.expected_s == pytest.approx(1.245 * 0.77, rel=0.15)


def test_a_price_is_the_sum_of_each_ops_slowest_resource() -> None:
    shape = StepShape((ChunkShape(0, 40, 1), ChunkShape(700, 1, 1), ChunkShape(3, 5, 0)))
    total_s = 0.0
    for op in cost_sheet(SMOLLM2, BF16).costs(shape):
        moved = op.weight_bytes + op.cache_read + op.cache_write + op.activation_bytes
        total_s += op.count * max(op.flops / 1e12, moved / 1e9)
    assert RooflineModel(SMOLLM2, BF16, TOY).price(shape, 4).expected_s == pytest.approx(total_s, rel=1e-12)


# What the factors do:


def test_alpha_stretches_the_roofline_and_not_the_overhead() -> None:
    spec = replace(TOY, step_overhead_s=2.0, seq_overhead_s=0.5)
    plain = RooflineModel(SMOLLM2, BF16, TOY).price(decode(3, 9), 4).expected_s
    price = RooflineModel(SMOLLM2, BF16, spec, alpha=1.61).price(decode(3, 9), 4)
    assert price.expected_s == pytest.approx(1.61 * plain + 2.0 + 3 * 0.5)
    assert price.bound is Bound.OVERHEAD


def test_a_compute_bound_step_scales_with_the_share_and_a_memory_bound_one_up_to_the_knee() -> None:
    compute = RooflineModel(SMOLLM2, BF16, replace(TOY, bytes_per_s=1e15))
    memory = RooflineModel(SMOLLM2, BF16, replace(TOY, flops_per_s=1e18))
    shape = prefill(64)
    assert [
        compute.price(shape, 4).expected_s / compute.price(shape, n).expected_s for n in (1, 2, 3)
    ] == pytest.approx([0.25, 0.5, 0.75], rel=1e-3)
    assert [memory.price(shape, 4).expected_s / memory.price(shape, n).expected_s for n in (1, 2, 3)] == pytest.approx(
        [0.5, 1.0, 1.0], rel=1e-3
    )


def test_prefill_on_an_a100_gains_from_every_sm_and_decode_keeps_most_of_its_speed_on_half() -> None:
    model = RooflineModel(LLAMA_8B, replace(BF16, attention_reuse=16.0), bare(A100_80G))
    whole, half = (model.price(prefill(4096), share).expected_s for share in (108, 54))
    assert half / whole > 1.8
    whole, half = (model.price(decode(32, 2048), share).expected_s for share in (108, 54))
    assert half / whole < 1.1


def test_tensor_parallel_steps_pay_for_the_link() -> None:
    alone = RooflineModel(LLAMA_8B, BF16, TOY).price(prefill(512), 4)
    slow_link = replace(TOY, comm_bytes_per_s=1e3)
    two = RooflineModel(LLAMA_8B, BF16, slow_link, Parallel(tensor=2)).price(prefill(512), 4)
    # Each device sends 2 (t - 1) / t of every sum: one behind the embedding and two per layer, of 512 rows in bf16.
    sent = 2 * (2 - 1) / 2 * (1 + 2 * 32) * 512 * 4096 * 2
    assert two.bound is Bound.COMM
    assert 0 < two.expected_s - sent / 1e3 < alone.expected_s


def test_tensor_parallelism_without_a_link_is_refused() -> None:
    with pytest.raises(UsageError, match="zen3-2core has no link to other devices"):
        RooflineModel(SMOLLM2, BF16, ZEN3_2CORE, Parallel(tensor=3))


# Beside others:


def test_two_memory_bound_lanes_divide_the_bandwidth() -> None:
    model = RooflineModel(SMOLLM2, F32_WITH_F16_CACHE, bare(ZEN3_2CORE))
    alone, both_cores = (model.price(decode(1, 512), share).expected_s for share in (1, 2))
    beside = model.price(decode(1, 512), 1, [decode(1, 512)])
    assert alone / both_cores == pytest.approx(17.5 / 10.8, rel=0.01)
    assert beside.expected_s / both_cores == pytest.approx(2.0, rel=0.01)
    assert beside.worst_s == pytest.approx(beside.expected_s, rel=0.01)


def test_a_compute_bound_neighbour_costs_decode_little_but_may_cost_it_half_of_the_bandwidth() -> None:
    """Where no largest slowdown is known, the worst is a neighbour that draws what its share can."""
    model = RooflineModel(LLAMA_8B, replace(BF16, attention_reuse=16.0), bare(replace(A100_80G, worst_slowdown=None)))
    alone = model.price(decode(32, 2048), 54)
    beside = model.price(decode(32, 2048), 54, [prefill(2048)])
    assert 1.0 < beside.expected_s / alone.expected_s < 1.3
    assert beside.worst_s / alone.expected_s == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("name", "largest"), [("a100-80g", 1.2), ("h100-80g", 1.3)])
def test_neighbours_cost_decode_no_more_than_was_ever_seen(name: str, largest: float) -> None:
    """MuxWise: 20 % on an A100, 30 % on an H100, over all that a week of trials found."""
    spec = bare(find_hardware(name))
    model = RooflineModel(LLAMA_8B, BF16, spec)
    for share in range(20, spec.share_units - 16, 16):
        for rows, context, tokens in ((1, 1024, 1024), (32, 2048, 2048), (128, 512, 16384)):
            alone = model.price(decode(rows, context), share)
            beside = model.price(decode(rows, context), share, [prefill(tokens)])
            assert 1.0 <= beside.expected_s / alone.expected_s <= largest + 1e-9
            assert beside.worst_s / alone.worst_s == pytest.approx(largest) or beside.worst_s <= alone.worst_s * largest


def test_a_prefill_with_most_of_the_device_hardly_feels_decode() -> None:
    """Bullet: less than 8 % with more than 60 % of the SMs."""
    model = RooflineModel(LLAMA_8B, replace(BF16, attention_reuse=16.0), bare(A100_80G))
    for share, tokens in product((66, 76, 92), (1024, 4096, 16384)):
        alone = model.price(prefill(tokens), share).expected_s
        beside = model.price(prefill(tokens), share, [decode(64, 2048)]).expected_s
        assert alone <= beside < 1.08 * alone


def test_many_experts_may_be_chosen_in_the_worst_case() -> None:
    """Dense models have no such doubt: without neighbours, the worst is what is expected."""
    price = RooflineModel(SMOLLM2, BF16, TOY).price(decode(4, 100), 2)
    assert price.worst_s == pytest.approx(price.expected_s)


# Limits and memory:


@pytest.mark.parametrize("share", [0, -1, 5])
def test_a_share_outside_the_device_is_our_bug(share: int) -> None:
    with pytest.raises(InvariantError, match=f"share is {share} of 4 units of toy"):
        RooflineModel(SMOLLM2, BF16, TOY).price(decode(1, 0), share)


@pytest.mark.parametrize("alpha", [0.0, -2.0, float("nan")])
def test_a_calibration_factor_is_positive(alpha: float) -> None:
    with pytest.raises(InvariantError, match=f"alpha is {alpha}"):
        RooflineModel(SMOLLM2, BF16, TOY, alpha=alpha)


def test_a_step_without_chunks_costs_its_overhead() -> None:
    model = RooflineModel(SMOLLM2, BF16, replace(TOY, step_overhead_s=0.25))
    assert model.price(StepShape(()), 1).expected_s == 0.25


def test_equal_shapes_are_priced_once() -> None:
    model = RooflineModel(SMOLLM2, BF16, TOY)
    assert model.price(decode(64, 300), 4) is model.price(decode(64, 300), 4, [])


# Runs of steps:


@given(starts=st.lists(st.integers(0, 5000), min_size=1, max_size=5), tokens=st.integers(1, 2))
def test_a_run_of_steps_has_the_very_prices_of_its_steps(starts: list[int], tokens: int) -> None:
    model = RooflineModel(SMOLLM2, BF16, A100_80G, alpha=1.61)
    steps = [StepShape(tuple(ChunkShape(start + later, tokens, 1) for start in starts)) for later in range(4)]
    run = islice(model.run_prices(steps[0], 50), len(steps))
    assert list(run) == [model.price(step, 50).expected_s for step in steps]


PAIRS = st.tuples(
    st.lists(st.integers(0, 5000), max_size=6),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 700)), max_size=3),
)


def pair_of(given: tuple[list[int], list[tuple[int, int]]]) -> tuple[StepShape, StepShape]:
    starts, prompts = given
    decoding = StepShape(tuple(ChunkShape(start, 1, 1) for start in starts))
    return decoding, StepShape(
        tuple(ChunkShape(start, tokens, place % 2) for place, (start, tokens) in enumerate(prompts))
    )


@settings(max_examples=20)
@given(PAIRS, st.integers(1, 108))
def test_a_pair_has_the_price_of_the_step_that_it_makes(given_pair: Pair, share: int) -> None:
    for model in PAIRED:
        first, second = pair_of(given_pair)
        merged, price = model.price(both(first, second), share), pair_prices(model)(first, second, share)
        assert price.expected_s == pytest.approx(merged.expected_s, rel=1e-12)
        assert price.worst_s == pytest.approx(merged.worst_s, rel=1e-12)
        assert price.bound is merged.bound or price.expected_s == 0


@settings(max_examples=20)
@given(PAIRS, st.integers(1, 108))
def test_operations_priced_together_take_what_each_takes_by_itself(given_pair: Pair, share: int) -> None:
    """The sum of max(flops / C, bytes / D, comm bytes / W) over all of them, as the formula says it."""
    shape = both(*pair_of(given_pair))
    formats_of = [QUANTIZED, *[BF16] * len(FAMILIES)]
    for program, formats, model in zip((SMOLLM2, *FAMILIES), formats_of, PAIRED, strict=True):
        expected = sum(
            cost.count
            * max(
                cost.flops / A100_80G.compute_rate(share, cost.numbers),
                (cost.weight_bytes + cost.cache_read + cost.cache_write + cost.activation_bytes)
                / A100_80G.memory_rate(share),
            )
            for cost in cost_sheet(program, formats).costs(shape)
        )
        assert model.roof(shape, share).seconds == pytest.approx(expected, rel=1e-9)


# Number formats and waves:


def test_weights_are_multiplied_at_the_rate_of_their_kernels() -> None:
    rates = {"int8": 4e12}
    spec = replace(TOY, bytes_per_s=1e15, rates=rates)
    usual = RooflineModel(SMOLLM2, BF16, spec).price(prefill(256), 4).expected_s
    fast = RooflineModel(SMOLLM2, replace(BF16, default_compute="int8"), spec).price(prefill(256), 4).expected_s
    products = sum(c.count * c.flops for c in cost_sheet(SMOLLM2, BF16).costs(prefill(256)) if c.kind == "Linear")
    assert usual - fast == pytest.approx(products * (1 / 1e12 - 1 / 4e12), rel=1e-2)


def test_layers_with_other_kernels_are_priced_apart() -> None:
    """Half of the layers at a quarter of the time: the mean of times, not a time at the mean of rates."""
    spec = replace(TOY, bytes_per_s=1e15, rates={"int8": 4e12})
    names = [name for name in SMOLLM2.weights if any(f"layers.{n}." in name or f"blk.{n}." in name for n in range(15))]
    assert len(names) > 100
    half = RooflineModel(SMOLLM2, replace(BF16, compute=dict.fromkeys(names, "int8")), spec)
    none, every = (RooflineModel(SMOLLM2, replace(BF16, default_compute=n), spec) for n in (None, "int8"))
    head_s = 2 * 576 * 49152 / 1e12
    shares = [model.price(prefill(256), 4).expected_s for model in (none, half, every)]
    assert shares[1] == pytest.approx((shares[0] + shares[2] + 0.75 * head_s) / 2, rel=1e-3)


def test_waves_add_what_a_half_empty_last_wave_idles() -> None:
    """8B on an A100, 1024 tokens: the output product of a layer fills 128 blocks of 108 units, twice."""
    spec = bare(replace(A100_80G, bytes_per_s=1e15))
    plain, waves = (RooflineModel(LLAMA_8B, BF16, spec, waves=on).price(prefill(1024), 108) for on in (False, True))
    assert 1.1 < waves.expected_s / plain.expected_s < 1.4
    longer = [RooflineModel(LLAMA_8B, BF16, spec, waves=on).price(prefill(16384), 108) for on in (False, True)]
    assert 1.0 < longer[1].expected_s / longer[0].expected_s < 1.03


def test_waves_without_tiles_are_refused() -> None:
    with pytest.raises(UsageError, match="zen3-2core names no tiles"):
        RooflineModel(SMOLLM2, BF16, ZEN3_2CORE, waves=True)


def test_a_step_is_bound_by_compute_above_the_balance_of_its_share() -> None:
    model = RooflineModel(LLAMA_8B, replace(BF16, attention_reuse=16.0), A100_80G)
    assert model.intensity(decode(1, 100)) < model.balance(54) < model.balance(108) < model.intensity(prefill(4096))
    assert model.intensity(StepShape(())) == 0.0


chunks = st.builds(ChunkShape, st.integers(0, 4000), st.integers(1, 600), st.integers(0, 1))
shapes = st.builds(StepShape, st.lists(chunks, min_size=1, max_size=6).map(tuple))
SMOL_ON_A100 = RooflineModel(SMOLLM2, BF16, A100_80G)


@given(shape=shapes, share=st.integers(1, 107), others=st.lists(shapes, max_size=1))
def test_more_share_never_costs_more_and_expected_never_exceeds_worst(
    shape: StepShape, share: int, others: list[StepShape]
) -> None:
    less, more = (SMOL_ON_A100.price(shape, units, others) for units in (share, share + 1))
    assert more.expected_s <= less.expected_s * (1 + 1e-9)
    assert more.worst_s <= less.worst_s * (1 + 1e-9)
    assert less.expected_s <= less.worst_s * (1 + 1e-9)


@given(shape=shapes, neighbour=shapes, extra=chunks)
def test_company_and_further_work_never_make_a_step_cheaper(
    shape: StepShape, neighbour: StepShape, extra: ChunkShape
) -> None:
    alone = SMOL_ON_A100.price(shape, 50).expected_s
    assert SMOL_ON_A100.price(shape, 50, [neighbour]).expected_s >= alone * (1 - 1e-12)
    assert SMOL_ON_A100.price(StepShape((*shape.chunks, extra)), 50).expected_s >= alone
