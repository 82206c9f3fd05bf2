"""Strange model directories, as fuzzing found them: none takes more memory than it is worth or speaks to the user."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.text.directories import described

from plait.core.errors import ModelError
from plait.text.hf import tokenizer_from_hf

Document = dict[str, Any]


def trouble(folder: Path, change: Callable[[Document], object], config: object = None) -> str:
    document = json.loads(described("gpt2"))
    change(document)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        tokenizer_from_hf(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("charsmap", [None, 1, ["AAAA"], {}, "", "AAAA", "no base64", "////"])
def test_a_charsmap_that_would_make_the_library_panic_is_refused_in_silence(
    charsmap: object, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    part: Document = {"type": "Precompiled"} | ({} if charsmap is None else {"precompiled_charsmap": charsmap})
    nested = {"type": "Sequence", "normalizers": [{"type": "NFC"}, part]}
    for normalizer in (part, nested):
        assert "precompiled_charsmap cannot be used: " in trouble(
            tmp_path, lambda document, one=normalizer: document.update(normalizer=one)
        )
    assert capfd.readouterr() == ("", "")


def test_one_token_with_a_high_id_does_not_take_the_memory_of_millions(tmp_path: Path) -> None:
    tracemalloc.start()
    said = trouble(tmp_path, lambda document: document["model"]["vocab"].update({"far away": 3_999_999}))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "tokens have ids up to 3,999,999 (with the rows that config.json says); the limit for so many is" in said
    assert peak < 16 << 20


def test_neither_do_rows_that_a_config_promises(tmp_path: Path) -> None:
    said = trouble(tmp_path, lambda document: None, config={"vocab_size": 4_000_000})
    assert "ids up to 3,999,999" in said


def test_a_part_that_the_library_does_not_know_is_its_error_on_one_line(tmp_path: Path) -> None:
    said = trouble(tmp_path, lambda document: document.update(normalizer={"type": "Unheard of"}))
    assert "the tokenizer cannot be built: " in said


def test_a_small_file_is_read_in_little_memory(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[]")
    tracemalloc.start()
    with pytest.raises(ModelError):
        tokenizer_from_hf(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
