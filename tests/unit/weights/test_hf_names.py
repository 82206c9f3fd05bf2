"""HF names: checkpoints become our names, whole and without a copy, and nothing that was not expected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.conformance.families import stored_tensor

from plait.core.errors import ModelError
from plait.model.config import config_from_hf
from plait.model.families import build_program
from plait.model.program import expected_weights
from plait.weights.hf_names import load_hf_weights
from plait.weights.stored import StoredTensor
from plait.weights.table import WeightTable

SIZES: dict[str, object] = {
    "vocab_size": 5,
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
}
LLAMA = {"model_type": "llama", **SIZES}
SHAPES = {
    "lm_head.weight": (5, 8),
    "model.embed_tokens.weight": (5, 8),
    "model.norm.weight": (8,),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.k_proj.weight": (4, 8),
    "model.layers.0.self_attn.v_proj.weight": (4, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.post_attention_layernorm.weight": (8,),
    "model.layers.0.mlp.gate_proj.weight": (6, 8),
    "model.layers.0.mlp.up_proj.weight": (6, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 6),
}
SOURCE = Path("model.safetensors")


def checkpoint(**shapes: tuple[int, ...]) -> dict[str, StoredTensor]:
    made = np.random.default_rng(1)
    return {
        name: stored_tensor(name, made.standard_normal(shape).astype(np.float32))
        for name, shape in (SHAPES | shapes).items()
    }


def load(tensors: dict[str, StoredTensor], config_json: dict[str, object]) -> WeightTable:
    config = config_from_hf(config_json)
    return load_hf_weights(tensors, expected_weights(build_program(config)), config, SOURCE, "0" * 64)


def refused(tensors: dict[str, StoredTensor], config_json: dict[str, object]) -> str:
    with pytest.raises(ModelError) as caught:
        load(tensors, config_json)
    message = str(caught.value)
    assert message.startswith(f"{SOURCE}: ")
    assert "\n" not in message
    return message


def test_a_llama_checkpoint_keeps_its_rows_where_they_lie() -> None:
    tensors = checkpoint()
    table = load(tensors, LLAMA)
    assert list(table)[:3] == ["embed", "layers.0.attn_norm", "layers.0.q"]
    assert len(table) == len(SHAPES)
    q = table["layers.0.q"]
    assert q.row_order is None
    assert np.shares_memory(q.stored, tensors["model.layers.0.self_attn.q_proj.weight"].mapped)
    assert (table.source, table.sha256) == (SOURCE, "0" * 64)


def test_fused_projections_are_cut_into_their_parts() -> None:
    tensors = checkpoint()
    for part in ("q", "k", "v"):
        del tensors[f"model.layers.0.self_attn.{part}_proj.weight"]
    for part in ("gate", "up"):
        del tensors[f"model.layers.0.mlp.{part}_proj.weight"]
    stacked = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
    tensors["qkv"] = stored_tensor("model.layers.0.self_attn.qkv_proj.weight", stacked)
    tensors["gate_up"] = stored_tensor("model.layers.0.mlp.gate_up_proj.weight", stacked[:12])
    table = load({one.name: one for one in tensors.values()}, {"model_type": "phi3", **SIZES})
    for name, rows in (("q", slice(0, 8)), ("k", slice(8, 12)), ("v", slice(12, 16)), ("gate", slice(0, 6))):
        np.testing.assert_array_equal(table[f"layers.0.{name}"].dequantize(), stacked[rows])


def test_a_tied_head_and_buffers_of_frequencies_are_left_alone() -> None:
    tensors = checkpoint(**{"model.layers.0.self_attn.rotary_emb.inv_freq": (2,)})
    assert "head" not in load(tensors, LLAMA | {"tie_word_embeddings": True})
    assert "head" in load(tensors, LLAMA)


def test_unknown_tensors_are_named_with_their_family() -> None:
    message = refused(checkpoint(**{"model.layers.0.block_sparse_moe.gate.weight": (4, 8)}), LLAMA)
    assert "tensor 'model.layers.0.block_sparse_moe.gate.weight' is unknown to the llama architecture" in message
    assert "is unknown" in refused(checkpoint(**{"vision_tower.patch.weight": (4, 8)}), LLAMA)
    assert "is unknown" in refused(checkpoint(**{"model.layers.00.mlp.up_proj.weight": (6, 8)}), LLAMA)


def test_tensors_of_another_model_of_the_family_are_refused() -> None:
    assert "'model.layers.0.self_attn.q_proj.bias' is not used by this model" in refused(
        checkpoint(**{"model.layers.0.self_attn.q_proj.bias": (8,)}), LLAMA
    )
    missing = checkpoint()
    del missing["model.norm.weight"], missing["lm_head.weight"]
    assert "tensors 'final_norm', 'head' are missing" in refused(missing, LLAMA)
    assert "'model.norm.weight' has shape (9,), not (8,)" in refused(checkpoint(**{"model.norm.weight": (9,)}), LLAMA)


@pytest.mark.parametrize("part", ["model.", "model.language_model.", "language_model.model."])
def test_the_text_part_of_a_gemma3_checkpoint_is_found_wherever_it_stands(part: str) -> None:
    more = {f"model.layers.0.self_attn.{name}_norm.weight": (4,) for name in "qk"}
    more |= {f"model.layers.0.{place}_feedforward_layernorm.weight": (8,) for place in ("pre", "post")}
    images = {} if part == "model." else {"vision_tower.patch.weight": (3,), "model.multi_modal_projector.x": (3,)}
    tensors = {
        moved: stored_tensor(moved, np.ones(shape, np.float32))
        for name, shape in {**SHAPES, **more, **images}.items()
        for moved in [name if name in images else name.replace("model.", part, 1)]
    }
    table = load(tensors, {"model_type": "gemma3_text", **SIZES})
    assert {"embed", "final_norm", "layers.0.k_norm", "layers.0.ffn_post_norm"} < set(table)
    assert "head" not in table
    untied = load(tensors, {"model_type": "gemma3_text", **SIZES, "tie_word_embeddings": False})
    assert "head" in untied


def test_two_tensors_for_one_weight_are_refused() -> None:
    fused = checkpoint(**{"model.layers.0.self_attn.qkv_proj.weight": (16, 8)})
    message = refused(fused, {"model_type": "phi3", **SIZES})
    assert "'model.layers.0.self_attn.q_proj.weight'" in message
    assert "'model.layers.0.self_attn.qkv_proj.weight' are for weights that another tensor is for too" in message
