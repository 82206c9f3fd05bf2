"""The native sampler against the reference's: equal tokens, log-probabilities equal to the rounding of float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.ids import SeqId
from plait.core.sampling import SamplingParams
from plait.core.step import Join
from plait.exec.reference import sampler as reference

_native = pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

Logits = npt.NDArray[np.float32]

ROUNDING = 1e-12
"""Relative: exponentials, logarithms and the differences they go into."""


def join_of(params: SamplingParams, history: list[int], num_prompt: int, seed: int = 0) -> Join:
    return Join(SeqId(0), 0, params, seed, 1, num_prompt, tuple(history), None, (5,))


def agree(logits: Logits, join: Join, position: int, allowed: bytes | None = None) -> int | None:
    """The token that the reference and every target choose."""
    with np.errstate(all="ignore"):
        expected = reference.sample(logits, reference.Row(join, join.history, position, allowed))
    for target in _native.targets():
        native = _native.Sampler(target, len(logits))
        assert native.load(logits)
        assert native.sample(join, position, allowed) == expected, target
    return expected


def score_alike(logits: Logits, token: int, num_top: int) -> None:
    expected = reference.log_probability(logits, token, num_top)
    given = []
    for target in _native.targets():
        native = _native.Sampler(target, len(logits))
        assert native.load(logits)
        given.append(native.score(token, num_top))
    logprob, top = given[0]
    assert given == [given[0]] * len(given)  # bit for bit
    assert [one for one, _ in top] == [one for one, _ in expected.top]
    close = pytest.approx([expected.logprob, *(value for _, value in expected.top)], rel=ROUNDING, abs=ROUNDING)
    assert [logprob, *(value for _, value in top)] == close


def normal(seed: int, size: int, width: float, step: float = 0.0) -> Logits:
    """Random logits; with a step they are multiples of it, so that many are equal."""
    values = np.random.default_rng(seed).normal(0.0, width, size)
    return (np.round(values / step) * step if step else values).astype(np.float32)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 1, 3, 40, 2000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.5, 1e6, 5e-324]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -2.0]),
    presence_penalty=st.sampled_from([0.0, 1.1, -0.7]),
    logit_bias=st.dictionaries(st.integers(0, 15), st.sampled_from([-100.0, 0.7, 5.0]), max_size=3).map(
        lambda bias: tuple(sorted(bias.items()))
    ),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.sampled_from([(), (2,), (0, 9)]),
)


@settings(max_examples=150, deadline=None)
@given(
    params=PARAMS,
    shape=st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([16, 31, 700, 4099]), st.sampled_from([0.2, 3.0, 20.0])),
    step=st.sampled_from([0.0, 0.5]),
    history=st.lists(st.integers(0, 15), min_size=1, max_size=12),
    num_prompt=st.integers(0, 12),
    seed=st.integers(0, 2**64 - 1),
    allowed=st.none() | st.integers(0, 2**32 - 1),
)
def test_all_rules_together_choose_the_token_of_the_reference(
    params: SamplingParams,
    shape: tuple[int, int, float],
    step: float,
    history: list[int],
    num_prompt: int,
    seed: int,
    allowed: int | None,
) -> None:
    logits = normal(*shape, step)
    mask = None if allowed is None else np.random.default_rng(allowed).bytes(-(-len(logits) // 8))
    known = history if params.has_penalties else []
    join = join_of(params, known, min(num_prompt, len(history)), seed)
    agree(logits, join, len(history), mask)


@pytest.mark.parametrize("step", [0.0, 0.25])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.95),
        SamplingParams(temperature=0.7, top_k=50, top_p=0.9),
        SamplingParams(temperature=1.3, min_p=0.02),
        SamplingParams(temperature=0.0, repetition_penalty=1.2),
    ],
)
def test_a_whole_vocabulary_gives_the_tokens_of_the_reference(params: SamplingParams, step: float) -> None:
    history = [7, 49_000, 7, 12]
    tokens = {agree(normal(seed, 49_152, 3.0, step), join_of(params, history, 2, seed), 4) for seed in range(6)}
    assert len(tokens) > 1


@pytest.mark.parametrize("size", [1, 2, 17, 1000, 4096, 4097, 49_152])
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_log_probabilities_are_those_of_the_reference(size: int, step: float) -> None:
    for width in (0.1, 4.0, 300.0):
        score_alike(normal(size, size, width, step), size // 2, 20)


def test_a_row_with_a_logit_that_is_not_a_number_is_refused() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        for target in _native.targets():
            native = _native.Sampler(target, 40)
            logits = normal(1, 40, 1.0)
            assert native.load(logits)
            logits[39] = bad
            assert not native.load(logits)
            with pytest.raises(ValueError, match="no row of finite logits"):
                native.score(0, 0)


def test_nothing_left_is_none() -> None:
    params = SamplingParams(min_tokens=1, stop_token_ids=(0, 1))
    assert agree(np.asarray([1, 2], np.float32), Join(SeqId(0), 0, params, 0, 0, 1), 1) is None


def test_wrong_arguments_name_value_and_limit() -> None:
    native = _native.Sampler(_native.targets()[0], 8)
    with pytest.raises(ValueError, match="no row of finite logits"):
        native.sample(join_of(SamplingParams(), [], 0), 0, None)
    with pytest.raises(ValueError, match="the row has 9 logits but the vocabulary 8 tokens"):
        native.load(np.zeros(9, np.float32))
    assert native.load(np.zeros(8, np.float32))
    for params, history, text in (
        (SamplingParams(temperature=float("nan")), [], "temperature is nan"),
        (SamplingParams(min_p=1.5), [], "min_p is 1.5"),
        (SamplingParams(logit_bias=((8, 1.0),)), [], "logit_bias holds token 8; ids go from 0 to 7"),
        (SamplingParams(stop_token_ids=(9,)), [], "end_tokens holds token 9"),
        (SamplingParams(presence_penalty=1.0), [3, 11], "history holds token 11"),
    ):
        with pytest.raises(ValueError, match=text):
            native.sample(join_of(params, history, 0), 2, None)
    with pytest.raises(ValueError, match="the mask has 0 bytes but the vocabulary needs 1"):
        native.sample(join_of(SamplingParams(), [], 0), 0, b"")
    with pytest.raises(ValueError, match="token is 8 but must be between 0 and 7"):
        native.score(8, 0)
    with pytest.raises(ValueError, match="target is sparc"):
        _native.Sampler("sparc", 8)
