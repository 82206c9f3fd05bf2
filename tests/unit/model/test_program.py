"""Programs: the numbers of real models, and what a cache group needs for a sequence."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
from tests.unit.model.programs import LLAMA_8B, SMOLLM2, cross_program, hybrid_program, step, tiny_program

from plait.core.errors import InvariantError
from plait.model.llama import llama_program
from plait.model.ops import Linear
from plait.model.program import WeightRole, WeightSpec, expected_weights


def test_smollm2_has_the_parameters_of_its_model_card() -> None:
    program = llama_program(SMOLLM2)
    layers = sum(spec.num_elements for name, spec in program.weights.items() if name.startswith("layers."))
    assert layers == 30 * 3_540_096
    assert program.weights["embed"].num_elements == 28_311_552
    assert program.num_parameters == 134_515_008


def test_llama_8b_has_the_parameters_of_its_model_card() -> None:
    assert llama_program(LLAMA_8B).num_parameters == 8_030_261_248


def test_cache_bytes_per_token_of_real_models() -> None:
    assert llama_program(SMOLLM2).cache_groups[0].bytes_per_token(dtype_bytes=2) == 23_040
    assert llama_program(LLAMA_8B).cache_groups[0].bytes_per_token(dtype_bytes=2) == 131_072


def test_a_cache_may_take_parts_of_a_byte_per_number() -> None:
    int8_with_scales = 1 + 2 / 64
    assert llama_program(SMOLLM2).cache_groups[0].bytes_per_token(int8_with_scales) == 11_520 * 1.03125


def test_the_vocabulary_is_what_can_be_sampled() -> None:
    assert llama_program(SMOLLM2).vocab_size == 49_152
    assert llama_program(replace(SMOLLM2, padding_rows=128)).vocab_size == 49_152
    assert hybrid_program().vocab_size == 0


def test_expected_weights_are_names_and_shapes_in_order_of_use() -> None:
    shapes = expected_weights(tiny_program(tied=False))
    assert list(shapes)[:4] == ["embed", "layers.0.attn_norm", "layers.0.q", "layers.0.k"]
    assert list(shapes)[-2:] == ["final_norm", "head"]
    assert shapes["layers.1.k"] == (4, 8)
    assert shapes["layers.1.down"] == (8, 12)
    assert shapes["final_norm"] == (8,)


def test_a_tied_head_is_one_weight() -> None:
    program = tiny_program(tied=True)
    assert "head" not in program.weights
    assert program.weights["embed"].role is WeightRole.EMBEDDING
    head = [op for op in program.ops if isinstance(op, Linear)][-1]
    assert head.weight == "embed"


def test_spans_are_embedding_layers_and_head() -> None:
    program = tiny_program()
    assert [span.name for span in program.spans] == ["embed", "layers.0", "layers.1", "head"]
    assert [span.kind for span in program.spans] == ["embed", "layer", "layer", "head"]
    assert [len(span.groups) for span in program.spans] == [0, 1, 1, 0]


def test_only_the_residual_is_alive_between_spans() -> None:
    program = llama_program(SMOLLM2)
    for span in program.spans[:-1]:
        assert [program.values[value].width for value in span.live_out] == [576]
    assert program.spans[-1].live_out == ()


def test_ops_of_a_span_are_all_its_ops() -> None:
    program = tiny_program()
    assert tuple(op for span in program.spans for op in program.ops_of(span)) == program.ops
    assert [span.num_ops for span in program.spans] == [1, 16, 16, 4]


def test_cost_of_a_program_is_that_of_its_sheet() -> None:
    costs = tiny_program().cost(step((0, 5)))
    assert {cost.span_kind: cost.count for cost in costs} == {"embed": 1, "layer": 2, "head": 1}


def test_programs_of_equal_configs_are_equal_and_frozen() -> None:
    assert tiny_program() == tiny_program()
    assert tiny_program(tied=False) != tiny_program()
    with pytest.raises(FrozenInstanceError):
        tiny_program().name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        tiny_program().weights["more"] = WeightSpec("more", (1,), WeightRole.NORM)  # type: ignore[index]


@pytest.mark.parametrize("program", [tiny_program(), hybrid_program(), cross_program()], ids=lambda p: str(p.name))
def test_validation_accepts_a_built_program_and_names_it_when_broken(program: object) -> None:
    assert isinstance(program, type(tiny_program()))
    program.validate()
    with pytest.raises(InvariantError, match=f"program {program.name}: spans cover 0 of {len(program.ops)} ops"):
        replace(program, spans=()).validate()
