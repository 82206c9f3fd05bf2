"""Embeddings through the engine: a prompt in, one pooled vector out, beside whoever else is there."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.unit.engine.kit import Stage, ask, failing

from plait.core.client import Delta
from plait.core.errors import RequestError
from plait.core.events import Finished, Submitted
from plait.core.request import FinishReason, Pooling, Request, Task
from plait.core.step import Chunk, OutputKind


def embed(name: str, prompt: str, pooling: Pooling = Pooling.LAST, **more: object) -> Request:
    return replace(ask(name, prompt), task=Task.EMBED, pooling=pooling, **more)  # type: ignore[arg-type]


def chunks(stage: Stage) -> list[Chunk]:
    return [chunk for event in stage.of(Submitted) for chunk in event.plan.chunks]


def pooled_rows(stage: Stage) -> int:
    outputs = [out for chunk in chunks(stage) for out in chunk.outputs]
    assert all(out.kind is OutputKind.POOL for out in outputs)
    return sum(out.num_rows for out in outputs)


def test_the_answer_is_one_delta_with_the_vector_and_no_tokens() -> None:
    stage = Stage()
    stage.arrive(embed("e", "abcdefghij"))
    stage.run()
    (delta,) = stage.answers.deltas("e")
    assert delta.pooled == ()
    assert (delta.tokens, delta.text, delta.finish_reason) == ((), "", FinishReason.STOP)
    assert delta.num_prompt == 10
    (end,) = stage.of(Finished)
    assert (end.num_prompt, end.num_output, end.reason) == (10, 0, FinishReason.STOP)


def test_of_the_last_token_one_row_is_pooled_of_a_mean_every_one() -> None:
    for pooling, rows in ((Pooling.LAST, 1), (Pooling.MEAN, 10)):
        stage = Stage(max_step_tokens=4)
        stage.arrive(embed("e", "abcdefghij", pooling))
        stage.run()
        assert [chunk.num_tokens for chunk in chunks(stage)] == [4, 4, 2]
        assert pooled_rows(stage) == rows
        assert stage.answers.last("e").finish_reason is FinishReason.STOP


def test_a_mean_skips_no_row_though_its_prompt_is_cached_and_others_find_what_it_wrote() -> None:
    stage = Stage()
    stage.arrive(embed("first", "abcdefghij", Pooling.MEAN))
    stage.arrive(embed("mean", "abcdefghij", Pooling.MEAN), embed("last", "abcdefghij"), at_s=50.0)
    stage.run()
    assert stage.answers.last("mean").num_cached == 0
    assert stage.answers.last("last").num_cached == 8
    assert pooled_rows(stage) == 10 + 10 + 1


def test_a_prompt_may_fill_the_context() -> None:
    stage = Stage(max_model_tokens=10)
    stage.arrive(embed("fits", "abcdefghij"), embed("long", "abcdefghijk"))
    stage.run()
    assert stage.answers.last("fits").finish_reason is FinishReason.STOP
    refusal = stage.answers.refusal("long")
    assert refusal.code == "context_length_exceeded"
    assert "the prompt has 11 tokens but this model holds 10; shorten it" in refusal.message


def test_several_choices_make_no_sense() -> None:
    stage = Stage()
    stage.arrive(embed("e", "abc", n=2))
    stage.run()
    assert "a prompt has one embedding" in stage.answers.refusal("e").message


def test_an_executor_that_does_not_pool_is_not_asked() -> None:
    stage = Stage(pools=False)
    stage.arrive(embed("e", "abc"))
    stage.run()
    assert "task embed is not supported" in stage.answers.refusal("e").message


def test_a_prompt_that_cannot_be_computed_says_why() -> None:
    stage = Stage(edit=failing(0))
    stage.arrive(embed("e", "abc"), embed("f", "xyz"))
    stage.run()
    assert stage.answers.last("e").finish_reason is FinishReason.ERROR
    assert stage.answers.last("f").finish_reason is FinishReason.STOP


@pytest.mark.parametrize("seed", range(20))
def test_beside_generation_and_with_little_memory_everybody_gets_an_answer(seed: int) -> None:
    rng = random.Random(seed)
    stage = Stage(num_blocks=10, max_step_tokens=rng.choice((3, 7, 16)), max_model_tokens=32)
    prompts = ("abc", "abcdefgh", "abcdefghijklmnop", "xyz" * 8)
    for number in range(30):
        at_s = rng.uniform(0, 100)
        if rng.random() < 0.5:
            stage.arrive(embed(f"r{number}", rng.choice(prompts), rng.choice(tuple(Pooling))), at_s=at_s)
        else:
            stage.arrive(ask(f"r{number}", rng.choice(prompts), n=rng.choice((1, 3)), max_tokens=8), at_s=at_s)
        if rng.random() < 0.2:
            stage.abort(f"r{number}", at_s=at_s + rng.uniform(0, 20))
    stage.run()
    for number in range(30):
        answers = stage.answers.by_request[f"r{number}"]
        assert not any(isinstance(answer, RequestError) for answer in answers)
        reasons = [answer.finish_reason for answer in answers if isinstance(answer, Delta) and answer.finish_reason]
        assert reasons
        assert FinishReason.ERROR not in reasons
    assert stage.kv.usage().used_bytes == 0
