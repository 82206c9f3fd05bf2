"""Names: a llama-family file becomes our names, our row order, and nothing that was not expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from plait.core.errors import ModelError
from plait.model.limits import MAX_WIDTH
from plait.weights.gguf import GgufFile, read_gguf
from plait.weights.names import GGUF_NAMES, half_split_order, load_gguf_weights, rope_factors
from plait.weights.table import WeightTable

Floats = npt.NDArray[np.float32]

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, VOCABULARY = 4, 2, 8, 32, 5
EXPECTED = {
    "embed": (VOCABULARY, HIDDEN),
    "layers.0.attn_norm": (HIDDEN,),
    "layers.0.q": (HEADS * HEAD_DIM, HIDDEN),
    "layers.0.q_bias": (HEADS * HEAD_DIM,),
    "layers.0.k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "layers.0.k_bias": (KV_HEADS * HEAD_DIM,),
    "layers.0.v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "layers.0.o": (HIDDEN, HEADS * HEAD_DIM),
    "final_norm": (HIDDEN,),
}
FILE_NAMES = {
    "embed": "token_embd.weight",
    "layers.0.attn_norm": "blk.0.attn_norm.weight",
    "layers.0.q": "blk.0.attn_q.weight",
    "layers.0.q_bias": "blk.0.attn_q.bias",
    "layers.0.k": "blk.0.attn_k.weight",
    "layers.0.k_bias": "blk.0.attn_k.bias",
    "layers.0.v": "blk.0.attn_v.weight",
    "layers.0.o": "blk.0.attn_output.weight",
    "final_norm": "output_norm.weight",
}


def original_weights() -> dict[str, Floats]:
    """In our names and our row order, exact in F16 so that a file can hold them in either format."""
    rng = np.random.default_rng(4)
    return {name: rng.standard_normal(shape).astype(np.float16).astype(np.float32) for name, shape in EXPECTED.items()}


def interleaved(weights: Floats, num_heads: int) -> Floats:
    """What a converter does to q and k: half h, pair j of a head goes to row 2j + h of it."""
    moved = np.empty_like(weights)
    head_dim = len(weights) // num_heads
    for row in range(len(weights)):
        head, (half, pair) = row // head_dim, divmod(row % head_dim, head_dim // 2)
        moved[head * head_dim + 2 * pair + half] = weights[row]
    return moved


def write_llama(
    path: Path,
    change: Callable[[gguf.GGUFWriter, dict[str, Floats]], None] = lambda writer, tensors: None,
    *,
    architecture: str = "llama",
    heads: int = HEADS,
) -> GgufFile:
    """A one-layer file as a converter writes it; `change` may alter the tensors (by GGUF name) or add metadata."""
    tensors = {FILE_NAMES[name]: floats for name, floats in original_weights().items()}
    for kind in ("weight", "bias"):
        tensors[f"blk.0.attn_q.{kind}"] = interleaved(tensors[f"blk.0.attn_q.{kind}"], HEADS)
        tensors[f"blk.0.attn_k.{kind}"] = interleaved(tensors[f"blk.0.attn_k.{kind}"], KV_HEADS)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_head_count(heads)
    writer.add_head_count_kv(KV_HEADS)
    change(writer, tensors)
    for name, floats in tensors.items():
        writer.add_tensor(name, floats)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(path)


def refused(file: GgufFile, expected: dict[str, tuple[int, ...]] | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        load_gguf_weights(file, EXPECTED if expected is None else expected)
    message = str(caught.value)
    assert message.startswith(f"{file.path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{file.path}: ")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


def test_the_original_weights_come_back_in_the_expected_order(path: Path) -> None:
    table = load_gguf_weights(write_llama(path), EXPECTED)
    assert list(table) == list(EXPECTED)
    for name, original in original_weights().items():
        np.testing.assert_array_equal(table[name].dequantize(), original, err_msg=name)
        assert table[name].shape == original.shape


def test_half_precision_files_give_the_same_weights(path: Path) -> None:
    def halve(_: gguf.GGUFWriter, tensors: dict[str, Floats]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].astype(np.float16)

    table = load_gguf_weights(write_llama(path, halve), EXPECTED)
    for name, original in original_weights().items():
        assert table[name].format.name == "F16"
        np.testing.assert_array_equal(table[name].dequantize(), original, err_msg=name)


def test_rows_are_reordered_only_where_rotation_needs_it(path: Path) -> None:
    table = load_gguf_weights(write_llama(path), EXPECTED)
    reordered = [name for name, tensor in table.items() if tensor.row_order is not None]
    assert reordered == ["layers.0.q", "layers.0.q_bias", "layers.0.k", "layers.0.k_bias"]
    assert not table["layers.0.v"].stored.flags.owndata


def test_attention_scores_are_those_of_the_file_under_its_own_rotation() -> None:
    """The order is right because rotating half-split pairs of ours is rotating neighbouring pairs of the file's."""
    rng = np.random.default_rng(9)
    angles = rng.standard_normal(HEAD_DIM // 2)
    stored_q, stored_k = rng.standard_normal((2, HEADS * HEAD_DIM))
    order = half_split_order(HEADS, HEADS * HEAD_DIM)

    def rotate_neighbours(rows: npt.NDArray[np.float64], by: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        pairs = rows.reshape(HEADS, -1, 2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * by)
        return np.stack([turned.real, turned.imag], axis=-1).reshape(HEADS, HEAD_DIM)

    def rotate_halves(rows: npt.NDArray[np.float64], by: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        first, second = rows.reshape(HEADS, 2, -1).swapaxes(0, 1)
        turned = (first + 1j * second) * np.exp(1j * by)
        return np.concatenate([turned.real, turned.imag], axis=-1)

    theirs = (rotate_neighbours(stored_q, 3 * angles) * rotate_neighbours(stored_k, angles)).sum(axis=-1)
    ours = (rotate_halves(stored_q[order], 3 * angles) * rotate_halves(stored_k[order], angles)).sum(axis=-1)
    unordered = (rotate_halves(stored_q, 3 * angles) * rotate_halves(stored_k, angles)).sum(axis=-1)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert not np.allclose(unordered, theirs)


@pytest.mark.parametrize(
    ("gguf_name", "name"),
    [
        ("token_embd.weight", "embed"),
        ("output_norm.weight", "final_norm"),
        ("output.weight", "head"),
        ("blk.0.attn_norm.weight", "layers.0.attn_norm"),
        ("blk.29.ffn_norm.weight", "layers.29.ffn_norm"),
        ("blk.7.ffn_gate.weight", "layers.7.gate"),
        ("blk.7.ffn_up.weight", "layers.7.up"),
        ("blk.7.ffn_down.weight", "layers.7.down"),
        ("blk.7.ffn_down.bias", "layers.7.down_bias"),
        ("blk.7.attn_v.bias", "layers.7.v_bias"),
        ("blk.7.attn_output.bias", "layers.7.o_bias"),
        ("blk.07.attn_v.weight", None),
        ("blk.-1.attn_v.weight", None),
        ("blk.7.attn_v", None),
        ("blk.7.ffn_gate_exps.weight", None),
        ("xblk.7.attn_v.weight", None),
        ("token_embd.bias", None),
    ],
)
def test_every_tensor_of_the_family_has_one_name(gguf_name: str, name: str | None) -> None:
    assert GGUF_NAMES["llama"].ours(gguf_name) == (() if name is None else (name,))


@pytest.mark.parametrize(
    ("architecture", "gguf_name", "names"),
    [
        ("phi3", "blk.3.attn_qkv.weight", ("layers.3.q", "layers.3.k", "layers.3.v")),
        ("phi3", "blk.3.ffn_up.weight", ("layers.3.gate", "layers.3.up")),
        ("qwen3", "blk.3.attn_k_norm.weight", ("layers.3.k_norm",)),
        ("gemma2", "blk.3.post_ffw_norm.weight", ("layers.3.ffn_post_norm",)),
        ("starcoder2", "output_norm.bias", ("final_norm_bias",)),
        ("llama", "blk.3.attn_q_norm.weight", ()),
        ("qwen2", "blk.3.post_ffw_norm.weight", ()),
    ],
)
def test_architectures_have_names_of_their_own(architecture: str, gguf_name: str, names: tuple[str, ...]) -> None:
    assert GGUF_NAMES[architecture].ours(gguf_name) == names


def test_a_stacked_matrix_is_cut_into_its_parts_without_a_copy(path: Path) -> None:
    rows = np.random.default_rng(6).standard_normal((7, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(path, "phi3")
    writer.add_tensor("blk.0.attn_qkv.weight", gguf.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path)
    expected = {"layers.0.v": (2, 64), "layers.0.q": (4, 64), "layers.0.k": (1, 64)}
    table = load_gguf_weights(file, expected)
    assert list(table) == ["layers.0.v", "layers.0.q", "layers.0.k"]
    whole = gguf.dequantize(gguf.quantize(rows, kind), kind)
    for name, part in (("q", whole[:4]), ("k", whole[4:5]), ("v", whole[5:])):
        np.testing.assert_array_equal(table[f"layers.0.{name}"].dequantize(), part)
        assert np.shares_memory(table[f"layers.0.{name}"].stored, file.tensors["blk.0.attn_qkv.weight"].mapped)
    with pytest.raises(ModelError, match=r"'blk.0.attn_qkv.weight' has shape \(7, 64\), not \(8, 64\)"):
        load_gguf_weights(file, {**expected, "layers.0.k": (2, 64)})


def test_missing_tensors_are_listed(path: Path) -> None:
    def drop(_: gguf.GGUFWriter, tensors: dict[str, Floats]) -> None:
        del tensors["output_norm.weight"], tensors["blk.0.attn_v.weight"]

    assert refused(write_llama(path, drop)).startswith("tensors 'layers.0.v', 'final_norm' are missing; ")


def test_one_missing_tensor_is_named_alone_and_many_are_counted(path: Path) -> None:
    file = write_llama(path)
    assert "tensor 'head' is missing" in refused(file, {**EXPECTED, "head": (VOCABULARY, HIDDEN)})
    more = {f"layers.{layer}.q": (HEADS * HEAD_DIM, HIDDEN) for layer in range(1, 31)}
    assert "'layers.1.q', 'layers.2.q', 'layers.3.q', 'layers.4.q', 'layers.5.q' and 25 more are missing" in refused(
        file, EXPECTED | more
    )


def test_unknown_tensors_are_listed(path: Path) -> None:
    def add(_: gguf.GGUFWriter, tensors: dict[str, Floats]) -> None:
        tensors["blk.0.attn_sinks.weight"] = np.zeros(2, dtype=np.float32)

    assert "tensor 'blk.0.attn_sinks.weight' is unknown to the llama architecture" in refused(write_llama(path, add))


def test_a_head_that_the_model_does_not_use_is_refused(path: Path) -> None:
    def add(_: gguf.GGUFWriter, tensors: dict[str, Floats]) -> None:
        tensors["output.weight"] = np.zeros((VOCABULARY, HIDDEN), dtype=np.float32)

    file = write_llama(path, add)
    assert "tensor 'output.weight' is not used by this model" in refused(file)
    assert "head" in load_gguf_weights(file, {**EXPECTED, "head": (VOCABULARY, HIDDEN)})


def test_rope_factors_are_never_dropped_in_silence(path: Path) -> None:
    def add(_: gguf.GGUFWriter, tensors: dict[str, Floats]) -> None:
        tensors["rope_freqs.weight"] = np.array([1.0, 1.0, 4.5, 8.0], dtype=np.float32)

    file = write_llama(path, add)
    assert "tensor rope_freqs.weight divides the rotary frequencies (long context)" in refused(file)
    assert rope_factors(file) == {"rope_freqs.weight": [1.0, 1.0, 4.5, 8.0]}
    assert list(load_gguf_weights(file, EXPECTED, rope_factors_used=True)) == list(EXPECTED)


def test_rope_factors_without_end_are_refused_before_they_are_read(path: Path) -> None:
    def add(_: gguf.GGUFWriter, tensors: dict[str, Floats]) -> None:
        tensors["rope_freqs.weight"] = np.ones(MAX_WIDTH + 1, dtype=np.float32)

    with pytest.raises(ModelError, match=r"rope_freqs\.weight holds 1,048,577 rope factors; no head has more than"):
        rope_factors(write_llama(path, add))


def test_most_files_have_no_rope_factors(path: Path) -> None:
    file = write_llama(path)
    assert rope_factors(file) is None
    assert list(load_gguf_weights(file, EXPECTED, rope_factors_used=True)) == list(EXPECTED)


def test_a_wrong_shape_is_shown_beside_the_expected_one(path: Path) -> None:
    file = write_llama(path)
    message = refused(file, EXPECTED | {"embed": (VOCABULARY + 1, HIDDEN), "layers.0.o": (HIDDEN, 1)})
    assert "'token_embd.weight' has shape (5, 32), not (6, 32)" in message
    assert "'blk.0.attn_output.weight' has shape (32, 32), not (32, 1)" in message


def test_an_unknown_architecture_is_named(path: Path) -> None:
    message = refused(write_llama(path, architecture="mamba"))
    assert message.startswith("architecture 'mamba'; supported are llama, qwen2, ")


def test_where_part_of_a_head_rotates_only_that_part_has_another_order(path: Path) -> None:
    """The file rotates rows (0, 1) and (2, 3) of each head together, we (0, 2) and (1, 3); the rest stays."""
    table = load_gguf_weights(write_llama(path, lambda writer, _: writer.add_rope_dimension_count(4)), EXPECTED)
    order = table["layers.0.q"].row_order
    assert order is not None
    assert order.reshape(HEADS, HEAD_DIM).tolist()[:2] == [[0, 2, 1, 3, 4, 5, 6, 7], [8, 10, 9, 11, 12, 13, 14, 15]]


@pytest.mark.parametrize("rotary", [0, 3, 10])
def test_a_rotary_width_that_no_head_has_is_refused(path: Path, rotary: int) -> None:
    message = refused(write_llama(path, lambda writer, _: writer.add_rope_dimension_count(rotary)))
    assert f"llama.rope.dimension_count is '{rotary}'; it must be an even number up to the 8 rows of a head" in message


def test_heads_that_do_not_divide_the_rows_are_refused(path: Path) -> None:
    message = refused(write_llama(path, heads=3))
    assert "tensor 'blk.0.attn_q.weight' has 32 rows, not pairs for each of 3 heads" in message


def test_no_head_count_is_refused(path: Path) -> None:
    assert "metadata llama.attention.head_count is '0'; it must be" in refused(write_llama(path, heads=0))


def test_part_of_a_split_model_is_refused(path: Path) -> None:
    file = write_llama(path, lambda writer, _: writer.add_uint16("split.count", 3))
    assert "one of 3 parts of a split model; merge the parts" in refused(file)


def test_a_quantised_vector_is_refused(path: Path) -> None:
    def quantise(writer: gguf.GGUFWriter, tensors: dict[str, Floats]) -> None:
        norm = tensors.pop("output_norm.weight")
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor("output_norm.weight", gguf.quantize(norm, kind), raw_dtype=kind)

    assert "vector 'output_norm.weight' is in Q8_0; vectors must be F32, F16 or BF16" in refused(
        write_llama(path, quantise)
    )


def default_model_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embed": (49152, 576)}
    for layer in range(30):
        shapes |= {
            f"layers.{layer}.attn_norm": (576,),
            f"layers.{layer}.q": (576, 576),
            f"layers.{layer}.k": (192, 576),
            f"layers.{layer}.v": (192, 576),
            f"layers.{layer}.o": (576, 576),
            f"layers.{layer}.ffn_norm": (576,),
            f"layers.{layer}.gate": (1536, 576),
            f"layers.{layer}.up": (1536, 576),
            f"layers.{layer}.down": (576, 1536),
        }
    return shapes | {"final_norm": (576,)}


@pytest.mark.model
def test_the_default_model_loads_whole(model_path: Path) -> None:
    table: WeightTable = load_gguf_weights(read_gguf(model_path), default_model_shapes())
    assert sum(tensor.num_weights for tensor in table.values()) == 134_515_008
    embed, layers, norms = 49152 * 576 * 34 // 32, 30 * 3_538_944 * 20 // 32, 61 * 576 * 4
    assert table.total_bytes == embed + layers + norms
    assert table["embed"].dequantize_rows(np.array([49151, 0])).shape == (2, 576)
    assert table["layers.29.k"].row_order is not None
    assert table.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
