"""Limits: what is read from `plait bench limits`, and bounds that can be worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench.serving.limits import MachineLimits, Weights, bound, decode_steps, read_limits, step_s
from bench.serving.workloads import Sizes, workloads_named
from tests.e2e.tiny_model import write_tiny_model

from plait.core.step import ChunkShape, StepShape
from plait.model.config import config_from_gguf
from plait.model.families import build_program
from plait.model.program import Program
from plait.weights.gguf import read_gguf

W1, W2, W3, W4, W5 = workloads_named("w1,w2,w3,w4,w5")
SLOW_MEMORY = MachineLimits({"f32": 1e30, "int8": 1e30}, read_bytes_per_s=1e6)
SLOW_CORES = MachineLimits({"f32": 1e6, "int8": 4e6}, read_bytes_per_s=1e30)
SIZES = Sizes(8, 4, 16, 2, 12, 4, 3)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    file = read_gguf(write_tiny_model(tmp_path / "tiny.gguf"))
    return build_program(config_from_gguf(file.metadata, file.tensors.keys(), None))


def weights_of(program: Program, arithmetic: str = "f32") -> Weights:
    return Weights(4 * sum(spec.num_elements for spec in program.weights.values()), arithmetic)


def test_the_last_line_of_what_was_printed_holds_the_limits(tmp_path: Path) -> None:
    compute = [
        {"kind": "f32", "best_per_s": 10.0},
        {"kind": "f32", "best_per_s": 30.0},
        {"kind": "int8", "best_per_s": 70.0},
    ]
    read = [
        {"num_bytes": 100, "best_per_s": 9.0},
        {"num_bytes": 200, "best_per_s": 4.0},
        {"num_bytes": 200, "best_per_s": 5.0},
    ]
    file = tmp_path / "limits.txt"
    file.write_text("a table\n" + json.dumps({"compute": compute, "read": read}) + "\n")
    assert read_limits(file) == MachineLimits({"f32": 30.0, "int8": 70.0}, 5.0)


def test_a_decode_step_cannot_be_faster_than_reading_weights_and_cache(program: Program) -> None:
    weights = weights_of(program)
    step = decode_steps(1, 8, 2)[0]
    without = step_s(program, step, weights, SLOW_MEMORY, reads_cache=False)
    # The table of embeddings is the head too: one more row of it is read.
    assert without == pytest.approx(weights.num_bytes / 1e6, rel=0.01)
    assert step_s(program, step, weights, SLOW_MEMORY) > without
    assert step_s(program, step, replace(weights, num_bytes=weights.num_bytes // 4), SLOW_MEMORY) < without


def test_products_are_bound_by_their_own_numbers_and_the_rest_by_floats(program: Program) -> None:
    step = StepShape((ChunkShape(0, 16, 1),))
    in_floats = step_s(program, step, weights_of(program), SLOW_CORES)
    in_integers = step_s(program, step, weights_of(program, "int8"), SLOW_CORES)
    costs = program.cost(step)
    products = sum(cost.flops * cost.count for cost in costs if cost.kind == "Linear")
    assert in_floats == pytest.approx(sum(cost.flops * cost.count for cost in costs) / 1e6)
    assert in_floats - in_integers == pytest.approx(products * (1 / 1e6 - 1 / 4e6))


def test_bounds_are_headline_figures_of_ideal_steps(program: Program) -> None:
    weights = weights_of(program)

    def of(name: str, limits: MachineLimits = SLOW_MEMORY) -> float:
        value = bound(workloads_named(name)[0], SIZES, program, weights, limits)
        assert value is not None
        return value

    one_read = weights.num_bytes / 1e6
    assert of("w1") == pytest.approx(1 / one_read, rel=0.1)
    assert of("w2") == pytest.approx(16 / one_read, rel=0.1)
    assert of("w3") == pytest.approx(2 * 4 / (4 * one_read), rel=0.2), "the prompts' step and three more"
    assert of("w4") == pytest.approx(4 * one_read, rel=0.1), "the beginning, the rest of the prompts, two more"
    double = MachineLimits({"f32": 2e6}, 1e30)
    assert of("w3", double) == pytest.approx(2 * of("w3", SLOW_CORES))


def test_there_is_no_bound_where_arrivals_decide_or_numbers_are_unknown(program: Program) -> None:
    assert bound(W5, SIZES, program, weights_of(program), SLOW_CORES) is None
    assert bound(W1, SIZES, program, weights_of(program, "bf16"), SLOW_CORES) is None
