"""lm-eval against the server, with nothing but the server's address: the score of a task equals that of the Python API.

The task and its questions are local, so that no hub is asked. lm-eval is not among what Plait needs, so this runs where
it is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.server_process import ServerProcess, serving

from plait import LLM, SamplingParams, TokensPrompt
from plait.exec.native import presence

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(presence.missing() is not None, reason="takes minutes without the native runtime"),
]

QUESTIONS = Path(__file__).parent.parent / "data" / "lm_eval" / "mmlu.jsonl"
NUM_QUESTIONS = 50
TASK = """\
task: local_questions
dataset_path: json
dataset_kwargs:
  data_files: {{validation: {questions}}}
output_type: multiple_choice
validation_split: validation
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
"""


@dataclass(frozen=True, slots=True)
class Scored:
    """One question; for each choice what lm-eval asked for (context, continuation) and what it was told."""

    answer: int
    choices: list[str]
    asked: list[tuple[str, str]]
    told: list[tuple[float, bool]]


@dataclass(frozen=True, slots=True)
class Report:
    """What lm-eval wrote: the metrics of the task, and its samples."""

    metrics: dict[str, float]
    samples: list[Scored]


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[ServerProcess]:
    with serving(model_path, "--served-model-name", "smollm2", "--kv-cache-memory", "128MiB") as running:
        yield running


def run_lm_eval(server: ServerProcess, work: Path, *, concurrent: int, batch: int = 1) -> Report:
    (work / "task.yaml").write_text(TASK.format(questions=QUESTIONS))
    args = f"model=smollm2,base_url={server.url}/completions,num_concurrent={concurrent}"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", args]
    command += ["--batch_size", str(batch), "--include_path", str(work), "--tasks", "local_questions"]
    command += ["--output_path", str(work / "out"), "--log_samples"]
    offline = {"HF_HOME": str(work / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ended = subprocess.run(command, env={**os.environ, **offline}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    (results,) = (work / "out").rglob("results_*.json")
    (samples,) = (work / "out").rglob("samples_*.jsonl")
    metrics = json.loads(results.read_text())["results"]["local_questions"]
    return Report(
        {name: value for name, value in metrics.items() if isinstance(value, float)},
        [_sample(json.loads(line)) for line in samples.read_text().splitlines()],
    )


def _sample(line: dict[str, Any]) -> Scored:
    asked = [(one["arg_0"], one["arg_1"]) for _, one in sorted(line["arguments"].items())]
    told = [(float(one[0][0]), str(one[0][1]) == "True") for one in line["resps"]]
    return Scored(line["doc"]["answer"], line["doc"]["choices"], asked, told)


def offline_scores(model: LLM, asked: list[tuple[str, str]]) -> list[tuple[float, bool]]:
    """For each pair the log-likelihood of the continuation, and whether it is what greedy decoding says."""
    tokenizer = model.get_tokenizer()
    wholes = [tokenizer.encode(context + continuation, add_special_tokens=False) for context, continuation in asked]
    starts = [len(tokenizer.encode(context, add_special_tokens=False)) for context, _ in asked]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    outputs = model.generate([TokensPrompt(prompt_token_ids=tokens) for tokens in wholes], params, use_tqdm=False)
    scores = []
    for tokens, start, output in zip(wholes, starts, outputs, strict=True):
        entries = output.prompt_logprobs
        assert entries is not None
        told = [(entry[token], entry) for token, entry in zip(tokens[start:], entries[start:], strict=True) if entry]
        assert len(told) == len(tokens) - start
        likely = all(one.logprob == max(other.logprob for other in entry.values()) for one, entry in told)
        scores.append((sum(one.logprob for one, _ in told), likely))
    return scores


def test_lm_eval_scores_as_the_python_api_does_to_the_last_digit(
    server: ServerProcess, model_path: Path, tmp_path: Path
) -> None:
    pytest.importorskip("lm_eval")
    report = run_lm_eval(server, tmp_path, concurrent=4)
    assert len(report.samples) == NUM_QUESTIONS
    with LLM(model=str(model_path), kv_cache_memory="128MiB") as model:
        scores = offline_scores(model, [pair for one in report.samples for pair in one.asked])
    assert [told for one in report.samples for told in one.told] == scores
    right = {"acc": 0, "acc_norm": 0}
    for sample in report.samples:
        own, scores = scores[: len(sample.choices)], scores[len(sample.choices) :]
        likely = [logprob for logprob, _ in own]
        long = [logprob / len(choice) for logprob, choice in zip(likely, sample.choices, strict=True)]
        right["acc"] += likely.index(max(likely)) == sample.answer
        right["acc_norm"] += long.index(max(long)) == sample.answer
    for name, count in right.items():
        assert report.metrics[f"{name},none"] == count / NUM_QUESTIONS
    # A model that knows nothing scores a quarter.
    assert right["acc_norm"] > NUM_QUESTIONS / 4


def test_lm_eval_scores_the_same_one_prompt_at_a_time_and_in_lists(server: ServerProcess, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    runs = []
    for concurrent, batch in ((1, 1), (2, 8)):
        work = tmp_path / str(batch)
        work.mkdir()
        runs.append(run_lm_eval(server, work, concurrent=concurrent, batch=batch))
    assert runs[0] == runs[1]
    assert server.become_idle()
