"""The native module: it says how it was built, and its random numbers are those of the Python definition."""

from __future__ import annotations

import random
from importlib.metadata import version

import numpy as np
import pytest

from plait.core.random import uniform

# A module that is there and does not load is a failure, not a reason to skip.
_native = pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

MAX32 = 2**32 - 1
MAX64 = 2**64 - 1


def test_native_and_python_agree_bit_for_bit_on_thousands_of_keys() -> None:
    generator = random.Random(20110511)
    for _ in range(3000):
        # Widths vary, so that small and huge values, and both halves of the 64-bit ones, all occur.
        seed = generator.getrandbits(generator.randint(1, 64))
        choice = generator.getrandbits(generator.randint(1, 32))
        position = generator.getrandbits(generator.randint(1, 64))
        expected = [uniform(seed, choice, position, draw) for draw in range(2)]
        assert _native.philox_uniform(seed, choice, position, 2).tolist() == expected


@pytest.mark.parametrize("key", [(0, 0, 0), (MAX64, MAX32, MAX64), (2**63, 2**31, 2**32)])
def test_native_and_python_agree_at_the_edges(key: tuple[int, int, int]) -> None:
    assert _native.philox_uniform(*key, 100).tolist() == [uniform(*key, draw) for draw in range(100)]


def test_more_draws_extend_the_fewer() -> None:
    many = _native.philox_uniform(1, 2, 3, 1000)
    assert many.dtype == np.float64
    assert many.shape == (1000,)
    np.testing.assert_array_equal(_native.philox_uniform(1, 2, 3, 10), many[:10])


def test_no_draws_are_an_empty_array() -> None:
    assert _native.philox_uniform(0, 0, 0, 0).shape == (0,)


def test_the_array_owns_its_numbers() -> None:
    numbers = _native.philox_uniform(5, 0, 0, 4)
    before = numbers.tolist()
    view = numbers[1:]
    del numbers
    _native.philox_uniform(6, 0, 0, 4)
    assert view.tolist() == before[1:]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, 0, 1), "seed is -1 but must be between 0 and 18446744073709551615"),
        ((MAX64 + 1, 0, 0, 1), "seed is 18446744073709551616 but must be between 0 and 18446744073709551615"),
        ((-(2**70), 0, 0, 1), "seed is -1180591620717411303424 but must be between"),
        ((2**70, 0, 0, 1), "seed is 1180591620717411303424 but must be between"),
        ((0, MAX32 + 1, 0, 1), "choice is 4294967296 but must be between 0 and 4294967295"),
        ((0, 0, -5, 1), "position is -5 but must be between 0 and 18446744073709551615"),
        ((0, 0, 0, 2**24 + 1), "draws is 16777217 but must be between 0 and 16777216"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value_and_limit(arguments: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.philox_uniform(*arguments)


@pytest.mark.parametrize("wrong", [1.5, "7", None])
def test_only_integers_are_taken(wrong: object) -> None:
    with pytest.raises(TypeError):
        _native.philox_uniform(wrong, 0, 0, 1)  # type: ignore[arg-type]


def test_build_info_names_this_version_and_flags_that_keep_the_rounding() -> None:
    info = _native.build_info()
    assert info["version"] == version("plait")
    assert info["compiler"]
    assert info["targets"]
    flags = str(info["flags"]).split()
    assert "-ffp-contract=off" in flags
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations"} & set(flags)
