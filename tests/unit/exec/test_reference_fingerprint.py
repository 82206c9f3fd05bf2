"""The fingerprint: complete, readable, and another one wherever the numbers may be."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from numpy.lib.introspect import opt_func_info

from plait.exec.reference import fingerprint as parts
from plait.exec.reference.fingerprint import fingerprint

WEIGHTS = "0123456789abcdef"
PRINT = f"from plait.exec.reference.fingerprint import fingerprint; print(fingerprint({WEIGHTS!r}))"


def elsewhere(**environment: str) -> str:
    """The fingerprint of another process. NumPy warns where a feature that is to be ignored is not there anyway."""
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{PRINT}"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_it_names_the_revision_the_numbers_numpy_the_blas_and_the_model() -> None:
    found = fingerprint(WEIGHTS)
    assert re.fullmatch(r"[A-Za-z0-9._+-]+", found)
    assert found.startswith(f"reference-{parts.plait_version()}-r{parts.NUMERICS}-f32-numpy{np.__version__}-")
    assert found.endswith("-0123456789abcdef")
    assert f"-{parts.simd()}-{parts.blas()}-" in found
    assert any(character.isdigit() for character in parts.blas())


def test_the_same_machine_gives_the_same_one_to_every_process() -> None:
    assert elsewhere() == fingerprint(WEIGHTS)


def test_another_model_and_the_same_rounded_have_another_one() -> None:
    assert fingerprint("f" * 16) != fingerprint(WEIGHTS)
    assert fingerprint(f"{WEIGHTS}+int8").endswith(f"-{WEIGHTS}+int8")


def test_our_own_arithmetic_has_a_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(WEIGHTS)
    monkeypatch.setattr(parts, "NUMERICS", parts.NUMERICS + 1)
    assert fingerprint(WEIGHTS) != before


@pytest.mark.skipif("openblas" not in parts.blas(), reason="only OpenBLAS can be told which kernels to use")
def test_other_kernels_of_the_blas_give_another_one() -> None:
    kernels = "Prescott" if "x86" in parts.simd() else "ARMV8"
    assert elsewhere(OPENBLAS_CORETYPE=kernels) != fingerprint(WEIGHTS)


def test_other_instructions_in_numpy_give_another_one() -> None:
    current = opt_func_info("^exp$", "float32")["exp"]["ff"]["current"]
    if current.startswith("baseline"):
        pytest.skip("NumPy uses nothing here that it could do without")
    chosen = parts.simd().split("+")[0].upper()
    found = elsewhere(NPY_DISABLE_CPU_FEATURES=chosen)
    assert found != fingerprint(WEIGHTS)
    assert chosen.lower() not in found


def test_a_blas_that_cannot_be_looked_at_is_named_by_what_numpy_was_built_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "threadpool_info", list)
    assert re.fullmatch(r"[a-z0-9_]+[0-9.]*-[a-z0-9_]+", parts.blas())


def test_of_several_blas_the_one_that_came_with_numpy_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def library(path: str, version: str) -> dict[str, str | None]:
        return {"user_api": "blas", "internal_api": "openblas", "filepath": path, "version": version}

    own = library("/env/site-packages/numpy.libs/libopenblas.so", "1.2") | {"architecture": "Zen"}
    other, threads = library("/env/site-packages/scipy.libs/libopenblas.so", "1.1"), {"user_api": "openmp"}
    monkeypatch.setattr(parts, "threadpool_info", lambda: [threads, other, own])
    assert parts.blas() == "openblas1.2-zen"
    monkeypatch.setattr(parts, "threadpool_info", lambda: [threads, other])
    assert parts.blas() == "openblas1.1"
