"""Text streams: tokens in, text deltas out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.text.vocabularies import ids_of, small_tokenizer

from plait.core.errors import RequestError
from plait.core.sampling import SamplingParams
from plait.core.text_stream import TextStream
from plait.text.stream import TextDelta, text_stream_factory

TOKENIZER = small_tokenizer()
NEW_STREAM = text_stream_factory(TOKENIZER)


def stream(*stops: str, include: bool = False, skip_special: bool = True) -> TextStream:
    return NEW_STREAM(SamplingParams(stop=stops, include_stop=include, skip_special_tokens=skip_special))


def run(of: TextStream, chunks: Sequence[Sequence[int]]) -> list[TextDelta]:
    """Push until the stream stops, as the engine does, then finish."""
    deltas = []
    for chunk in chunks:
        deltas.append(of.push(chunk))
        if deltas[-1].matched is not None:
            break
    return [*deltas, of.finish()]


def test_text_arrives_token_by_token() -> None:
    deltas = run(stream(), [[token] for token in ids_of("hello", "Ġworld", "ðŁĻ", "Ĥ")])
    assert [delta.text for delta in deltas] == ["hello", " world", "", "🙂", ""]
    assert not any(delta.matched for delta in deltas)


def test_a_stop_string_across_tokens_ends_the_text() -> None:
    deltas = run(stream("lo wo"), [[token] for token in ids_of("hello", "Ġworld", "h")])
    assert [(delta.text, delta.matched) for delta in deltas] == [("hel", None), ("", "lo wo"), ("", "lo wo")]


def test_tokens_after_the_one_that_stops_never_happened() -> None:
    stopped = stream("world")
    delta = stopped.push(ids_of("hello", "Ġworld", "h", "e"))
    assert delta == TextDelta("hello ", "world", num_tokens=2)
    assert stopped.push(ids_of("h")) == TextDelta("", "world", num_tokens=0)


def test_the_stop_string_is_included_if_asked_for() -> None:
    assert stream("wor", include=True).push(ids_of("hello", "Ġworld")).text == "hello wor"


def test_a_possible_stop_string_is_released_when_the_generation_ends() -> None:
    deltas = run(stream("lower"), [ids_of("hello")])
    assert [delta.text for delta in deltas] == ["hel", "lo"]
    assert deltas[-1].matched is None


def test_a_cut_character_is_released_when_the_generation_ends() -> None:
    assert [delta.text for delta in run(stream("x"), [ids_of("h", "ðŁ")])] == ["h", "\ufffd"]


def test_a_stop_string_may_be_completed_by_what_the_end_releases() -> None:
    last = run(stream("h\ufffd"), [ids_of("h", "ðŁ")])[-1]
    assert (last.text, last.matched) == ("", "h\ufffd")


def test_a_stop_string_may_be_one_token_inside_another_character() -> None:
    deltas = run(stream("🙂"), [[token] for token in ids_of("h", "ðŁĻ", "Ĥ", "h")])
    assert "".join(delta.text for delta in deltas) == "h"
    assert deltas[-1].matched == "🙂"


def test_control_tokens_are_shown_only_if_asked_for() -> None:
    ids = ids_of("h", "<|im_end|>", "e")
    assert stream().push(ids).text == "he"
    assert stream(skip_special=False).push(ids).text == "h<|im_end|>e"


def test_streams_of_one_factory_are_independent() -> None:
    one, other = stream("x"), stream()
    assert one.push(ids_of("ðŁĻ")).text == ""
    assert other.push(ids_of("h")).text == "h"
    assert one.push(ids_of("Ĥ")).text == "🙂"


def test_an_empty_stop_string_is_refused_when_the_stream_is_made() -> None:
    with pytest.raises(RequestError, match="a stop string is empty"):
        stream("")


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
    deltas = run(stream(*stops, include=include), [ids[a:b] for a, b in zip([0, *ends], ends, strict=False)])
    text = TOKENIZER.decode(ids)
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if found:
        end, _, stop = min(found)
        assert deltas[-1].matched == stop
        text = text[: end if include else end - len(stop)]
    else:
        assert deltas[-1].matched is None
    assert "".join(delta.text for delta in deltas) == text
