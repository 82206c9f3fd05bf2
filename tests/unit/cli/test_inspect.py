"""Inspect: the two commands as a user meets them: tables that fit a screen, JSON, mistakes in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.inspect.asking import JAMBA, write_config

from plait.cli.machine_rates import MachineRates, rates_file, write_rates
from plait.cli.main import main
from plait.cli.units import big_number, bytes_text, count_text
from plait.config.machine import processor_model

Capture = pytest.CaptureFixture[str]


def lines_of(capsys: Capture, *arguments: str) -> list[str]:
    assert main(["inspect", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()


def failure(capsys: Capture, *arguments: str) -> str:
    """What is said, and that it is one line and exit code 1 or 2."""
    code = main(["inspect", *arguments])
    out, err = capsys.readouterr()
    assert code in (1, 2)
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("plait: ")
    return err


def test_a_known_name_is_enough_for_everything(capsys: Capture) -> None:
    lines = lines_of(capsys, "memory", "Qwen/Qwen3.6-35B-A3B", "--compare", "vllm", "--memory", "24GiB")
    assert lines[0] == "model   Qwen/Qwen3.6-35B-A3B (qwen3_5_moe_text)"
    assert any(line.startswith("full ") and line.endswith("20,480 a token") for line in lines)
    assert any("block inflation" in line for line in lines)
    assert not any("not served yet" in line for line in lines)
    assert any("in steps of 1,056 tokens" in line for line in lines)


@pytest.mark.parametrize(
    "arguments",
    [
        ("google/gemma-3-27b-it", "--lengths", "100,1k,10x8K,128K,1m", "--compare", "uniform"),
        ("meta-llama/Llama-3.1-70B", "--draft-model", "meta-llama/Llama-3.2-1B", "--tensor-parallel-size", "8"),
        ("nvidia/Nemotron-H-56B-Base-8K", "--kv-layout", "uniform,vllm,jenga,plait,max-page,static,buddy"),
        ("google/gemma-2-2b", "--kv-layout", "manual:full=3:window=1", "--compare", "vllm"),
        ("meta-llama/Llama-3.2-11B-Vision", "--lengths", "43+6193,5x100+1601", "--kv-cache-dtype", "int8"),
    ],
)
def test_no_line_is_wider_than_a_hundred_columns(capsys: Capture, arguments: tuple[str, ...]) -> None:
    lines = lines_of(capsys, "memory", *arguments, "--memory", "80GB")
    assert max(len(line) for line in lines) <= 100
    assert all(line == line.rstrip() for line in lines)


def test_what_fits_is_compared_with_the_layout_asked_for(capsys: Capture) -> None:
    arguments = ("google/gemma-3-27b-it", "--lengths", "8K", "--memory", "24GiB", "--compare", "uniform")
    lines = lines_of(capsys, "memory", *arguments)
    first = next(place for place, line in enumerate(lines) if line.startswith("a sequence of 8,192"))
    assert lines[first + 2].split()[0] == "uniform"
    jenga = next(line for line in lines[first:] if line.split()[0] == "jenga")
    assert jenga.endswith("3.83 x uniform")


def test_a_layout_that_cannot_hold_the_model_says_why_and_the_others_go_on(capsys: Capture, tmp_path: Path) -> None:
    groups = [
        {"kind": "full", "layers": 2, "bytes_per_token": 96},
        {"kind": "window", "layers": 2, "window": 8, "bytes_per_token": 128},
    ]
    path = write_config(tmp_path, {"groups": groups}, "odd.json")
    lines = lines_of(capsys, "memory", str(path), "--memory", "1MiB", "--lengths", "100", "--kv-layout", "vllm,jenga")
    assert any(line.startswith("  vllm") and "its pages must divide" in line for line in lines)
    assert any(line.startswith("  jenga") for line in lines)


def test_a_trace_of_many_lengths_is_one_table(capsys: Capture, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("\n".join(str(100 + number) for number in range(50)), encoding="utf-8")
    lines = lines_of(capsys, "memory", "Qwen/Qwen3-8B", "--lengths", str(trace), "--memory", "1GiB")
    assert sum(line.startswith("mixed as these 50 sequences are, 124 tokens on average") for line in lines) == 1
    assert not any(line.startswith("a sequence") for line in lines)


def test_how_much_of_a_prompt_is_found_again_stands_beside_what_it_takes(capsys: Capture) -> None:
    arguments = ("Qwen/Qwen3-Next-80B-A3B-Instruct", "--lengths", "500,979", "--memory", "8GiB", "--kv-layout", "vllm")
    rows = [line.split() for line in lines_of(capsys, "memory", *arguments) if line.startswith("  vllm")]
    assert [row[6] for row in rows[:2]] == ["0.0", "55.6"]


def test_json_is_one_line_with_its_schema(capsys: Capture) -> None:
    (line,) = lines_of(
        capsys, "memory", "Qwen/Qwen3-8B", "--memory", "1GiB", "--json", "--compare", "vllm", "--lengths", "50,9x3k"
    )
    answer = json.loads(line)
    assert answer["schema"] == "plait.inspect.memory/1"
    assert answer["settings"]["memory_bytes"] == 1 << 30
    assert [one["name"] for one in answer["layouts"]] == ["vllm", "uniform", "jenga", "plait"]
    assert [one["name"] for one in answer["compare"]["layouts"]] == ["uniform", "jenga", "plait"]
    for one in answer["layouts"]:
        for found in (*one["lengths"], one["mix"]):
            for usage in (found["alone"], found["full"]):
                if usage is not None:
                    assert usage["reserved_bytes"] == usage["needed_bytes"] + sum(usage["waste_by_cause"].values())
            if found["full"] is not None:
                assert found["full"]["reserved_bytes"] + one["spare_bytes"] <= 1 << 30


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("memory",), "no model was given; write plait inspect memory MODEL"),
        (("memory", "Qwen/Qwen3-8B", "--kv-layout", "vlm"), "'vlm' is no layout; known are uniform, vllm"),
        (("memory", "Qwen/Qwen3-8B", "--kv-layout", ","), "names of layouts are expected"),
        (("memory", "Qwen/Qwen3-8B", "--kv-layout", "manual:full=x"), "'full=x' is no share; write manual:GROUP=SHARE"),
        (("memory", "Qwen/Qwen3-8B", "--kv-layout", "manual:full=1e99999999"), "'full=1e99999999' is no share"),
        (("memory", "Qwen/Qwen3-8B", "--kv-layout", "manual:full=1/0"), "'full=1/0' is no share"),
        (("memory", "Qwen/Qwen3-8B", "--compare", "vllm,jenga"), "one layout is expected"),
        (("memory", "Qwen/Qwen3-8B", "--lengths", "many"), "'many' is no length"),
        (("memory", "Qwen/Qwen3-8B", "--memory", "much"), "a size such as 1GiB"),
        (("memory", "Qwen/Qwen3-8B", "--block-size", "0"), "a number from 1 to 4096 is expected"),
        (("memory", "Qwen/Qwen3-8B", "--kv-cache-dtype", "fp4"), "choose one of auto, f32, f16, bf16, fp8, int8"),
        (("memory", "Qwen/Qwen3-8B", "--tensor-parallel-size", "3"), "8 KV heads do not divide among 3 ranks"),
        (("memory", "Qwen/Qwen3-8b-x"), "did you mean Qwen/Qwen3-8B?"),
        (("nothing.gguf",), "no such file"),
    ],
)
def test_mistakes_are_one_line(capsys: Capture, arguments: tuple[str, ...], words: str) -> None:
    assert words in failure(capsys, *arguments)


def test_no_memory_at_all_holds_nothing(capsys: Capture) -> None:
    lines = lines_of(capsys, "memory", "Qwen/Qwen3-8B", "--memory", "0", "--lengths", "10")
    assert next(line.split()[5] for line in lines if line.startswith("  jenga")) == "0"


def test_a_speed_is_a_bound_by_what_doctor_measured(capsys: Capture, tmp_path: Path) -> None:
    rates = MachineRates(2, 1e11, 4e11, 20e9, 12e9)
    write_rates(rates_file("build", 2, tmp_path), rates, processor_model())
    lines = lines_of(capsys, "Qwen/Qwen3-8B", "--cache-dir", str(tmp_path))
    (speed,) = [line for line in lines if line.startswith("speed")]
    # 7.57 G numbers of 16 bits, the table that is only looked up aside, 20 GB/s.
    assert speed.startswith("speed   at most 1.32 tokens a second for one user")


def test_the_page_of_a_model_file(capsys: Capture, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    lines = lines_of(capsys, str(path), "--cache-dir", str(tmp_path))
    assert lines[0] == "model   tiny.gguf (llama)"
    assert "served  by Plait" in lines
    assert any(line.startswith("layers  2 of width 32, up to 256 tokens") for line in lines)
    assert any("part attention" in line for line in lines)
    assert any(line.startswith("cache   128 bytes a token in bf16") for line in lines)
    assert any(line.startswith("speed   not claimed") for line in lines)
    assert max(len(line) for line in lines) <= 100


def test_the_page_of_a_model_that_is_only_known_by_its_configuration(capsys: Capture, tmp_path: Path) -> None:
    lines = lines_of(capsys, str(write_config(tmp_path, JAMBA)))
    assert any(line.startswith("served  not by Plait yet") for line in lines)
    assert any(line.startswith("numbers not known") for line in lines)
    assert any("8.31 MiB of states a sequence" in line for line in lines)


def test_the_page_as_json_counts_operations(capsys: Capture) -> None:
    (line,) = lines_of(capsys, "Qwen/Qwen3-30B-A3B", "--json")
    answer = json.loads(line)
    assert answer["schema"] == "plait.inspect/1"
    assert answer["parameters"] == 30_532_122_624
    assert answer["flops_per_token"] == 2 * answer["active_parameters"] < 7e9
    # Queries of 32 heads of 128 against each key, and each value weighed: 48 layers.
    assert answer["flops_per_token_and_key"] == 4 * 32 * 128 * 48
    assert answer["groups"][0]["bytes_per_token"] == 98304


def test_weights_that_are_too_large_are_said_to_be(capsys: Capture) -> None:
    lines = lines_of(capsys, "moonshotai/Kimi-K2-Instruct")
    assert any(line.startswith("fits    not here: ") for line in lines)


def test_without_a_model_the_known_names_are_listed(capsys: Capture) -> None:
    lines = lines_of(capsys)
    assert "  Qwen/Qwen3.6-35B-A3B" in lines
    (line,) = lines_of(capsys, "--json")
    assert len(json.loads(line)["known"]) == len(lines) - 1 >= 30


def test_neither_numpy_nor_the_native_runtime_is_loaded_for_a_known_name() -> None:
    program = (
        "import sys; from plait.cli.main import main; "
        "main(['inspect', 'memory', 'Qwen/Qwen3-8B', '--memory', '1GiB', '--json']); "
        "print([name for name in ('numpy', 'plait._native', 'pydantic', 'tokenizers') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", [["inspect"], ["inspect", "memory"]])
def test_help_fits_a_screen(capsys: Capture, command: list[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    assert capsys.readouterr().out.count("\n") <= 50


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1023, "1.00 KiB"), (1 << 20, "1.00 MiB"), (1.5 * 2**40, "1.50 TiB")],
)
def test_sizes_have_three_figures(size: float, text: str) -> None:
    assert bytes_text(size) == text


def test_counts_are_short() -> None:
    assert (count_text(None), count_text(1234), count_text(3_000_000_000)) == ("any", "1,234", "3,000 M")
    assert (big_number(12), big_number(1234), big_number(8.19e9)) == ("12", "1.23 K", "8.19 B")
