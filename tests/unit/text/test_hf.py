"""Tokenizers of model directories: the ids and texts of the `tokenizers` library reading the same file."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from tests.unit.text.directories import CONTROL, KINDS, USER_DEFINED, library_of, write_directory
from tests.unit.text.goldens import FOLDER
from tests.unit.text.random_texts import awkward_texts, random_text, random_texts

from plait.core.errors import RequestError
from plait.text.chat import ChatTemplate
from plait.text.detokenizer import Detokenizer
from plait.text.hf import tokenizer_from_hf
from plait.text.prompt import encode_chat
from plait.text.tokenizer import Tokenizer

Load = Callable[[str], Tokenizer]
SPELLINGS = (*CONTROL, *USER_DEFINED, "<left>", "<right>", "word", "Straße", "Stra")


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    loaded = {kind: tokenizer_from_hf(write_directory(tmp_path_factory.mktemp("model"), kind)) for kind in KINDS}
    return loaded.__getitem__


def check_plain(tokenizer: Tokenizer, kind: str, texts: list[str]) -> None:
    texts = [text for text in texts if not any(control in text for control in CONTROL)]
    library = library_of(kind)
    wanted = [found.ids for found in library.encode_batch(texts, add_special_tokens=False)]
    assert tokenizer.encode_batch(texts, add_special=False) == wanted
    # Where the text is whole again, the library leaves no room for two opinions on bytes that are no character.
    decoded = library.decode_batch(wanted)
    for ids, text in zip(wanted, decoded, strict=True):
        if "\ufffd" not in text:
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_plain_text_gives_the_ids_and_the_text_of_the_library(load: Load, kind: str) -> None:
    check_plain(load(kind), kind, [*awkward_texts(), *random_texts(400, seed=1)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_random_texts_give_the_ids_of_the_library(load: Load, kind: str) -> None:
    check_plain(load(kind), kind, list(random_texts(10_000, seed=2)))


@pytest.mark.parametrize("kind", KINDS)
def test_added_tokens_are_found_as_the_library_finds_them(load: Load, kind: str) -> None:
    library, tokenizer, rng = library_of(kind), load(kind), random.Random(3)
    for _ in range(200):
        text = "".join([part for _ in range(4) for part in (random_text(rng)[:6], rng.choice(SPELLINGS))])
        wanted = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False, parse_special=True) == wanted, text
        if "\ufffd" not in library.decode(wanted):
            assert tokenizer.decode(wanted) == library.decode(wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_reaches_a_control_token(load: Load, kind: str) -> None:
    tokenizer, rng = load(kind), random.Random(4)
    control = {token for text, token in tokenizer.control.ids.items() if text != "<unk>"}
    assert len(control) == 4
    # Byte-level vocabularies have a token for everything; the others may say that they do not know a character.
    unknown = set() if kind in ("gpt2", "gpt2 with a space in front", "llama3", "qwen") else {0}
    for _ in range(300):
        text = "".join([part for _ in range(4) for part in (random_text(rng)[:6], rng.choice(SPELLINGS))])
        assert not (control | ({0} - unknown)) & set(tokenizer.encode(text, add_special=False)), text
    assert tokenizer.decode(tokenizer.encode("<|im_end|>", add_special=False)).replace(" ", "") in (
        "<|im_end|>",
        "",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_adds_a_control_token_to_a_chat(load: Load, kind: str) -> None:
    tokenizer, rng = load(kind), random.Random(17)
    source = (FOLDER / "families" / "chatml.jinja").read_text()
    template = ChatTemplate(source, tokenizer.named_tokens, lambda: datetime(2026, 1, 1, tzinfo=UTC))
    control = {token for text, token in tokenizer.control.ids.items() if text != "<unk>"}

    def commands(content: str) -> list[int]:
        ids = encode_chat(tokenizer, template, [{"role": "user", "content": content}])
        return [token for token in ids if token in control]

    wanted = commands("harmless")
    assert len(wanted) == 5
    for _ in range(100):
        content = "".join([part for _ in range(4) for part in (random_text(rng)[:6], rng.choice((*SPELLINGS, "<|im")))])
        assert commands(content) == wanted, content


@pytest.mark.parametrize("kind", KINDS)
def test_any_ids_stream_as_they_decode(load: Load, kind: str) -> None:
    tokenizer, rng = load(kind), random.Random(5)
    for _ in range(300):
        ids = rng.choices(range(tokenizer.vocab_size), k=rng.randrange(9))
        for continues in (False, True):
            for skip_special in (False, True):
                detokenizer = Detokenizer(tokenizer, skip_special, continues=continues)
                streamed = "".join([detokenizer.push([token]) for token in ids]) + detokenizer.finish()
                assert streamed == tokenizer.decode(ids, skip_special, continues=continues)


@pytest.mark.parametrize("kind", ["llama2", "mistral", "unigram", "wordpiece"])
def test_a_text_begins_without_the_space_that_its_first_word_is_spelled_with(load: Load, kind: str) -> None:
    tokenizer = load(kind)
    ids = tokenizer.encode("the cache", add_special=True)
    assert tokenizer.decode(ids) == "the cache"
    assert tokenizer.decode(ids, continues=True) == " the cache"


@pytest.mark.parametrize("kind", KINDS)
def test_begin_and_end_stand_around_a_text_once(load: Load, kind: str) -> None:
    tokenizer = load(kind)
    plain = tokenizer.encode("cache", add_special=False)
    framed = [1, *plain, 2]
    assert tokenizer.encode("cache", add_special=True) == framed == library_of(kind).encode("cache").ids
    assert tokenizer.encode("<s>cache", add_special=True, parse_special=True)[:2] != [1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_between_control_tokens_are_encoded_as_in_the_whole_text(load: Load, kind: str) -> None:
    tokenizer = load(kind)
    for text in ("<|im_start|>user\nthe cache<|im_end|>", "the <|im_start|>cache <|im_end|> word", "cache"):
        cut = tokenizer.control.split(text)
        assert tokenizer.encode_cut(cut) == tokenizer.encode(text, add_special=False, parse_special=True)
    between = tokenizer.encode_cut(["", "<s>", "<s>", "</s>", ""])
    assert between[0], between[-1] == (1, 2)
    assert 1 not in between[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_character_is_refused(load: Load, kind: str) -> None:
    with pytest.raises(RequestError, match="lone surrogate U\\+D83D"):
        load(kind).encode("a\ud83d", add_special=False)
