"""Row operations of the reference executor against their written definitions, in double precision.

A float32 result may be off by a few roundings of the numbers that went into it, so tolerances are computed from norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from tests.conformance.serving import EVEN_BLAS
from threadpoolctl import threadpool_limits

from plait.exec.reference.ops import ROW_TILE, RopeTable, activate, linear, norm, padded, rope
from plait.model.ops import Activation, Norm, NormKind, Pairing, Rope, ValueId
from plait.model.rope import LinearScaling, RopeSpec

Floats = npt.NDArray[np.float32]
X, Y = ValueId(0), ValueId(1)
ROUNDING = 2.0**-24


def some(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the executor sets it: threads cut a product where they like."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.mark.parametrize(("rows", "tiles"), [(0, 0), (1, 1), (ROW_TILE, 1), (ROW_TILE + 1, 2), (100, 7)])
def test_rows_are_padded_to_whole_tiles(rows: int, tiles: int) -> None:
    assert padded(rows) == tiles * ROW_TILE


# Norms


def by_definition(op: Norm, x: Floats, w: Floats | None, b: Floats | None) -> npt.NDArray[np.float64]:
    """Part by part, column by column."""
    size = x.shape[1] // op.parts
    y = np.empty(x.shape)
    for row in range(len(x)):
        for part in range(op.parts):
            values = x[row, part * size : (part + 1) * size].astype(np.float64)
            if op.kind is NormKind.LAYER:
                values = values - values.mean()
            values = values / math.sqrt(float((values**2).mean()) + op.eps)
            for c in range(size):
                column = part * size + c
                scale = 1.0 if w is None else op.offset + float(w[column % len(w)])
                y[row, column] = values[c] * scale + (0.0 if b is None else float(b[column % len(b)]))
    return y


NORMS = {
    "rms": Norm((X,), Y, "w", 1e-5),
    "layer with a bias": Norm((X,), Y, "w", 1e-5, NormKind.LAYER, "b"),
    "weights around zero": Norm((X,), Y, "w", 1e-6, offset=1.0),
    "no weight": Norm((X,), Y, None, 1e-5),
    "per head, one weight for all": Norm((X,), Y, "short", 1e-5, parts=3),
    "per head, a weight for each column": Norm((X,), Y, "w", 1e-5, parts=3),
    "layer, per head": Norm((X,), Y, "short", 1e-5, NormKind.LAYER, "short_bias", parts=3),
    "a large eps": Norm((X,), Y, "w", 3.0),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_what_its_definition_says(name: str) -> None:
    op = NORMS[name]
    weights = {"w": some(12, seed=1), "b": some(12, seed=2), "short": some(4, seed=3), "short_bias": some(4, seed=4)}
    x = 3 * some(5, 12) + 1
    scale = None if op.weight is None else weights[op.weight]
    shift = None if op.bias is None else weights[op.bias]
    exact = by_definition(op, x, scale, shift)
    assert np.abs(norm(op, x, weights) - exact).max() < 16 * ROUNDING * np.abs(exact).max()


def test_a_row_of_zeros_stays_a_row_of_numbers() -> None:
    assert not norm(NORMS["rms"], np.zeros((2, 12), np.float32), {"w": some(12)}).any()


# Products


def test_a_product_adds_its_bias_and_then_scales() -> None:
    x, w, b = some(ROW_TILE, 8), some(5, 8, seed=1), some(5, seed=2)
    exact = 0.5 * (x.astype(np.float64) @ w.T.astype(np.float64) + b)
    bound = 8 * ROUNDING * np.linalg.norm(x, axis=1).max() * np.linalg.norm(w, axis=1).max()
    assert np.abs(linear(x, w, b, 0.5) - exact).max() < bound
    assert np.abs(linear(x, w, None, 1.0) - (2 * exact - b)).max() < bound


def test_no_rows_give_no_rows() -> None:
    assert linear(some(0, 48), some(40, 48), None, 1.0).shape == (0, 40)


def places_of(op: Callable[[Floats], Floats], width: int) -> Iterator[Floats]:
    """What `op` gives for one row, at every place of one, two and five row tiles among rows that are new each time."""
    row = 3 * some(width)
    for num_rows in (ROW_TILE, 2 * ROW_TILE, 5 * ROW_TILE):
        for place in range(num_rows):
            x = some(num_rows, width, seed=1 + place)
            x[place] = row
            yield op(x)[place]


SHAPES = {
    "attention input": (576, 576),
    "keys": (192, 576),
    "up": (1536, 576),
    "down": (576, 1536),
    "a piece of the head": (4099, 576),
    "wide and flat": (7, 2049),
    "odd": (97, 48),
    "narrow": (3, 5),
}
"""Outputs and inputs; those of the default model first."""


@pytest.mark.skipif(not EVEN_BLAS, reason="what this BLAS does with places was never measured")
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.usefixtures("one_thread")
def test_a_product_has_the_same_bits_at_every_place_among_any_rows(name: str) -> None:
    """As much a test of the BLAS as of ours: where it fails, answers depend on the load in their last bits."""
    weight = some(*SHAPES[name], seed=500)
    first, *others = places_of(lambda x: linear(x, weight, None, 1.0), weight.shape[1])
    assert all(np.array_equal(one, first) for one in others)


@pytest.mark.usefixtures("one_thread")
def test_the_columns_of_a_wider_value_give_a_product_the_same_bits() -> None:
    wide, weight = some(ROW_TILE, 100), some(40, 48, seed=1)
    view = wide[:, 20:68]
    assert np.array_equal(linear(view, weight, None, 1.0), linear(view.copy(), weight, None, 1.0))


@pytest.mark.parametrize("width", [6, 17, 576])
def test_what_works_on_rows_alone_has_the_same_bits_at_every_place(width: int) -> None:
    ops: list[Callable[[Floats], Floats]] = [partial(activate, one) for one in Activation if one != Activation.GELU]
    ops += [partial(norm, Norm((X,), Y, None, 1e-5, kind), weights={}) for kind in NormKind]
    for op in ops:
        first, *others = places_of(op, width)
        assert all(np.array_equal(one, first) for one in others)


# Rope


def pairs(op: Rope) -> list[tuple[int, int]]:
    half = op.spec.rotary_dim // 2
    if op.pairing is Pairing.HALF:
        return [(i, i + half) for i in range(half)]
    return [(2 * i, 2 * i + 1) for i in range(half)]


def roped(op: Rope, x: Floats, positions: list[int]) -> Floats:
    return rope(op, x, *RopeTable(op.spec, op.mscale).at(np.asarray(positions)))


SPEC = RopeSpec(10_000.0, 6, 4096)
ROPES = {
    "half": Rope((X,), Y, SPEC, 2, 6),
    "interleaved": Rope((X,), Y, SPEC, 2, 6, Pairing.INTERLEAVED),
    "only the first columns, half": Rope((X,), Y, SPEC, 2, 10),
    "only the first columns, interleaved": Rope((X,), Y, SPEC, 2, 10, Pairing.INTERLEAVED),
    "scaled by mscale": Rope((X,), Y, SPEC, 2, 6, mscale=1.25),
    "scaled frequencies": Rope((X,), Y, RopeSpec(10_000.0, 6, 4096, LinearScaling(4.0)), 2, 6),
}


@pytest.mark.parametrize("name", ROPES)
def test_a_rope_turns_the_pairs_of_its_pairing(name: str) -> None:
    op = ROPES[name]
    positions = [0, 1, 7, 900, 4095]
    x = some(len(positions), op.heads * op.head_dim)
    factor = op.spec.scaling.factor if isinstance(op.spec.scaling, LinearScaling) else 1.0
    exact = x.astype(np.float64).reshape(len(x), op.heads, op.head_dim).copy()
    for row, position in enumerate(positions):
        for head in range(op.heads):
            for i, (a, b) in enumerate(pairs(op)):
                angle = position * op.spec.theta ** (-2 * i / op.spec.rotary_dim) / factor
                c, s = op.mscale * math.cos(angle), op.mscale * math.sin(angle)
                old_a, old_b = exact[row, head, a], exact[row, head, b]
                exact[row, head, a], exact[row, head, b] = old_a * c - old_b * s, old_b * c + old_a * s
    given = roped(op, x, positions)
    assert np.abs(given - exact.reshape(x.shape)).max() < 4 * ROUNDING * np.abs(x).max() * op.mscale


def test_the_columns_behind_the_rotary_ones_pass_through_bit_for_bit() -> None:
    op = ROPES["only the first columns, half"]
    x = some(3, 20)
    given = roped(op, x, [5, 6, 7]).reshape(3, 2, 10)
    assert np.array_equal(given[:, :, 6:], x.reshape(3, 2, 10)[:, :, 6:])


def test_a_table_that_grew_gives_the_same_bits_as_one_made_at_once() -> None:
    grown, whole = RopeTable(SPEC, 1.0), RopeTable(SPEC, 1.0)
    far = np.asarray([4000])
    whole.at(far)
    for length in (1, 2, 10, 500, 4001):
        positions = np.arange(length)
        for one, other in zip(grown.at(positions), whole.at(positions), strict=True):
            assert np.array_equal(one, other)


# Activations

DEFINITIONS: dict[Activation, Callable[[float], float]] = {
    Activation.SILU: lambda x: x / (1 + math.exp(-x)),
    Activation.GELU: lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))),
    Activation.GELU_TANH: lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Activation.RELU2: lambda x: max(x, 0.0) ** 2,
    Activation.SIGMOID: lambda x: 1 / (1 + math.exp(-x)),
    Activation.TANH: math.tanh,
}


@pytest.mark.parametrize("activation", Activation)
def test_an_activation_is_what_its_definition_says(activation: Activation) -> None:
    x = np.linspace(-12, 12, 483, dtype=np.float32).reshape(3, -1)
    exact = np.asarray([DEFINITIONS[activation](float(value)) for value in x.ravel()]).reshape(x.shape)
    given = activate(activation, x)
    assert given.dtype == np.float32
    assert np.abs(given - exact).max() < 16 * ROUNDING * max(1.0, np.abs(exact).max())


@pytest.mark.parametrize("activation", Activation)
def test_an_activation_has_its_limits_far_out(activation: Activation) -> None:
    with np.errstate(over="ignore"):
        low, high = activate(activation, np.asarray([[-1e4, 1e4]], np.float32))[0]
    limits = {Activation.RELU2: np.float32(1e8), Activation.SIGMOID: 1.0, Activation.TANH: 1.0}
    assert abs(low - (-1.0 if activation is Activation.TANH else 0.0)) < 1e-30
    assert high == limits.get(activation, np.float32(1e4))
