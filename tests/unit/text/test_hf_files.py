"""What the files of a model directory may say, and how what they may not say is refused."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.text.directories import described, write_directory

from plait.core.errors import ModelError, RequestError
from plait.text import hf_files
from plait.text.hf import tokenizer_from_hf
from plait.text.hf_files import read_config, read_text
from plait.text.tokenizer import Tokenizer

Document = dict[str, Any]
Change = Callable[[Document], object]


def changed(directory: Path, change: Change, kind: str = "gpt2", **files: object) -> Tokenizer:
    """The tokenizer of a directory whose tokenizer.json is changed and which has more files."""
    document = json.loads(described(kind))
    change(document)
    write_directory(directory, kind)
    (directory / "tokenizer.json").write_text(json.dumps(document))
    for name, value in files.items():
        (directory / f"{name}.json").write_text(json.dumps(value))
    return tokenizer_from_hf(directory)


def nothing(document: Document) -> None:
    """No change."""


def put(*path: str | int, value: object) -> Change:
    def change(document: Document) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda document: document.pop("model"), "model is missing"),
        (put("model", value=[]), "model is missing"),
        (put("model", "type", value="CharLevel"), "model is of type 'CharLevel'; supported: BPE, Unigram, WordLevel"),
        (put("model", "vocab", value={}), "model.vocab is missing or empty"),
        (put("model", "vocab", value={"a": -1}), "model.vocab has an id outside 0 to 3,999,999"),
        (put("model", "vocab", value={"a": 1 << 40}), "model.vocab has an id outside"),
        (put("model", "vocab", value={"a": "b"}), "model.vocab is not a table of texts and ids"),
        (put("model", "vocab", value={"a": True}), "model.vocab is not a table of texts and ids"),
        (put("model", "vocab", "qqq", value=7), "both have the id 7"),
        (put("model", "merges", value=["a"]), "model.merges is not a list of pairs"),
        (put("model", "merges", value=[["a", "b", "c"]]), "model.merges is not a list of pairs"),
        (put("model", "merges", value=[["a", True]]), "model.merges holds something other than texts"),
        (put("model", "continuing_subword_prefix", value="é"), "a continuing_subword_prefix, which is not supported"),
        (put("model", "merges", value=[["a", "qqq"]]), "the tokenizer cannot be built"),
        (put("model", "merges", value=7), "model.merges is missing"),
        (put("added_tokens", value={}), "added_tokens is a dict but must be a list"),
        (put("added_tokens", value=[7]), "added_tokens holds 7, not a token"),
        (put("added_tokens", value=[{"id": 1, "content": ""}]), "not a token"),
        (put("added_tokens", value=[{"id": -1, "content": "<x>"}]), "gives '<x>' the id -1"),
        (put("added_tokens", value=[{"id": 1 << 40, "content": "<x>"}]), "gives '<x>' the id 1099511627776"),
        (put("added_tokens", value=[{"id": 7, "content": "<x>"}]), "both have the id 7"),
        (put("normalizer", value={"type": "Upside"}), "the tokenizer cannot be built"),
        (put("normalizer", value={"type": "Prepend", "prepend": "x" * 65}), "has a prepend of 65 characters, above 64"),
        (
            put("normalizer", value={"type": "Replace", "pattern": {"Regex": "("}, "content": ""}),
            "the tokenizer cannot be built",
        ),
        # The library panics on this one.
        (
            put("normalizer", value={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
            "precompiled_charsmap cannot be used: it is empty",
        ),
        (put("pre_tokenizer", value={"type": "Upside"}), "the tokenizer cannot be built"),
        (put("decoder", value={"type": "CTC"}), "decoder is of type 'CTC'; supported: ByteFallback, ByteLevel"),
        (put("decoder", value=7), "decoder is of type None"),
        (put("decoder", value={"type": "Sequence", "decoders": 7}), "without a flat list of decoders"),
        (
            put("decoder", value={"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 9}),
            "decoder replaces",
        ),
        (put("decoder", value={"type": "Strip", "content": " ", "start": 3, "stop": 0}), "decoder strips 3 and 0"),
        (put("decoder", value={"type": "Metaspace", "replacement": "xx"}), "has the replacement 'xx'"),
        (put("decoder", value={"type": "WordPiece", "prefix": ""}), "has the prefix ''"),
        (put("post_processor", value={"type": "Upside"}), "post_processor is of type 'Upside'; supported: "),
        (put("post_processor", "single", value=[]), "does not name it once"),
        (put("post_processor", "special_tokens", value={}), "gives no ids for '<s>'"),
        (put("post_processor", "special_tokens", "<s>", "ids", value=[9_999]), "adds the token 9999"),
        (put("post_processor", value={"type": "BertProcessing", "sep": 7}), "post_processor has cls None"),
        (
            put("post_processor", value={"type": "Sequence", "processors": [{"type": "Sequence"}]}),
            "a sequence of sequences",
        ),
    ],
)
def test_a_bad_tokenizer_is_refused_in_one_line(tmp_path: Path, change: Change, words: str) -> None:
    with pytest.raises(ModelError) as refusal:
        changed(tmp_path, change)
    assert words in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 600


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tokenizer_config": []}, "tokenizer_config.json holds a list but must hold an object"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {"content": "<x>"}}}}, "gives '<x>' the id None"),
        ({"tokenizer_config": {"added_tokens_decoder": {"7": {"content": "<x>"}}}}, "both have the id 7"),
        ({"tokenizer_config": {"added_tokens_decoder": {"7": 3}}}, "added_tokens_decoder holds 3, not a token"),
        ({"added_tokens": {"<x>": 7}}, "both have the id 7"),
        ({"generation_config": {"eos_token_id": 99_999}}, "generation_config.json: eos_token_id is 99999"),
        ({"generation_config": {"eos_token_id": [2, "x"]}}, "generation_config.json: eos_token_id is [2, 'x']"),
        ({"config": {"eos_token_id": -1}}, "config.json: eos_token_id is -1"),
    ],
)
def test_a_bad_file_beside_it_is_refused_in_one_line(tmp_path: Path, files: dict[str, object], words: str) -> None:
    with pytest.raises(ModelError) as refusal:
        changed(tmp_path, nothing, **files)
    assert words in str(refusal.value)


def test_named_and_listed_tokens_are_control_tokens(tmp_path: Path) -> None:
    config = {
        "eos_token": {"content": "<|im_end|>", "lstrip": True},
        "added_tokens_decoder": {"4": {"content": "<|im_end|>", "rstrip": True}},
        "pad_token": "</think>",
        "additional_special_tokens": ["<think>", "the"],
    }
    tokenizer = changed(tmp_path, nothing, tokenizer_config=config, special_tokens_map={"bos_token": "<s>"})
    assert {"</think>", "<|im_end|>", "<s>", "the"} <= tokenizer.control.ids.keys()
    # It was an added token that is shown before, and a list does not change that.
    assert "<think>" not in tokenizer.control.ids
    assert tokenizer.control.ids["the"] not in tokenizer.encode("the", add_special=False)
    assert tokenizer.named_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "</think>"}
    end = tokenizer.control.ids["<|im_end|>"]
    # Its flags are those of the table of added tokens.
    assert tokenizer.encode("<|im_end|> \n", add_special=False, parse_special=True) == [end]
    before = tokenizer.encode("a ", add_special=False)
    assert tokenizer.encode("a <|im_end|>", add_special=False, parse_special=True) == [*before, end]
    assert tokenizer.encode_cut(tokenizer.control.split("<|im_end|> \n")) == [end]
    assert tokenizer.eos_ids[0] == end


def test_generations_end_at_every_token_that_some_file_names(tmp_path: Path) -> None:
    files = {"generation_config": {"eos_token_id": [5, 2]}, "config": {"eos_token_id": 6}}
    tokenizer = changed(tmp_path, nothing, **files)
    assert tokenizer.eos_ids == (2, 5, 6, tokenizer.control.ids["<|im_end|>"])
    assert tokenizer.warnings == ()


def test_a_model_without_an_end_is_reported(tmp_path: Path) -> None:
    def forget(document: Document) -> None:
        document["added_tokens"] = [token for token in document["added_tokens"] if "end" not in token["content"]]

    tokenizer = changed(tmp_path, forget, tokenizer_config={})
    assert tokenizer.eos_ids == ()
    assert "no file names a token that ends an answer" in tokenizer.warnings[0]


def test_the_tokenizers_own_post_processor_counts_and_not_the_flags(tmp_path: Path) -> None:
    def framed(**config: object) -> list[int]:
        named = {"bos_token": "<s>", "eos_token": "</s>", **config}
        return changed(tmp_path, nothing, tokenizer_config=named).encode("", add_special=True)

    assert framed() == framed(add_bos_token=False) == framed(add_bos_token=True, add_eos_token=False) == [1, 2]


@pytest.mark.parametrize(
    "processor",
    [
        {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True},
        {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]},
    ],
)
def test_older_post_processors_frame_too(tmp_path: Path, processor: object) -> None:
    inner = [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, processor]
    for value in (processor, {"type": "Sequence", "processors": inner}):
        assert changed(tmp_path, put("post_processor", value=value)).encode("", add_special=True) == [1, 2]


def test_a_tokenizer_without_a_post_processor_frames_nothing(tmp_path: Path) -> None:
    assert changed(tmp_path, put("post_processor", value=None)).encode("", add_special=True) == []


def test_ids_up_to_the_models_last_row_decode_to_nothing(tmp_path: Path) -> None:
    known = changed(tmp_path, nothing).vocab_size
    for config in ({"vocab_size": known + 50}, {"text_config": {"vocab_size": known + 50}}):
        tokenizer = changed(tmp_path, nothing, config=config)
        assert tokenizer.vocab_size == known + 50
        assert tokenizer.decode([known + 49]) == ""


def test_added_tokens_without_a_row_are_left_out_and_reported(tmp_path: Path) -> None:
    known = changed(tmp_path, nothing).vocab_size
    tokenizer = changed(tmp_path, nothing, config={"vocab_size": known - 1})
    assert tokenizer.vocab_size == known - 1
    assert "the model has no row for the tokens Straße" in tokenizer.warnings[0]


def test_files_from_before_types_were_named_are_read(tmp_path: Path) -> None:
    for kind in ("gpt2", "unigram", "wordpiece", "words"):
        wanted = changed(tmp_path, nothing, kind).encode("the cache", add_special=True)
        assert changed(tmp_path, lambda document: document["model"].pop("type"), kind).encode(
            "the cache", add_special=True
        ) == (wanted)


def test_merges_written_as_one_string_are_read(tmp_path: Path) -> None:
    def older(document: Document) -> None:
        document["model"]["merges"] = [" ".join(merge) for merge in document["model"]["merges"]]

    for kind in ("gpt2", "mistral"):
        wanted = changed(tmp_path, nothing, kind).encode("the cache", add_special=True)
        assert changed(tmp_path, older, kind).encode("the cache", add_special=True) == wanted


def test_a_directory_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer.json; have transformers write one"):
        tokenizer_from_hf(tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(ModelError, match=r"has tekken.json, a tokenizer of mistral-common, but no tokenizer.json"):
        tokenizer_from_hf(tmp_path)


def test_a_pattern_that_never_comes_to_an_end_refuses_the_text(tmp_path: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(b+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer = changed(tmp_path, put("pre_tokenizer", value=split))
    with pytest.raises(RequestError, match="cannot cut this text: Onig: Regex search error"):
        tokenizer.encode("b" * 40 + "a", add_special=False)
    assert tokenizer.encode("a", add_special=False)


def test_files_above_their_limit_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_files, "MAX_TOKENIZER_BYTES", 1024)
    write_directory(tmp_path, "gpt2")
    with pytest.raises(ModelError, match=r"tokenizer.json has more than 0 MiB, too large"):
        tokenizer_from_hf(tmp_path)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    (tmp_path / "config.json").mkdir()
    for name in ("tokenizer.json", "config.json"):
        with pytest.raises(ModelError, match=f"{name} is not a file"):
            read_text(tmp_path / name, 100)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"a": ' * 100_000, "is not valid JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "is not valid JSON"),
        (b"\xff{}", "is not UTF-8 text"),
        (b"7", "holds a int but must hold an object"),
        (b'{"a": "\\ud83d"}', "holds a string that is not valid Unicode"),
    ],
)
def test_files_that_are_no_json_objects_are_refused_in_one_line(tmp_path: Path, raw: bytes, words: str) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_bytes(raw)
    with pytest.raises(ModelError) as refusal:
        read_config(path)
    assert words in str(refusal.value)
    if raw[:1] != b"\xff":
        (tmp_path / "tokenizer.json").write_bytes(raw)
        path.write_text("{}")
        with pytest.raises(ModelError) as refusal:
            tokenizer_from_hf(tmp_path)
        assert "\n" not in str(refusal.value)


def test_numbers_beyond_every_width_are_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1000000000000000019884624838656}')
    assert read_config(tmp_path / "tokenizer_config.json")["model_max_length"] == 10**30 + 19884624838656


def test_damaged_tokenizers_are_read_or_refused(tmp_path: Path) -> None:
    """Anything else would be a traceback for the user; the library's panics are among what must not leave."""
    rng = random.Random(14)
    for kind in ("gpt2", "mistral", "unigram", "wordpiece"):
        write_directory(tmp_path, kind)
        whole = described(kind).encode()
        for _ in range(40):
            damaged = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                damaged[rng.randrange(len(damaged))] = rng.choice(b'{}[]",:0129truenl ')
            (tmp_path / "tokenizer.json").write_bytes(
                damaged[: rng.choice((len(damaged), rng.randrange(len(damaged))))]
            )
            try:
                tokenizer_from_hf(tmp_path).encode("the <think> cache", add_special=True)
            except (ModelError, RequestError) as refusal:
                found = str(refusal)
                if "\n" in found:
                    pytest.fail(found)
