"""Which executor runs a model: the native one where it can, and a line of why where it is another."""

from __future__ import annotations

import pytest
from tests.unit.exec import test_reference_step as odd
from tests.unit.model.programs import SMOLLM2

from plait.build import ExecutorChoice, choose_executor
from plait.config.engine_options import EngineOptions
from plait.core.errors import ModelError, UsageError
from plait.core.ids import GroupId
from plait.model.builder import ProgramBuilder
from plait.model.cache_type import CacheType
from plait.model.llama import llama_program
from plait.model.ops import Activation, ValueId
from plait.model.program import CacheGroup, GroupKind

LLAMA = llama_program(SMOLLM2)


def convolution(b: ProgramBuilder, x: ValueId) -> ValueId:
    """With an activation behind it that the native executor does not have there."""
    group = b.group(CacheGroup(GroupId(0), "states", GroupKind.STATE, 1, state_parts=(2 * odd.WIDTH,)))
    return b.conv(x, "conv", 3, group, 0, activation=Activation.GELU)


CONVOLUTION = odd.build(convolution)
MISSING = "No module named 'plait._native'"


def options(executor: str = "auto", cache: str = "auto") -> EngineOptions:
    return EngineOptions(executor=executor, kv_cache_dtype=cache)


def test_left_open_it_is_native_with_a_cache_of_halves() -> None:
    assert choose_executor(options(), LLAMA, None) == ExecutorChoice(True, CacheType.F16)
    assert choose_executor(options(cache="int8"), LLAMA, None) == ExecutorChoice(True, CacheType.INT8)
    assert choose_executor(options(cache="f32"), LLAMA, None) == ExecutorChoice(True, CacheType.F32)


def test_the_reference_is_taken_when_it_was_asked_for() -> None:
    assert choose_executor(options("reference"), LLAMA, None) == ExecutorChoice(False, CacheType.F32)


def test_without_the_native_runtime_it_is_the_reference_and_says_why_and_what_to_do() -> None:
    choice = choose_executor(options(), LLAMA, MISSING)
    assert (choice.is_native, choice.cache_type) == (False, CacheType.F32)
    (note,) = choice.notes
    assert MISSING in note
    assert "reinstall with a C++ compiler" in note


def test_a_model_that_it_cannot_carry_out_goes_to_the_reference_and_the_operation_is_named() -> None:
    choice = choose_executor(options(), CONVOLUTION, None)
    assert not choice.is_native
    assert "Conv" in choice.notes[0]


def test_native_when_asked_for_is_native_or_nothing() -> None:
    assert choose_executor(options("native"), LLAMA, None).is_native
    with pytest.raises(UsageError, match=r"--executor native: No module named .* reinstall Plait"):
        choose_executor(options("native"), LLAMA, MISSING)
    with pytest.raises(ModelError, match="needs the operation Conv"):
        choose_executor(options("native"), CONVOLUTION, None)


def test_the_reference_has_no_workers_to_count() -> None:
    with pytest.raises(UsageError, match="--threads is 2 but the reference executor has one; leave it out"):
        choose_executor(EngineOptions(executor="reference", threads=2), LLAMA, None)


def test_the_reference_has_no_instructions_to_choose_from() -> None:
    with pytest.raises(UsageError, match="--instruction-set is avx2 but the reference executor is NumPy"):
        choose_executor(EngineOptions(executor="reference", instruction_set="avx2"), LLAMA, None)


@pytest.mark.parametrize("missing", [None, MISSING])
@pytest.mark.parametrize("numbers", ["f16", "bf16", "int8"])
def test_the_reference_has_no_cache_of_fewer_bits(numbers: str, missing: str | None) -> None:
    with pytest.raises(UsageError, match=f"--kv-cache-dtype is {numbers} but the reference executor keeps f32 only"):
        choose_executor(options("reference" if missing is None else "auto", numbers), LLAMA, missing)
