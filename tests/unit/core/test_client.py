"""What clients see: small values with sensible defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.core.client import Delta, Health, ModelInfo
from plait.core.decision import Blocked, Cancel, SeqUpdate, Submit
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.request import FinishReason
from plait.core.step import StepPlan

PLAN = StepPlan(StepId(3), LaneId(0), (), (), (), ())


def test_a_delta_in_the_middle_of_an_answer_says_no_more_than_its_tokens() -> None:
    delta = Delta(0, "text", (1, 2))
    assert (delta.finish_reason, delta.stop_reason, delta.error, delta.logprobs) == (None, None, None, ())
    with pytest.raises(AttributeError):
        delta.text = "other"  # type: ignore[misc]


def test_health_and_model_are_values() -> None:
    assert Health(True, 2, 1) == Health(True, 2, 1, None)
    model = ModelInfo("tiny", 256, 64, "fingerprint", True)
    assert replace(model, bit_exact=False) != model


def test_decisions_are_values_that_can_be_compared_and_replayed() -> None:
    assert Submit(PLAN) == Submit(replace(PLAN))
    assert Cancel(StepId(3), (SeqId(1),)) != Cancel(StepId(3), (SeqId(2),))
    assert {Submit(PLAN), Submit(replace(PLAN))} == {Submit(PLAN)}


def test_an_update_without_an_end_goes_on() -> None:
    update = SeqUpdate(SeqId(1), (5,))
    assert (update.finish_reason, update.stop_token, update.error) == (None, None, None)
    assert SeqUpdate(SeqId(1), finish_reason=FinishReason.ABORT).tokens == ()


def test_reasons_to_wait_are_words_for_reports() -> None:
    assert [str(reason) for reason in Blocked] == ["budget", "rows", "memory", "time", "prefix"]
