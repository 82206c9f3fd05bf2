"""Embeddings on every executor that computes: the mean of the rows in front of the head, however they came."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from tests.conformance.executors import EXECUTORS
from tests.conformance.models import TinyModel, model_named
from tests.conformance.scene import PROMPT, Scene, joined, prompt_chunk, result_of

from plait.core.step import Chunk, OutputKind, Outputs, SeqStatus
from plait.model.pooling import with_pool

COMPUTING = [name for name in EXECUTORS if name != "simulated"]
CUTS = [(20,), (1, 19), (7, 7, 6), (8, 12), tuple([1] * 20)]


def pooling_model() -> TinyModel:
    model = model_named("causal")
    return replace(model, program=with_pool(model.program))


def pooled(chunk: Chunk, first: int = 0) -> Chunk:
    return chunk._replace(outputs=(Outputs(first, chunk.num_tokens - first, OutputKind.POOL),))


def mean_of(executor: str, cut: tuple[int, ...] = (20,), company: int = 0) -> tuple[float, ...]:
    """Of the prompt in chunks of these lengths, beside sequences that sample."""
    scene = Scene(executor, pooling_model())
    others = range(2, 2 + company)
    start, found = 0, None
    for place, length in enumerate(cut):
        chunks = [pooled(prompt_chunk(1, start, start + length))]
        joins = [] if place else [joined(1), *(joined(seq) for seq in others)]
        chunks += [] if place else [prompt_chunk(seq) for seq in others]
        result = scene.wait(scene.submit(*chunks, joins=joins))
        given = result_of(1, result)
        assert given.status is SeqStatus.OK
        assert given.tokens == ()
        for seq in others if not place else ():
            assert result_of(seq, result).pooled is None
            assert result_of(seq, result).tokens == (scene.right_token(seq, PROMPT),)
        found, start = given.pooled, start + length
    scene.executor.close()
    assert found is not None
    return found


def logits_of(model: TinyModel, hidden: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    return model.arrays["head"].astype(np.float64) @ hidden


@pytest.mark.parametrize("executor", COMPUTING)
def test_the_last_row_alone_is_what_the_logits_come_from(executor: str) -> None:
    model = pooling_model()
    scene = Scene(executor, model)
    result = scene.wait(scene.submit(pooled(prompt_chunk(1), first=19), joins=[joined(1)]))
    hidden = np.array(result_of(1, result).pooled)
    assert int(logits_of(model, hidden).argmax()) == scene.right_token(1, PROMPT)
    scene.executor.close()


@pytest.mark.parametrize("executor", COMPUTING)
@pytest.mark.parametrize("cut", CUTS[1:])
def test_the_mean_does_not_depend_on_how_a_prompt_is_cut_nor_on_the_company(
    executor: str, cut: tuple[int, ...]
) -> None:
    whole, in_parts = np.array(mean_of(executor)), np.array(mean_of(executor, cut, company=3))
    if executor == "native":
        assert (whole == in_parts).all()
    assert np.abs(whole - in_parts).max() <= 1e-5 * np.abs(whole).max()


@pytest.mark.skipif("native" not in EXECUTORS, reason="needs the native runtime, and that a C++ compiler")
def test_executors_agree() -> None:
    defined, fast = np.array(mean_of("reference")), np.array(mean_of("native"))
    assert np.abs(defined - fast).max() <= 1e-4 * np.abs(defined).max()


@pytest.mark.parametrize("executor", COMPUTING)
def test_a_mean_begins_anew_with_a_join(executor: str) -> None:
    scene = Scene(executor, pooling_model())
    first = result_of(1, scene.wait(scene.submit(pooled(prompt_chunk(1)), joins=[joined(1)]))).pooled
    scene.leave(1)
    again = result_of(1, scene.wait(scene.submit(pooled(prompt_chunk(1)), joins=[joined(1)]))).pooled
    assert first == again
    scene.executor.close()
