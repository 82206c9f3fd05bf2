"""Requests over their lives: equal to the closed form where all layers keep everything, less where they do not."""

from __future__ import annotations

import pytest

from plait.cost.density import DensityModel, Lengths
from plait.cost.lifetime import LifetimeCost
from plait.inspect.programs import find_model
from plait.model.cost import Formats, held_bytes, read_bytes

F, B = 312e12, 2.039e12
BF16 = Formats(default_weight_bytes=2.0, default_cache_bytes=2.0, activation_bytes=2.0)


def rate(numbers: str | None) -> float:
    return F


LENGTHS = [(496, 510), (2508, 23), (804, 2), (244, 27), (109, 7617), (16, 20_000)]


@pytest.fixture(scope="module")
def full() -> LifetimeCost:
    return LifetimeCost(find_model("meta-llama/Llama-3.1-8B").program, BF16, rate, B)


@pytest.mark.parametrize(("prompt", "output"), LENGTHS)
def test_full_attention_is_the_closed_form(full: LifetimeCost, prompt: int, output: int) -> None:
    parameters = full.output_token_s * F / 2
    closed = DensityModel(parameters, kv_width=1024, num_layers=32, flops_per_s=F, bytes_per_s=B)
    # An output token reads itself as well: half a token more for each than the integral has.
    itself = output / 2 * closed.token_bytes / B
    assert full.memory_s(prompt, output) == pytest.approx(closed.memory_s(Lengths(prompt, output)) + itself)
    # What the paper calls parameters holds the table of embeddings as well, which is looked up and not multiplied.
    assert 7.4e9 < parameters < 8.03e9
    head = 128_256 * 4096
    assert full.prompt_token_s * F / 2 == pytest.approx(parameters - head, rel=1e-3)
    assert full.mean_held_bytes(prompt, output) == pytest.approx((prompt + output / 2 + 0.5) * closed.token_bytes)


@pytest.mark.parametrize("name", ["google/gemma-3-27b-it", "meta-llama/Llama-3.1-8B", "mistralai/Mistral-7B-v0.1"])
@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (3, 700), (900, 400), (5000, 30), (1000, 5000)])
def test_a_life_is_the_sum_of_its_steps(name: str, prompt: int, output: int) -> None:
    program = find_model(name).program
    life = LifetimeCost(program, BF16, rate, B)
    contexts = range(prompt + 1, prompt + output + 1)
    read = sum(sum(read_bytes(program, context, BF16)) for context in contexts)
    held = sum(sum(held_bytes(program, context, BF16)) for context in contexts)
    assert life.memory_s(prompt, output) == pytest.approx(read / B)
    assert life.mean_held_bytes(prompt, output) == pytest.approx(held / output)


def test_windows_read_a_quarter_of_a_long_answer() -> None:
    """Typed memory: 16k outputs of Gemma-3-27B read 3.8 times less than if every layer kept everything."""
    typed = LifetimeCost(find_model("google/gemma-3-27b-it").program, BF16, rate, B).memory_s(121, 16_384)
    every = DensityModel(1.0, kv_width=16 * 128, num_layers=62, flops_per_s=F, bytes_per_s=B)
    assert every.memory_s(Lengths(121, 16_384)) / typed == pytest.approx(3.8, abs=0.1)


def test_a_request_without_output_holds_its_prompt(full: LifetimeCost) -> None:
    assert full.memory_s(100, 0) == 0
    assert full.mean_held_bytes(100, 0) == 100 * 131_072
    assert full.mean_held_bytes(0, 0) == 131_072
    assert full.compute_s(100, 0) == pytest.approx(100 * full.prompt_token_s)


def test_products_take_the_rate_of_their_numbers() -> None:
    program = find_model("meta-llama/Llama-3.1-8B").program
    integers = Formats(default_weight_bytes=1.0, default_cache_bytes=2.0, default_compute="int8")
    slow, fast = (LifetimeCost(program, integers, {None: F, "int8": by * F}.__getitem__, B) for by in (1, 4))
    assert fast.prompt_token_s == pytest.approx(slow.prompt_token_s / 4, rel=0.01)
    assert fast.memory_s(500, 500) == slow.memory_s(500, 500)
