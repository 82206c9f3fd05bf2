"""Scoring: which tokens are scored behind which, and that an executor's rows are those of its targets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.models import VOCAB_SIZE, tiny_model
from tests.conformance.oracle import expect
from tests.e2e.tiny_model import CONTEXT, NUM_TOKENS, write_tiny_model

from plait.build import LoadedModel, load_executor, load_model
from plait.config.engine_options import EngineOptions
from plait.core.clock import RealClock
from plait.core.errors import InvariantError, PlaitError
from plait.core.step import STEP_PROGRAM
from plait.exec.native import presence
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor
from plait.exec.scoring import LogitsTap, Scorer, Window, cut_windows, rows_per_step
from plait.model.visibility import CAUSAL, window
from plait.weights import formats
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

EXECUTORS = ["reference"] + (["native"] if presence.missing() is None else [])
TEXT = tuple(np.random.default_rng(7).integers(0, 256, 100).tolist())


def test_every_token_but_the_first_is_scored_once_behind_its_window() -> None:
    assert cut_windows((10, 11, 12, 13, 14, 15), 2, ()) == [
        Window((10, 11), (11, 12)),
        Window((12, 13), (13, 14)),
        Window((14,), (15,)),
    ]


def test_a_window_begins_with_what_the_model_wants_and_is_no_longer_for_it() -> None:
    assert cut_windows((10, 11, 12, 13), 3, (1,)) == [Window((1, 10, 11), (11, 12)), Window((1, 12), (13,))]


def test_a_text_that_ends_with_a_window_needs_no_other() -> None:
    assert [len(one.tokens) for one in cut_windows(range(9), 4, ())] == [4, 4]


def test_a_window_without_room_for_the_text_is_our_mistake() -> None:
    with pytest.raises(InvariantError, match="windows of 1 tokens hold nothing behind the 1 that begin each"):
        cut_windows((1, 2, 3), 1, (0,))


@pytest.mark.parametrize(("vocab_size", "rows"), [(257, 128), (49_152, 128), (262_144, 32), (10_000_000, 16)])
def test_fewer_rows_are_computed_at_a_time_where_they_are_long(vocab_size: int, rows: int) -> None:
    assert rows_per_step(vocab_size) == rows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = write_tiny_model(tmp_path_factory.mktemp("scoring") / "tiny.gguf")
    return load_model(EngineOptions(model=str(path)), lambda done, total: None, datetime.now)


@contextmanager
def scorer_of(model: LoadedModel, executor: str, rows: int) -> Iterator[Scorer]:
    tap, clock = LogitsTap(), RealClock()
    options = EngineOptions(
        executor=executor,
        kv_cache_dtype="f32",
        kv_cache_memory=1 << 20,
        max_num_batched_tokens=rows,
        max_model_len=CONTEXT,
    )
    ready = load_executor(options, model, clock, tap)
    with closing(ready.executor):
        yield Scorer(ready.executor, ready.layout, tap, clock)


def scores(scorer: Scorer, one: Window) -> list[float]:
    return [logprob for rows in scorer.rows(one) for logprob in rows.logprobs]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_rows_are_behind_the_tokens_whose_targets_are_scored(model: LoadedModel, executor: str) -> None:
    (only,) = cut_windows(TEXT, CONTEXT, (3,))
    with scorer_of(model, executor, 16) as scorer:
        found = list(scorer.rows(only))
    assert [len(rows.logprobs) for rows in found] == [15, 16, 16, 16, 16, 16, 4]
    logits = np.concatenate([rows.logits for rows in found]).astype(np.float64)
    assert logits.shape == (99, NUM_TOKENS)
    logprobs = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
    given = np.array([one for rows in found for one in rows.logprobs])
    np.testing.assert_allclose(given, logprobs[np.arange(99), only.targets], atol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_score_depends_on_the_tokens_before_and_not_on_steps_or_earlier_windows(
    model: LoadedModel, executor: str
) -> None:
    first, second = cut_windows(TEXT, 50, ())
    with scorer_of(model, executor, 128) as scorer:
        alone = scores(scorer, second)
    with scorer_of(model, executor, 17) as scorer:
        scores(scorer, first)
        behind = scores(scorer, second)
    assert behind == pytest.approx(alone, abs=1e-5)
    with scorer_of(model, executor, 128) as scorer:
        other = scores(scorer, replace(second, tokens=(second.tokens[0] ^ 1, *second.tokens[1:])))
    assert min(abs(one - two) for one, two in zip(other, alone, strict=True)) > 0


MIXED = tiny_model((CAUSAL, window(21), window(21), window(21)))
"""Two cache groups, whose blocks have other sizes: a page holds three blocks of the one, or one of the other."""


@contextmanager
def mixed_scorer(num_pages: int) -> Iterator[Scorer]:
    tap, clock = LogitsTap(), RealClock()
    layout = MIXED.layout(num_pages)
    executor = ReferenceExecutor(ReferenceConfig(max_step_tokens=19, observe_logits=tap), clock.now)
    executor.load({STEP_PROGRAM: MIXED.program}, MIXED.table(), layout)
    with closing(executor):
        yield Scorer(executor, layout, tap, clock)


def test_cache_groups_do_not_write_to_each_others_pages() -> None:
    tokens = tuple(token % VOCAB_SIZE for token in TEXT[:61])
    (only,) = cut_windows(tokens, CONTEXT, ())
    # 60 tokens are 8 blocks: 3 pages of the first group and 8 of the other.
    expected = expect(MIXED, only.tokens)
    right = [float(expected.log_probabilities(row)[target]) for row, target in enumerate(only.targets)]
    with mixed_scorer(11) as scorer:
        assert scores(scorer, only) == pytest.approx(right, abs=1e-4)


def test_memory_that_holds_no_window_is_our_mistake() -> None:
    (only,) = cut_windows(tuple(token % VOCAB_SIZE for token in TEXT[:61]), CONTEXT, ())
    with mixed_scorer(10) as scorer, pytest.raises(InvariantError, match="a window of 60 tokens takes 11 pages of 10"):
        scores(scorer, only)


@pytest.mark.skipif(len(EXECUTORS) == 1, reason="needs the native runtime, and that a C++ compiler")
def test_the_native_executor_in_float32_scores_as_the_reference_does(model: LoadedModel) -> None:
    (only,) = cut_windows(TEXT, CONTEXT, ())
    with scorer_of(model, "reference", 128) as scorer:
        reference = scores(scorer, only)
    with scorer_of(model, "native", 128) as scorer:
        assert scores(scorer, only) == pytest.approx(reference, abs=1e-4)


def test_a_text_that_cannot_be_scored_is_one_line(model: LoadedModel, tmp_path: Path) -> None:
    table = dict(model.weights)
    broken = table["embed"].dequantize()
    broken[TEXT[20]] = np.nan
    table["embed"] = Tensor("embed", broken.shape, formats.F32, broken.view(np.uint8))
    sick = replace(model, weights=WeightTable(table, tmp_path / "sick.gguf", "not needed"))
    (only,) = cut_windows(TEXT, CONTEXT, ())
    with (
        scorer_of(sick, "reference", 128) as scorer,
        pytest.raises(PlaitError, match="cannot be scored: the model gave a logit"),
    ):
        scores(scorer, only)
