"""Text streams: tokens in, text deltas out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.text.vocabularies import ids_of, small_tokenizer

from plait.core.errors import RequestError
from plait.text.stream import TextDelta, TextStream, text_stream_factory

TOKENIZER = small_tokenizer()
NEW_STREAM = text_stream_factory(TOKENIZER)


def run(stream: TextStream, chunks: Sequence[Sequence[int]]) -> list[TextDelta]:
    """Push until the stream stops, as the engine does, then finish."""
    deltas = []
    for chunk in chunks:
        deltas.append(stream.push(chunk))
        if deltas[-1].stopped:
            break
    return [*deltas, stream.finish()]


def test_text_arrives_token_by_token() -> None:
    deltas = run(NEW_STREAM((), False, True), [[token] for token in ids_of("hello", "Ġworld", "ðŁĻ", "Ĥ")])
    assert [delta.text for delta in deltas] == ["hello", " world", "", "🙂", ""]
    assert not any(delta.stopped for delta in deltas)


def test_a_stop_string_across_tokens_ends_the_text() -> None:
    deltas = run(NEW_STREAM(("lo wo",), False, True), [[token] for token in ids_of("hello", "Ġworld", "h")])
    assert [(delta.text, delta.stopped, delta.matched) for delta in deltas] == [
        ("hel", False, None),
        ("", True, "lo wo"),
        ("", True, "lo wo"),
    ]


def test_tokens_after_the_one_that_stops_never_happened() -> None:
    stream = NEW_STREAM(("world",), False, True)
    delta = stream.push(ids_of("hello", "Ġworld", "h", "e"))
    assert delta == TextDelta("hello ", True, "world", num_tokens=2, offsets=(0, 5))
    assert stream.push(ids_of("h")) == TextDelta("", True, "world", num_tokens=0, offsets=())


def test_the_stop_string_is_included_if_asked_for() -> None:
    assert NEW_STREAM(("wor",), True, True).push(ids_of("hello", "Ġworld")).text == "hello wor"


def test_a_possible_stop_string_is_released_when_the_generation_ends() -> None:
    deltas = run(NEW_STREAM(("lower",), False, True), [ids_of("hello")])
    assert [delta.text for delta in deltas] == ["hel", "lo"]
    assert not deltas[-1].stopped


def test_a_cut_character_is_released_when_the_generation_ends() -> None:
    assert [delta.text for delta in run(NEW_STREAM(("x",), False, True), [ids_of("h", "ðŁ")])] == ["h", "\ufffd"]


def test_a_stop_string_may_be_completed_by_what_the_end_releases() -> None:
    last = run(NEW_STREAM(("h\ufffd",), False, True), [ids_of("h", "ðŁ")])[-1]
    assert (last.text, last.stopped, last.matched) == ("", True, "h\ufffd")


def test_a_stop_string_may_be_one_token_inside_another_character() -> None:
    deltas = run(NEW_STREAM(("🙂",), False, True), [[token] for token in ids_of("h", "ðŁĻ", "Ĥ", "h")])
    assert "".join(delta.text for delta in deltas) == "h"
    assert deltas[-1].matched == "🙂"


def test_control_tokens_are_shown_only_if_asked_for() -> None:
    ids = ids_of("h", "<|im_end|>", "e")
    assert NEW_STREAM((), False, True).push(ids).text == "he"
    assert NEW_STREAM((), False, False).push(ids).text == "h<|im_end|>e"


def test_offsets_say_where_tokens_begin_in_the_text() -> None:
    stream = NEW_STREAM((), False, True)
    assert stream.push(ids_of("hello", "ðŁĻ")).offsets == (0, 5)
    assert stream.push(ids_of("Ĥ", "Ġworld", "<|im_end|>")).offsets == (5, 6, 12)
    assert stream.push([]).offsets == ()


def test_streams_of_one_factory_are_independent() -> None:
    one, other = NEW_STREAM(("x",), False, True), NEW_STREAM((), False, True)
    assert one.push(ids_of("ðŁĻ")).text == ""
    assert other.push(ids_of("h")).text == "h"
    assert one.push(ids_of("Ĥ")).text == "🙂"


def test_an_empty_stop_string_is_refused_when_the_stream_is_made() -> None:
    with pytest.raises(RequestError, match="a stop string is empty"):
        NEW_STREAM(("",), False, True)


@given(
    st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30),
    st.lists(st.sampled_from(["l", "he", "🙂", "\ufffd", " w", "<|"]), max_size=3),
    st.lists(st.integers(0, 30), max_size=5),
    st.booleans(),
)
def test_deltas_join_to_the_decoded_text_up_to_the_first_stop_string(
    ids: list[int], stops: list[str], cuts: list[int], include: bool
) -> None:
    ends = sorted({min(cut, len(ids)) for cut in cuts} | {len(ids)})
    deltas = run(NEW_STREAM(stops, include, True), [ids[a:b] for a, b in zip([0, *ends], ends, strict=False)])
    text = TOKENIZER.decode(ids)
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if found:
        end, _, stop = min(found)
        assert deltas[-1].matched == stop
        text = text[: end if include else end - len(stop)]
    assert "".join(delta.text for delta in deltas) == text
    assert deltas[-1].stopped == bool(found)
