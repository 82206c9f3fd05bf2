"""Models in GGUF: parts become one, and what is no model is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.tiny_model import tiny_arrays, write_tiny_model
from tests.unit.weights.gguf_parts import write_part, write_parts

from plait.core.errors import ModelError
from plait.weights.gguf import read_gguf
from plait.weights.gguf_model import read_gguf_model


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_gguf_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_any_part_stands_for_the_whole_model(tmp_path: Path) -> None:
    whole = read_gguf(write_tiny_model(tmp_path / "tiny.gguf"))
    paths = write_parts(tmp_path)
    for path in paths:
        model = read_gguf_model(path)
        assert model.paths == tuple(paths)
        assert model.file.tensors.keys() == whole.tensors.keys()
        for name, tensor in model.file.tensors.items():
            assert tensor.raw().tobytes() == whole.tensors[name].raw().tobytes()
        assert model.file.metadata == whole.metadata
        assert model.file.num_bytes == sum(part.stat().st_size for part in paths)


def test_a_model_of_one_file_is_itself(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny-00001-of-00001.gguf")
    assert read_gguf_model(path).paths == (path,)


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    first, second, third = write_parts(tmp_path)
    third.unlink()
    assert refusal(first) == f"{first}: {third.name} is missing, one of 3 parts; fetch it into the same folder"
    second.rename(third)
    write_parts(tmp_path / "..", 1)[0].rename(second)
    assert "says that it is part 0 of 1 (counted from 0), not 1 of 3" in refusal(first)
    write_parts(tmp_path, number=0)
    assert "says that it is part 0 of 3 (counted from 0), not 1 of 3" in refusal(first)
    write_parts(tmp_path, total=7)
    assert f"{first}: the parts hold 20 tensors, not 7; fetch all parts again" in refusal(second)
    array = tiny_arrays()["output_norm"]
    for number, path in enumerate((first, second, third)):
        write_part(path, number, 3, {"same": array}, 3)
    assert f"{second}: tensor 'same' is in another part too" in refusal(first)


def test_a_part_under_another_name_says_how_parts_are_called(tmp_path: Path) -> None:
    path = write_parts(tmp_path)[0].rename(tmp_path / "tiny.gguf")
    assert "one of 3 parts of a split model; parts are found when they are called NAME-00001-of-00003.gguf" in refusal(
        path
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("adapter", "a LoRA adapter, not a model; merge it into its base model"),
        ("mmproj", "a projector for images, not a model; give the language model beside it"),
        ("imatrix", "statistics for a quantiser, not a model"),
    ],
)
def test_what_is_no_model_is_refused_by_name(tmp_path: Path, kind: str, expected: str) -> None:
    path = write_part(tmp_path / "x.gguf", 0, 1, {"a": tiny_arrays()["output_norm"]}, 1, kind=kind)
    assert refusal(path).startswith(f"{path}: {expected}")
