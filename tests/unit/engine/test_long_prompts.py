"""A very long prompt beside somebody who is being answered: counted in steps, which is what a schedule decides.

How long a step takes is bounded by its tokens; how often a stream hears something, by this.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.unit.engine.kit import Stage, ask

from plait.core.events import Emitted, Submitted
from plait.core.ids import SeqId

BUDGET, CONTEXT = 16, 400
STREAM, LONG = SeqId(0), SeqId(1)


def staged(*, with_stream: bool, num_streams: int = 1) -> Stage:
    """Some who are being answered, and the longest prompt there can be, which comes when 20 tokens are out."""
    stage = Stage(num_blocks=512, max_step_tokens=BUDGET, max_model_tokens=CONTEXT, max_rows=8)
    if with_stream:
        stage.arrive(*(ask(f"stream {number}", f"ab{number}", max_tokens=200) for number in range(num_streams)))
    stage.arrive(ask("long", "x" * (CONTEXT - 1), max_tokens=1), at_s=3.0 * num_streams + 20.0 if with_stream else 0.0)
    stage.run()
    return stage


def steps_of_the_prompt(stage: Stage, seq: SeqId) -> list[Submitted]:
    return [one for one in stage.of(Submitted) if any(chunk.seq == seq for chunk in one.plan.chunks)]


@pytest.mark.parametrize("num_streams", [1, 4])
def test_every_step_of_a_long_prompt_gives_every_stream_its_token(num_streams: int) -> None:
    stage = staged(with_stream=True, num_streams=num_streams)
    steps = steps_of_the_prompt(stage, SeqId(num_streams))
    assert len(steps) >= (CONTEXT - 1) // BUDGET
    for step in steps:
        chunks = {chunk.seq: chunk.num_tokens for chunk in step.plan.chunks}
        assert [chunks.get(SeqId(stream)) for stream in range(num_streams)] == [1] * num_streams
        assert sum(chunks.values()) <= BUDGET
    # So no gap is longer than one step, and no step larger than the budget: a token takes a second here.
    for stream in range(num_streams):
        moments = [one.at_s for one in stage.of(Emitted) if one.seq == SeqId(stream)]
        assert max(later - sooner for sooner, later in pairwise(moments)) <= BUDGET
    assert len(stage.answers.tokens("stream 0")) == 200


def test_beside_a_stream_a_long_prompt_takes_hardly_more_steps_than_alone() -> None:
    alone = len(steps_of_the_prompt(staged(with_stream=False), STREAM))
    beside = len(steps_of_the_prompt(staged(with_stream=True), LONG))
    assert alone == -(-(CONTEXT - 1) // BUDGET)
    assert beside == -(-(CONTEXT - 1) // (BUDGET - 1))
    assert beside <= 2 * alone
