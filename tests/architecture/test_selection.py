"""Which tests run when nothing is asked for: everything but what is marked as needing more."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARKERS = ("model", "models", "torch", "gpu", "ray", "slow")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with our own configuration and one passing test for each marker, and one without any."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    marked = [f"@pytest.mark.{marker}\ndef test_{marker}():\n    assert True\n" for marker in MARKERS]
    source = "\n".join(["import pytest", "", "def test_plain():", "    assert True", "", *marked])
    (folder / "tests" / "test_marked.py").write_text(source, encoding="utf-8")
    return folder


def run_tests(project: Path, *options: str) -> list[str]:
    """The names of the tests that passed or were skipped, as `name outcome`."""
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", *options]
    result = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    lines = [line for line in result.stdout.splitlines() if "::test_" in line]
    return [" ".join(line.split("::test_")[1].split()[:2]) for line in lines if "SKIPPED [" not in line]


TORCH = "torch PASSED" if find_spec("torch") and find_spec("transformers") else "torch SKIPPED"


def test_by_default_only_what_this_machine_can_do_quickly_runs(project: Path) -> None:
    assert run_tests(project) == ["plain PASSED", "model PASSED", TORCH]


def test_an_option_adds_its_marker(project: Path) -> None:
    assert run_tests(project, "--run-slow", "--run-models") == [
        "plain PASSED",
        "model PASSED",
        "models PASSED",
        TORCH,
        "slow PASSED",
    ]


def test_a_marker_expression_asks_for_what_it_names(project: Path) -> None:
    assert run_tests(project, "-m", "gpu or ray") == ["gpu PASSED", "ray PASSED"]


def test_an_expression_that_excludes_a_marker_does_not_ask_for_others(project: Path) -> None:
    assert run_tests(project, "-m", "not model") == ["plain PASSED", TORCH]


def test_a_marker_that_nobody_declared_is_an_error(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project, tmp_path / "copy")
    path = tmp_path / "copy" / "tests" / "test_typo.py"
    path.write_text("import pytest\n\n@pytest.mark.slwo\ndef test_x():\n    assert True\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=tmp_path / "copy", capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "'slwo' not found in `markers`" in result.stdout
