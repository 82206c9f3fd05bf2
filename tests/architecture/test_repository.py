"""What the repository says about machines and registries: nothing. And that its pins agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("src", "csrc", "tests", "docs", "scripts", "examples", "bench", ".ci")

# Spelled in pieces, so that this file is read like every other.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.~-])/(?:" + "home|work|farm|root|Users" + r")/\w"),
    "a folder outside the checkout": re.compile(r"\.\./" + "shared"),
    "a package registry's host": re.compile(
        r"\b(?:" + "|".join(("pypi", "pythonhosted", "npmjs", "crates", "anaconda", "debian")) + r")\.(?:org|com|io)\b"
    ),
}


def text_files() -> list[Path]:
    """Every text file of the repository's own folders and of its top level."""
    paths = [path for path in sorted(ROOT.iterdir()) if path.is_file()]
    for place in PLACES:
        paths += [path for path in sorted((ROOT / place).rglob("*")) if path.is_file()]
    return [path for path in paths if "__pycache__" not in path.parts and path.suffix not in (".npz", ".so", ".gguf")]


def forbidden_words(text: str) -> list[str]:
    return [f"{meaning}: {match.group()}" for meaning, words in FORBIDDEN.items() if (match := words.search(text))]


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in text_files()
        for word in forbidden_words(path.read_bytes().decode("utf-8", errors="replace"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["see /ho" + "me/ada/model", "open('/wo" + "rk/x')", "https://py" + "pi.org/simple", "cd ../sha" + "red"],
)
def test_a_forbidden_word_is_caught(text: str) -> None:
    assert len(forbidden_words(text)) == 1


@pytest.mark.parametrize("text", ["src/work/queue", "~/.cache/plait", "a/home/b", "${HOME}/x", "happy.org", "/usr/lib"])
def test_ordinary_text_passes(text: str) -> None:
    assert forbidden_words(text) == []


def requirement_lines(name: str) -> list[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line.split(";")[0].strip(" \\") for line in lines if re.match(r"\w", line)]


def test_build_tools_are_pinned_alike_in_both_places() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(pyproject["build-system"]["requires"]) <= set(requirement_lines("requirements-build.in"))


def test_build_tools_are_locked_as_pinned() -> None:
    assert set(requirement_lines("requirements-build.in")) <= set(requirement_lines("requirements-build.lock"))


def test_the_tests_run_on_the_very_versions_that_plait_runs_on() -> None:
    assert set(requirement_lines("requirements.lock")) <= set(requirement_lines("requirements-dev.lock"))


def test_every_dependency_is_locked_and_torch_is_none_of_them() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = {re.split(r"[<>=~!\[]", line)[0].lower() for line in pyproject["project"]["dependencies"]}
    locked = {line.split("==")[0] for line in requirement_lines("requirements.lock")}
    assert declared <= locked
    assert "torch" not in locked


@pytest.mark.parametrize(
    "name", ["requirements.lock", "requirements-dev.lock", "requirements-build.lock", "requirements-release.lock"]
)
def test_every_locked_version_is_exact_and_has_hashes(name: str) -> None:
    blocks = re.split(r"\n(?=\w)", (ROOT / name).read_text(encoding="utf-8").strip())
    assert len(blocks) >= 4
    for block in blocks:
        assert re.match(r"[\w.-]+==[\w.]+", block)
        assert "--hash=sha256:" in block


# Python names its macros like functions and ends them in capitals.
MACRO_OF_PYTHON = re.compile(r"\bPy[A-Za-z]+_(?:GET|SET|AS|READ|IS)_[A-Z_]+\b|\b_Py\w+\b|\bPyUnicode_READ\b")


def test_bindings_call_only_what_every_later_python_has() -> None:
    """The macros reach into objects, whose shape changes; one wheel serves every Python from 3.12 on without them."""
    assert MACRO_OF_PYTHON.search("PyTuple_SET_ITEM(a, b, c)")
    paths = [*ROOT.glob("csrc/bindings/*"), *ROOT.glob("csrc/**/*_bindings.cc")]
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in paths
        for match in MACRO_OF_PYTHON.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
