"""Benchmarks: planted alphas come back from the results that a server with them would give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cost.invented import BF16, LLAMA_8B, bare

from plait.core.errors import UsageError
from plait.core.step import ChunkShape, StepShape
from plait.cost.benchmarks import read_moments, samples_of
from plait.cost.fit import fit_alpha
from plait.cost.hardware import find_hardware
from plait.cost.roofline import RooflineModel
from plait.cost.solo import decode_shape, prefill_shape

ROOFLINE = RooflineModel(LLAMA_8B, BF16, bare(find_hardware("a100-80g")))
PREFILL, DECODE = 1.4, 1.8


def prefill_s(tokens: int, prompts: int = 1) -> float:
    return PREFILL * ROOFLINE.roof(StepShape((ChunkShape(0, tokens, 1),) * prompts), 108).seconds


def decode_s(rows: int, context: int) -> float:
    return DECODE * ROOFLINE.roof(decode_shape(rows, context), 108).seconds


def serving(rows: int, inputs: int, outputs: int, **more: object) -> dict[str, object]:
    """As `vllm bench serve --save-result` writes it."""
    gap_ms = decode_s(rows, round(inputs + outputs / 2)) * 1e3
    return {
        "completed": 200,
        "total_input_tokens": 200 * inputs,
        "total_output_tokens": 200 * outputs,
        "output_throughput": rows / gap_ms * 1e3,
        "mean_tpot_ms": gap_ms,
        "median_tpot_ms": gap_ms,
        "median_itl_ms": gap_ms,
        "median_ttft_ms": prefill_s(inputs) * 1e3,
        **more,
    }


def write(folder: Path, **results: dict[str, object]) -> Path:
    for name, found in results.items():
        (folder / f"{name}.json").write_text(json.dumps(found))
    return folder


def test_serving_results_give_back_what_steps_took(tmp_path: Path) -> None:
    write(tmp_path, lone=serving(1, 512, 128, max_concurrency=1), crowd=serving(48, 512, 128, max_concurrency=48))
    moments = read_moments(tmp_path)
    assert [(m.prefill is not None, m.decode is not None) for m in moments] == [(0, 1), (0, 1), (1, 0)]
    table = fit_alpha(samples_of(moments, ROOFLINE, 108), ROOFLINE)
    assert table.of(decode_shape(48, 576), 108) == pytest.approx(DECODE)
    assert table.of(decode_shape(1, 576), 108) == pytest.approx(DECODE)
    assert table.of(prefill_shape(512), 108) == pytest.approx(PREFILL)


def test_a_crowds_time_to_first_token_is_mostly_waiting_and_no_prompt(tmp_path: Path) -> None:
    moments = read_moments(write(tmp_path, crowd=serving(48, 512, 128, max_concurrency=48)) / "crowd.json")
    assert [moment.prefill for moment in moments] == [None]


def test_latency_and_throughput_results_are_sums_that_are_divided(tmp_path: Path) -> None:
    """Together they tell the phases apart, because their mixes differ."""
    latency = {
        "avg_latency": prefill_s(512, prompts=8) + 127 * decode_s(8, 576),
        "input_len": 512,
        "output_len": 128,
        "batch_size": 8,
    }
    throughput = {
        "elapsed_time": 100 * prefill_s(2048) + 100 / 20 * 15 * decode_s(20, 2056),
        "num_requests": 100,
        "input_len": 2048,
        "output_len": 16,
        "concurrency": 20,
    }
    moments = read_moments(write(tmp_path, a=latency, b=throughput))
    samples = samples_of(moments, ROOFLINE, 108)
    assert len(samples) == 4
    table = fit_alpha(samples, ROOFLINE)
    assert table.of(prefill_shape(2048), 108) == pytest.approx(PREFILL, rel=1e-6)
    assert table.of(decode_shape(8, 576), 108) == pytest.approx(DECODE, rel=1e-6)


def test_our_own_results_are_read(tmp_path: Path) -> None:
    gap_s = decode_s(4, 164)
    figures = {
        "num_requests": 10,
        "num_errors": 2,
        "prompt_tokens": 8 * 100,
        "output_tokens": 8 * 128,
        "output_tokens_per_s": 4 / gap_s,
        "itl": {"p50": gap_s},
        "ttft": {"p50": 0.5},
    }
    result = {"schema": "plait.bench.serving/1", "load": {"concurrency": 4}, "figures": figures}
    (moment,) = read_moments(write(tmp_path, ours=result))
    assert moment.decode == decode_shape(4, 164)
    assert moment.seconds == gap_s


def test_one_moment_of_both_phases_gives_them_one_alpha(tmp_path: Path) -> None:
    latency = {"avg_latency": 3.0, "input_len": 512, "output_len": 128, "batch_size": 8}
    moments = read_moments(write(tmp_path, a=latency))
    table = fit_alpha(samples_of(moments, ROOFLINE, 108), ROOFLINE)
    eight_prompts = StepShape((ChunkShape(0, 512, 1),) * 8)
    total = table.of(eight_prompts, 108) * ROOFLINE.roof(eight_prompts, 108).seconds
    total += 127 * table.of(decode_shape(8, 576), 108) * ROOFLINE.roof(decode_shape(8, 576), 108).seconds
    assert total == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({}, "is no result that is known: vLLM's serving results have total_input_tokens"),
        ({"schema": "other/1"}, 'schema is "other/1"; it must be one of plait.bench.serving/1'),
        ({"avg_latency": 1.0, "batch_size": 1}, "input_len is missing; add it to the file"),
        ({"elapsed_time": 1.0, "input_len": 9, "output_len": 9, "num_requests": 5}, "concurrency is missing"),
        ({"avg_latency": -1, "batch_size": 1, "input_len": 9, "output_len": 9}, "avg_latency is -1; .* above 0"),
        ({"total_input_tokens": 5, "completed": 0}, "completed is 0; it must be a whole number from 1"),
        ({"total_input_tokens": 5, "completed": 1}, "total_output_tokens is missing"),
        (serving(4, 50, 20) | {"output_throughput": 1e12}, r"sequences at once .*; there can be 65,536"),
        ({"avg_latency": 1.0, "batch_size": 1e9, "input_len": 9, "output_len": 9}, "batch_size is 1000000000.0"),
        ({"avg_latency": 1.0, "batch_size": 2, "input_len": 1 << 40, "output_len": 9}, "input_len is 1099511627776"),
    ],
)
def test_a_result_that_lacks_something_is_refused(tmp_path: Path, result: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=rf"bad\.json.*{words}"):
        read_moments(write(tmp_path, bad=result))


NUMBERS = st.one_of(st.none(), st.integers(-2, 10**40), st.floats(), st.floats(0, 1e3), st.text(max_size=2))
NAMES = st.sampled_from(
    [*serving(4, 50, 20), "max_concurrency", "avg_latency", "input_len", "output_len", "batch_size", "elapsed_time",
     "num_requests", "concurrency", "schema", "figures", "load"]
)  # fmt: skip


@given(changes=st.dictionaries(NAMES, NUMBERS, max_size=4), starts_empty=st.booleans())
def test_results_with_anything_in_them_are_used_or_refused_in_a_line(
    changes: dict[str, object], starts_empty: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    result = {} if starts_empty else serving(4, 50, 20)
    refused = ""
    try:
        moments = read_moments(write(folder, odd=result | changes) / "odd.json")
        assert all(sample.seconds > 0 for sample in samples_of(moments, ROOFLINE, 108))
    except UsageError as error:
        refused = str(error)
    assert not refused or "odd.json" in refused
    assert "\n" not in refused


def test_a_folder_without_results_and_one_without_times_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no \.json file"):
        read_moments(tmp_path)
    with pytest.raises(UsageError, match=r"missing\.json cannot be read"):
        read_moments(tmp_path / "missing.json")
    one_token = serving(48, 512, 1, max_concurrency=48)
    with pytest.raises(UsageError, match="neither how long a step takes nor a prompt"):
        read_moments(write(tmp_path, crowd=one_token))
