"""LM Studio's store: folders by publisher and repository, and nothing outside of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.core.errors import ModelError
from plait.weights.found import ModelFile
from plait.weights.lmstudio import find_lmstudio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "org" / "tiny-GGUF"
    folder.mkdir(parents=True)
    for name in ("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf", "mmproj-tiny.gguf"):
        (folder / name).touch()
    return tmp_path / "models"


def refusal(name: str, root: Path) -> str:
    with pytest.raises(ModelError) as caught:
        find_lmstudio(name, [root.parent / "nowhere", root])
    return str(caught.value)


def test_a_file_or_a_quantisation_says_which_model_is_meant(root: Path) -> None:
    path = root / "org" / "tiny-GGUF" / "tiny-Q8_0.gguf"
    assert find_lmstudio("org/tiny-GGUF/tiny-Q8_0.gguf", [root]) == ModelFile(path, "tiny-Q8_0", None)
    assert find_lmstudio("org/tiny-GGUF:q8_0", [root]) == ModelFile(path, "org/tiny-GGUF", None)
    folder = path.parent
    assert (
        refusal("org/tiny-GGUF", root)
        == f"{folder}: 2 models: Q4_K_M, Q8_0; say which, such as {folder}/tiny-Q4_K_M.gguf"
    )
    path.unlink()
    assert find_lmstudio("org/tiny-GGUF", [root]).path.name == "tiny-Q4_K_M.gguf"


def test_an_unknown_name_is_answered_with_what_there_is(root: Path) -> None:
    assert refusal("org/other", root) == "LM Studio's store has no org/other; there are org/tiny-GGUF"
    assert "there is no model in " in refusal("org/other", root / "empty")


def test_no_name_leads_out_of_the_store(root: Path) -> None:
    for name in ("../../x", "org/..", "/etc/passwd", "org", "a/b/c/d", "org/.hidden"):
        assert refusal(name, root).startswith(f"lmstudio:{name} is no model of LM Studio")
    (root / "org" / "out").symlink_to("/")
    assert "leads out of LM Studio's store" in refusal("org/out", root)
