"""Model directories with tokenizers of every kind, trained here on the repository's own documents.

Each has control tokens, added tokens with every flag, and the `tokenizers` library's own reading of the same file to
compare with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from tests.unit.text.random_texts import awkward_texts
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

CONTROL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<think>", "</think>")
FLAGGED = (
    AddedToken("<left>", lstrip=True, normalized=False),
    AddedToken("<right>", rstrip=True, normalized=False),
    AddedToken("word", single_word=True, normalized=False),
    AddedToken("Straße", normalized=True),
)
SPACE = "▁"
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
LLAMA3_CUTS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@cache
def corpus() -> tuple[str, ...]:
    documents = sorted((Path(__file__).parents[3] / "docs" / "concepts").glob("*.md"))
    plain = [text for text in awkward_texts() if not any(control in text for control in CONTROL)]
    return (*[path.read_text() for path in documents], *plain)


def train_bpe(library: Library, size: int, alphabet: list[str], more: tuple[str, ...] = ()) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*CONTROL, *more], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(corpus(), trainer)


def _byte_level(cuts: pre_tokenizers.PreTokenizer, **model: bool) -> Library:
    library = Library(models.BPE(**model))
    library.pre_tokenizer = cuts
    library.decoder = decoders.ByteLevel()
    train_bpe(library, 900, pre_tokenizers.ByteLevel.alphabet())
    return library


def _gpt2() -> Library:
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def _gpt2_prefixed() -> Library:
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))


def _llama3() -> Library:
    split = pre_tokenizers.Split(Regex(LLAMA3_CUTS), "isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _byte_level(pre_tokenizers.Sequence([split, whole]), ignore_merges=True)


def _qwen() -> Library:
    library = _llama3()
    library.normalizer = normalizers.NFC()
    return library


def _with_bytes() -> Library:
    return Library(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))


def _sentencepiece_decoder(*, strips: bool) -> decoders.Decoder:
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)


def _llama2() -> Library:
    library = _with_bytes()
    library.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    library.decoder = _sentencepiece_decoder(strips=True)
    train_bpe(library, 1300, [], BYTES)
    return library


def _mistral() -> Library:
    library = _with_bytes()
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    library.decoder = _sentencepiece_decoder(strips=True)
    train_bpe(library, 1300, [], BYTES)
    return library


def _gemma() -> Library:
    library = _with_bytes()
    library.normalizer = normalizers.Replace(" ", SPACE)
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    library.decoder = _sentencepiece_decoder(strips=False)
    train_bpe(library, 1300, [], BYTES)
    return library


def _unigram() -> Library:
    library = Library(models.Unigram())
    library.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=600, special_tokens=list(CONTROL), unk_token="<unk>", show_progress=False
    )
    library.train_from_iterator(corpus(), trainer)
    return library


def _wordpiece() -> Library:
    library = Library(models.WordPiece(unk_token="<unk>"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=list(CONTROL), show_progress=False)
    library.train_from_iterator(corpus(), trainer)
    return library


def _words() -> Library:
    library = Library(models.WordLevel(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(vocab_size=300, special_tokens=list(CONTROL), show_progress=False)
    library.train_from_iterator(corpus(), trainer)
    return library


KINDS: Mapping[str, Callable[[], Library]] = {
    "gpt2": _gpt2,
    "gpt2 with a space in front": _gpt2_prefixed,
    "llama3": _llama3,
    "qwen": _qwen,
    "llama2": _llama2,
    "mistral": _mistral,
    "gemma": _gemma,
    "unigram": _unigram,
    "wordpiece": _wordpiece,
    "words": _words,
}


@cache
def described(kind: str) -> str:
    """The tokenizer.json of a kind: byte tokens are no added tokens, as in the files of real models."""
    library = KINDS[kind]()
    library.add_tokens([AddedToken(text, normalized=False) for text in USER_DEFINED])
    library.add_tokens(list(FLAGGED))
    begin, end = library.token_to_id("<s>"), library.token_to_id("</s>")
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", begin), ("</s>", end)]
    )
    document = json.loads(library.to_str())
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] not in BYTES]
    return json.dumps(document, ensure_ascii=False)


def library_of(kind: str) -> Library:
    return Library.from_str(described(kind))


def write_directory(directory: Path, kind: str, **config: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(described(kind))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
    return directory
