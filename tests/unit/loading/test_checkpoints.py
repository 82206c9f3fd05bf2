"""Loading model directories: the same model as from GGUF, whatever numbers it is stored in, under a name of its own."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.tiny_checkpoint import safetensors_bytes, tiny_tensors, write_json, write_tiny_checkpoint
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.weights.gguf_parts import write_parts

from plait.config.engine_options import EngineOptions
from plait.core.errors import ModelError
from plait.loading import LoadedModel, load_model
from plait.weights.formats import BF16, F16, F32, INT8, Q4_1


def loaded(path: Path, **options: object) -> LoadedModel:
    return load_model(EngineOptions(model=str(path), **options), lambda done, total: None, datetime.now)  # type: ignore[arg-type]


def test_a_directory_is_the_same_model_as_the_gguf_file(tmp_path: Path) -> None:
    ours = loaded(write_tiny_checkpoint(tmp_path / "tiny", shards=2))
    theirs = loaded(write_tiny_model(tmp_path / "tiny.gguf"))
    assert (ours.name, ours.config, ours.program) == ("tiny", theirs.config, theirs.program)
    assert list(ours.weights) == list(theirs.weights)
    for name, tensor in ours.weights.items():
        np.testing.assert_array_equal(tensor.dequantize(), theirs.weights[name].dequantize())
    assert ours.template is not None
    assert ours.tokenizer.encode("hi<|end|>", add_special=True) == theirs.tokenizer.encode(
        "hi<|end|>", add_special=True
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("dtype", "kept"), [("F32", F32), ("F16", F16), ("BF16", BF16)])
def test_products_of_every_type_can_be_rounded(tmp_path: Path, dtype: str, kept: object, tied: bool) -> None:
    directory = write_tiny_checkpoint(tmp_path / "tiny", dtype=dtype, config={"tie_word_embeddings": tied})
    if not tied:
        tensors = {**tiny_tensors(), "lm_head.weight": tiny_tensors()["model.embed_tokens.weight"][::-1].copy()}
        (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors, dtype))
    before = loaded(directory)
    for quantize, format_ in (("int8", INT8), ("int4", Q4_1)):
        after = loaded(directory, quantize=quantize)
        assert after.weights["embed"].format is kept
        assert (after.weights["head"].format, after.weights["layers.0.q"].format) == (INT8, format_)
        for name, source in (("head", "embed" if tied else "head"), ("layers.1.down", "layers.1.down")):
            exact = before.weights[source].dequantize()
            error = np.linalg.norm(after.weights[name].dequantize() - exact) / np.linalg.norm(exact)
            assert 0 < error < (0.01 if name == "head" or quantize == "int8" else 0.08)
        assert after.weights.identity == f"{before.weights.sha256}+{quantize}"


def test_whatever_answers_depend_on_is_part_of_the_identity(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path / "tiny", shards=2)
    seen = [loaded(directory).weights.identity]
    changes = {
        "config.json": ("rope_theta", 5000.0),
        "tokenizer_config.json": ("chat_template", "{{ messages }}"),
        "generation_config.json": ("eos_token_id", [257, 258]),
    }
    for name, (key, value) in changes.items():
        write_json(directory / name, {**json.loads((directory / name).read_text()), key: value})
        seen.append(loaded(directory).weights.identity)
    shard = directory / "model-00002-of-00002.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    seen.append(loaded(directory).weights.identity)
    assert len(set(seen)) == len(seen)
    (directory / "README.md").write_text("read me")
    assert loaded(directory).weights.identity == seen[-1]
    assert len(seen[0]) == 64


def test_generation_ends_where_any_file_says_and_samples_as_the_user_says(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path / "tiny")
    write_json(directory / "generation_config.json", {"eos_token_id": [258, 257], "temperature": 0.1, "top_k": 1})
    assert set(loaded(directory).tokenizer.eos_ids) == {257, 258}


def test_rows_behind_the_last_token_are_padding(tmp_path: Path) -> None:
    config = loaded(write_tiny_checkpoint(tmp_path / "tiny", table_rows=320)).config
    assert (config.vocab_size, config.padding_rows) == (262, 58)


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    own = {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    directory = write_tiny_checkpoint(tmp_path / "known", config=own)
    (directory / "modeling.py").write_text("raise SystemExit('run')")
    # Of an architecture that is supported anyway, the code is not needed.
    assert loaded(directory).config.family == "llama"
    directory = write_tiny_checkpoint(
        tmp_path / "unknown", config={**own, "model_type": "mine", "architectures": ["M"]}
    )
    with pytest.raises(ModelError, match=r"model_type 'mine' is known only to the Python code .*no trust_remote_code"):
        loaded(directory)


def test_a_split_gguf_model_is_one_whichever_part_is_given(tmp_path: Path) -> None:
    whole, paths = loaded(write_tiny_model(tmp_path / "tiny.gguf")), write_parts(tmp_path, 3)
    models = [loaded(path) for path in paths]
    assert len({model.weights.identity for model in models} | {whole.weights.identity}) == 2
    assert [(model.config, list(model.weights)) for model in models] == [(whole.config, list(whole.weights))] * 3
