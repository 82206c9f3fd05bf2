"""Every family on every executor with numbers, against what `transformers` computes for a tiny model of it."""

from __future__ import annotations

import time

import pytest
from tests.conformance.families import CASES, FamilyCase, FamilyModel, Floats, family_model, golden_of, logits_of

from plait.exec.loading import LoadableExecutor
from plait.exec.native import presence
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor
from plait.exec.scoring import LogitsTap

ALLOWED_ERROR = 1e-4
"""Of the largest logit."""
CLEAR = 10
"""A margin between first and second is clear when it is this many times the allowed error."""
CHUNK = 19
"""Tokens of a step: neither whole blocks nor a divisor of any window."""


def reference(tap: LogitsTap) -> LoadableExecutor:
    config = ReferenceConfig(max_step_tokens=CHUNK, poison=True, observe_logits=tap)
    return ReferenceExecutor(config, time.monotonic)


def native(tap: LogitsTap, target: str | None = None) -> LoadableExecutor:
    from plait.exec.native.executor import NativeConfig, NativeExecutor

    return NativeExecutor(NativeConfig((-1,), CHUNK, target=target, poison=True, observe_logits=tap))


EXECUTORS = {"reference": reference} | ({} if presence.missing() else {"native": native})
by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def check_against_golden(case: FamilyCase, logits: Floats) -> None:
    golden = golden_of(case)
    allowed = ALLOWED_ERROR * golden.max_abs
    inside = golden.rows < len(logits)
    error = abs(logits[golden.rows[inside]] - golden.logits[inside]).max()
    assert error <= allowed
    clear = golden.margin[: len(logits)] > CLEAR * allowed
    assert (logits.argmax(axis=1) == golden.argmax[: len(logits)])[clear].all()
    # The prompt goes on greedily, so that nearly all rows behind it are decisions.
    assert clear[-64:].sum() >= 56


@by_case
@pytest.mark.parametrize("executor", EXECUTORS)
def test_logits_are_those_of_transformers(executor: str, case: FamilyCase) -> None:
    model: FamilyModel = family_model(case)
    tap = LogitsTap()
    logits = logits_of(EXECUTORS[executor](tap), tap, model, golden_of(case).tokens, model.weights)
    check_against_golden(case, logits)
