"""Stacked experts come apart into the matrices that products want, whatever the file's layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from plait.core.errors import ModelError
from plait.weights.canonical import Named, weight_table
from plait.weights.formats import BF16, BYTE, F32, WeightFormat
from plait.weights.stacked import GGUF_STACKED, HF_STACKED, from_gpt_oss, unstacked
from plait.weights.stored import StoredTensor

SOURCE = Path("made-up")
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""What the 4-bit codes mean: two bits of exponent, one of mantissa."""
EXPERTS, INNER, HIDDEN = 3, 6, 64
LAYER = "model.layers.0.mlp.experts"


def stored(name: str, array: npt.NDArray[np.generic], form: WeightFormat = F32) -> StoredTensor:
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return StoredTensor(name, array.shape, form, 0, raw.nbytes, raw)


def floats_of(parts: Mapping[str, StoredTensor]) -> dict[str, npt.NDArray[np.float32]]:
    found = [Named(tensor, (name,)) for name, tensor in parts.items()]
    table = weight_table(found, {name: tensor.shape for name, tensor in parts.items()}, SOURCE, "0" * 64)
    for name, tensor in table.items():
        # A piece in the middle reads the same as the whole.
        assert np.array_equal(tensor.dequantize(1, 3), tensor.dequantize()[1:3]), name
    return {name: tensor.dequantize() for name, tensor in table.items()}


def drawn(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "stack", "first"),
    [
        ("blk.0.ffn_gate_exps.weight", GGUF_STACKED, "blk.0.ffn_gate_exps.0.weight"),
        (f"{LAYER}.down_proj", HF_STACKED, f"{LAYER}.0.down_proj"),
    ],
)
def test_experts_one_behind_another_are_views_of_the_file(name: str, stack: object, first: str) -> None:
    whole = drawn(EXPERTS, INNER, HIDDEN)
    tensor = stored(name, whole)
    parts = dict(unstacked({name: tensor, "other": tensor}, GGUF_STACKED if stack is GGUF_STACKED else HF_STACKED, SOURCE))
    assert parts.pop("other") is tensor
    assert list(parts)[0] == first
    assert all(np.shares_memory(part.mapped, tensor.mapped) for part in parts.values())
    for expert, values in enumerate(floats_of(parts).values()):
        assert np.array_equal(values, whole[expert])


@pytest.mark.parametrize("form", [F32, BF16])
def test_matrices_of_gpt_oss_on_their_side_are_turned_and_gate_and_up_parted(form: WeightFormat) -> None:
    both, down = drawn(EXPERTS, HIDDEN, 2 * INNER), drawn(EXPERTS, INNER, HIDDEN)
    if form is BF16:
        both, down = ((one.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for one in (both, down))
    halves = [one if form is F32 else (one.view(np.uint32) >> 16).astype(np.uint16) for one in (both, down)]
    tensors = {
        f"{LAYER}.gate_up_proj": stored("gate_up", halves[0], form),
        f"{LAYER}.down_proj": stored("down", halves[1], form),
    }
    values = floats_of(dict(from_gpt_oss(tensors, SOURCE)))
    for expert in range(EXPERTS):
        assert np.array_equal(values[f"{LAYER}.{expert}.gate_proj"], both[expert, :, 0::2].T)
        assert np.array_equal(values[f"{LAYER}.{expert}.up_proj"], both[expert, :, 1::2].T)
        assert np.array_equal(values[f"{LAYER}.{expert}.down_proj"], down[expert].T)


def test_biases_of_gate_and_up_are_parted() -> None:
    bias = drawn(EXPERTS, 2 * INNER)
    values = floats_of(dict(from_gpt_oss({f"{LAYER}.gate_up_proj_bias": stored("bias", bias)}, SOURCE)))
    assert np.array_equal(values[f"{LAYER}.gate_proj_bias"], bias[:, 0::2])
    assert np.array_equal(values[f"{LAYER}.up_proj_bias"], bias[:, 1::2])


def mxfp4(rows: int, width: int) -> tuple[dict[str, StoredTensor], npt.NDArray[np.float32]]:
    """Codes and scales of every kind, and what they mean: a code's value times 2^(scale - 127)."""
    draws = np.random.default_rng(9)
    codes = draws.integers(0, 256, (EXPERTS, rows, width // 32, 16), dtype=np.uint8)
    scales = draws.integers(0, 253, (EXPERTS, rows, width // 32), dtype=np.uint8)
    scales[0, 0, 0] = 0
    weights = np.empty((EXPERTS, rows, width // 32, 32), np.float64)
    weights[..., 0::2], weights[..., 1::2] = FP4[codes & 15], FP4[codes >> 4]
    meant = np.ldexp(weights, scales.astype(np.int64)[..., None] - 127).reshape(EXPERTS, rows, width)
    name = f"{LAYER}.{'gate_up' if rows == 2 * INNER else 'down'}_proj"
    return {
        f"{name}_blocks": stored(f"{name}_blocks", codes, BYTE),
        f"{name}_scales": stored(f"{name}_scales", scales, BYTE),
    }, meant.astype(np.float32)


def test_codes_and_scales_of_gpt_oss_become_mxfp4_with_every_value_kept() -> None:
    both, meant_both = mxfp4(2 * INNER, HIDDEN)
    down, meant_down = mxfp4(HIDDEN, 32)
    parts = dict(from_gpt_oss({**both, **down}, SOURCE))
    assert {part.format.name for part in parts.values()} == {"MXFP4"}
    values = floats_of(parts)
    for expert in range(EXPERTS):
        assert np.array_equal(values[f"{LAYER}.{expert}.gate_proj"], meant_both[expert, 0::2])
        assert np.array_equal(values[f"{LAYER}.{expert}.up_proj"], meant_both[expert, 1::2])
        assert np.array_equal(values[f"{LAYER}.{expert}.down_proj"], meant_down[expert])


def test_what_is_no_stack_of_experts_is_refused_by_name() -> None:
    def refusal(tensors: Mapping[str, StoredTensor]) -> str:
        with pytest.raises(ModelError) as caught:
            dict(from_gpt_oss(tensors, SOURCE))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    both, _ = mxfp4(2 * INNER, HIDDEN)
    blocks, scales = both
    assert "has no scales" in refusal({blocks: both[blocks]})
    assert "are the scales of no codes" in refusal({scales: both[scales]})
    assert "they must be bytes, 16 of them for a scale" in refusal(
        {blocks: both[blocks], scales: stored(scales, np.zeros((EXPERTS, 5, 2), np.uint8), BYTE)}
    )
    assert "must have 3 dimensions" in refusal({f"{LAYER}.down_proj": stored("down", drawn(4, 4))})
    assert "not pairs of gate and up" in refusal({f"{LAYER}.gate_up_proj": stored("both", drawn(2, 4, 3))})
    many = StoredTensor("many", (1 << 40, 1, 0), F32, 0, 0, np.zeros(0, np.uint8))
    with pytest.raises(ModelError, match="1 to 4,096 experts"):
        dict(unstacked({f"{LAYER}.down_proj": many}, HF_STACKED, SOURCE))
