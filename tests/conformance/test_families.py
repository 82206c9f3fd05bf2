"""Every family on every executor with numbers, against what `transformers` computes for a tiny model of it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.families import (
    CASES,
    FamilyCase,
    FamilyModel,
    Floats,
    family_model,
    golden_of,
    logits_of,
    one_of_each,
    rounded_model,
)
from tests.conformance.family_files import gguf_form, write_gguf
from tests.conformance.test_goldens import EIGHT_BITS

from plait.exec.loading import LoadableExecutor
from plait.exec.native import presence
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor
from plait.exec.scoring import LogitsTap
from plait.model.config import config_from_gguf
from plait.model.families import build_program
from plait.model.program import expected_weights
from plait.weights.gguf import read_gguf
from plait.weights.names import load_gguf_weights, rope_factors

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


@pytest.mark.skipif("native" not in EXECUTORS, reason="needs the native runtime, and that a C++ compiler")
@pytest.mark.parametrize("case", one_of_each(CASES), ids=lambda case: case.name)
def test_eight_bit_products_come_near_to_floats(case: FamilyCase) -> None:
    """Of every family: rows are rounded wherever its layers hand them to a product. Bounds of ADR 6."""
    model = rounded_model(case)
    tokens = golden_of(case).tokens
    wanted, given = (
        logits_of(EXECUTORS[name](tap), tap, model, tokens, model.weights)
        for name, tap in (("reference", LogitsTap()), ("native", LogitsTap()))
    )
    errors = abs(given - wanted) / abs(wanted).max()
    assert errors.max() > 0
    # Near a tie rounding lets the router choose another expert, and with it another answer for the row.
    turned = (errors.max(axis=1) > EIGHT_BITS.single).sum()
    assert turned <= (len(errors) // 50 if model.config.mixture is not None else 0)
    assert np.sqrt(np.square(errors).mean()) <= EIGHT_BITS.typical
    assert (given.argmax(axis=1) == wanted.argmax(axis=1)).mean() >= EIGHT_BITS.equal


@by_case
def test_a_gguf_file_gives_the_logits_of_its_checkpoint(tmp_path: Path, case: FamilyCase) -> None:
    case = gguf_form(case)
    original = family_model(case)
    write_gguf(tmp_path / "tiny.gguf", case, original)
    file = read_gguf(tmp_path / "tiny.gguf")
    factors = rope_factors(file)
    config = config_from_gguf(file.metadata, file.tensors.keys(), factors)
    config = config if case.longest is None else config.within(case.longest)
    program = build_program(config)
    weights = load_gguf_weights(file, expected_weights(program), "0" * 64, rope_factors_used=factors is not None)
    read = FamilyModel(config, program, original.tensors, weights)
    tokens = golden_of(case).tokens
    given, wanted = (
        logits_of(reference(tap), tap, model, tokens, model.weights)
        for model, tap in ((read, LogitsTap()), (original, LogitsTap()))
    )
    # Numbers that are not whole are float32 in a GGUF file: frequencies and scales may differ in their last bits.
    assert abs(given - wanted).max() <= 1e-5 * abs(wanted).max()
