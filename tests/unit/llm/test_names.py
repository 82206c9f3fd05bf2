"""The names of the Python API are in `plait`, and importing `plait` alone loads none of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import plait


@pytest.mark.parametrize("name", plait.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(plait, name) is not None
    assert name in dir(plait)
    assert any(name in names for names in plait._HOMES.values())


def test_another_name_is_an_ordinary_mistake() -> None:
    with pytest.raises(AttributeError, match="module 'plait' has no attribute 'LMM'"):
        _ = plait.LMM  # type: ignore[attr-defined]


def test_an_import_loads_nothing() -> None:
    program = "import sys, plait; print([name for name in sys.modules if name.startswith(('plait.', 'numpy', 'tqdm'))])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_sampling_parameters_need_no_model_and_no_numbers() -> None:
    program = "import sys; from plait import SamplingParams; SamplingParams(n=2); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
