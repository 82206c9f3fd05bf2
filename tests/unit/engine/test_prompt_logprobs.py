"""Scores of prompt tokens through the engine: every token but the first, once, whatever happens meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.unit.engine.kit import Stage, ask

from plait.core.client import Delta
from plait.core.events import Preempted, Submitted
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.core.step import OutputKind

PROMPT = "abcdefghij"


def scoring(name: str, prompt: str = PROMPT, **more: object) -> Request:
    return ask(name, prompt, sampling=SamplingParams(prompt_logprobs=0), **more)  # type: ignore[arg-type]


def scored(stage: Stage, name: str, choice: int = 0) -> str:
    """The tokens that were scored, in order."""
    return bytes(one.token for delta in stage.answers.deltas(name, choice) for one in delta.prompt_logprobs).decode()


@pytest.mark.parametrize("max_step_tokens", [1, 3, 4, 9, 16])
def test_every_token_but_the_first_is_scored_once_however_the_prompt_is_cut(max_step_tokens: int) -> None:
    stage = Stage(max_step_tokens=max_step_tokens)
    stage.arrive(scoring("r"))
    stage.run()
    assert scored(stage, "r") == PROMPT[1:]
    assert stage.answers.text("r") == "klmn"


def test_a_cached_prompt_is_computed_again_and_one_token_has_nothing_to_score() -> None:
    stage = Stage()
    stage.arrive(ask("first", PROMPT))
    stage.arrive(scoring("r"), scoring("one", "a"), at_s=50.0)
    stage.run()
    assert (scored(stage, "r"), stage.answers.last("r").num_cached) == (PROMPT[1:], 0)
    assert scored(stage, "one") == ""
    assert stage.answers.text("one") == "bcde"


def test_of_several_choices_the_first_reports_and_the_others_share_what_it_computed() -> None:
    stage = Stage()
    stage.arrive(scoring("r", n=3))
    stage.run()
    assert [scored(stage, "r", choice) for choice in range(3)] == [PROMPT[1:], "", ""]
    assert [stage.answers.last("r", choice).num_cached for choice in range(3)] == [0, 9, 9]
    outputs = [out for event in stage.of(Submitted) for chunk in event.plan.chunks for out in chunk.outputs]
    assert sum(out.num_rows for out in outputs if out.kind is OutputKind.LOGPROBS) == 9


@pytest.mark.parametrize("seed", range(12))
def test_with_little_memory_nothing_is_scored_twice(seed: int) -> None:
    rng = random.Random(seed)
    stage = Stage(num_blocks=8, max_step_tokens=rng.choice((3, 7, 16)), max_model_tokens=32)
    prompts = {f"r{number}": rng.choice(("abc", PROMPT, "xyz" * 6)) for number in range(16)}
    for name, prompt in prompts.items():
        stage.arrive(scoring(name, prompt, n=rng.choice((1, 2)), max_tokens=12), at_s=rng.uniform(0, 30))
    stage.run()
    for name, prompt in prompts.items():
        assert scored(stage, name) == prompt[1:]


def test_the_random_loads_preempt_somebody() -> None:
    """Else the test above would show nothing."""
    stage = Stage(num_blocks=8, max_step_tokens=16, max_model_tokens=32)
    stage.arrive(*(scoring(f"r{number}", PROMPT, max_tokens=20) for number in range(6)))
    stage.run()
    assert stage.of(Preempted)
    assert all(scored(stage, f"r{number}") == PROMPT[1:] for number in range(6))


def test_a_range_beyond_what_is_reported_is_refused() -> None:
    stage = Stage()
    stage.arrive(replace(scoring("r"), sampling=SamplingParams(prompt_logprobs=21)))
    stage.run()
    assert "prompt_logprobs is 21" in stage.answers.refusal("r").message
    assert not any(isinstance(answer, Delta) for answer in stage.answers.by_request["r"])
