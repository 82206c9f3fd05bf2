"""The real tiny RWKV-7 through the Python API and through `plait batch`: a model whose sequences keep no tokens at all.

A token is a byte. Answers do not depend on what is cached, how prompts are cut or what runs beside them, to the last
bit of a log-probability where the executor promises that.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait import LLM, RequestOutput, SamplingParams
from plait.cli.main import main
from plait.exec.native import presence

FOLDER = Path(__file__).parents[1] / "data" / "rwkv7"
STORY = (
    "The old man went down to the river in the spring, and the people of the town came to him and asked what he saw."
)
PROMPTS = [STORY[:length] for length in (1, 5, 40, 64, 90, len(STORY))] + ["Nothing of that. ", STORY]
PARAMS = SamplingParams(max_tokens=24, temperature=0.9, top_k=20, seed=11, logprobs=3, ignore_eos=True)
needs_native = pytest.mark.skipif(presence.missing() is not None, reason="needs the native runtime")


def told(outputs: list[RequestOutput]) -> list[tuple[object, ...]]:
    """Tokens and log-probabilities, to the last bit."""
    return [
        (tuple(one.token_ids), [{token: of.logprob for token, of in row.items()} for row in one.logprobs or []])
        for output in outputs
        for one in output.outputs
    ]


@needs_native
def test_answers_are_the_same_however_they_are_computed() -> None:
    with LLM(FOLDER, enable_prefix_caching=False, max_num_seqs=1) as alone:
        expected = told([alone.generate([prompt], PARAMS, use_tqdm=False)[0] for prompt in PROMPTS])
    with LLM(FOLDER, max_num_batched_tokens=16, max_num_seqs=4, kv_cache_memory="4MiB") as busy:
        assert told(busy.generate(PROMPTS, PARAMS, use_tqdm=False)) == expected
        again = busy.generate(PROMPTS[::-1], PARAMS, use_tqdm=False)
    assert told(again[::-1]) == expected
    assert any(output.num_cached_tokens for output in again)


def test_a_conversation_goes_on_from_the_state_behind_it() -> None:
    with LLM(FOLDER) as llm:
        (first,) = llm.generate([STORY], PARAMS, use_tqdm=False)
        (second,) = llm.generate([STORY + " And then"], PARAMS, use_tqdm=False)
    assert first.num_cached_tokens == 0
    assert (second.num_cached_tokens or 0) >= 64
    assert len(first.outputs[0].token_ids) == len(second.outputs[0].token_ids) == 24


def test_the_reference_executor_serves_it_too() -> None:
    greedy = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    with LLM(FOLDER, executor="reference") as llm:
        (output,) = llm.generate(['"in'], greedy, use_tqdm=False)
    assert output.prompt_token_ids == list(b'"in')
    assert output.outputs[0].text == " the the"


def test_a_batch_of_it_is_answered(tmp_path: Path) -> None:
    bodies = [{"prompt": prompt, "max_tokens": 5, "temperature": 0, "ignore_eos": True} for prompt in PROMPTS]
    lines = [
        {"custom_id": str(place), "method": "POST", "url": "/v1/completions", "body": body}
        for place, body in enumerate(bodies)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    assert main(["batch", *files, "-m", str(FOLDER), "--quiet", "--kv-cache-memory", "4MiB"]) == 0
    answers = [json.loads(line)["response"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [answer["status_code"] for answer in answers] == [200] * len(PROMPTS)
    assert all(answer["body"]["usage"]["completion_tokens"] == 5 for answer in answers)
