"""Answering: one update in, one delta out, whatever ended the sequence and however many tokens came at once."""

from __future__ import annotations

import pytest
from tests.unit.api.byte_text import END, byte_text

from plait.core.decision import SeqUpdate
from plait.core.ids import RequestId, SeqId
from plait.core.request import FinishReason, Request, Sequence
from plait.core.sampling import SamplingParams
from plait.core.step import TokenLogprob
from plait.engine.answering import Answering
from plait.text.stream import text_stream_factory

STREAMS = text_stream_factory(byte_text().tokenizer)


def opened(
    *, number: int = 0, stop: tuple[str, ...] = (), stop_token_ids: tuple[int, ...] = ()
) -> tuple[Answering, Sequence]:
    """An answering room with one live sequence."""
    sampling = SamplingParams(stop=stop, stop_token_ids=stop_token_ids)
    seq = Sequence(SeqId(number), Request(RequestId("r"), (1, 2, 3), sampling), 1, 77, 9, 0.0, [1, 2, 3])
    seq.num_cached = 2
    answering = Answering(STREAMS)
    answering.open(seq)
    return answering, seq


def update(text: str | bytes = "", *, end: FinishReason | None = None, stop_token: int | None = None) -> SeqUpdate:
    """New tokens, one per byte, and the stop token behind them."""
    tokens = tuple(text.encode() if isinstance(text, str) else text) + (() if stop_token is None else (stop_token,))
    logprobs = tuple(TokenLogprob(token, -1.0) for token in tokens)
    return SeqUpdate(SeqId(0), tokens, logprobs, end, stop_token)


def test_a_delta_says_whose_it_is_and_what_it_cost() -> None:
    answering, seq = opened()
    delta = answering.delta(seq, update("ab"))
    assert (delta.choice, delta.text, delta.tokens) == (1, "ab", tuple(b"ab"))
    assert (delta.num_prompt, delta.num_cached, delta.seed) == (3, 2, 77)
    assert [one.token for one in delta.logprobs] == list(b"ab")
    assert (delta.finish_reason, delta.stop_reason, delta.error) == (None, None, None)


def test_deltas_joined_are_the_text_however_it_was_cut() -> None:
    said = "a cafe\u0301 in Zürich 🙂"
    for size in (1, 2, 3, 7, 100):
        answering, seq = opened()
        data = said.encode()
        deltas = [answering.delta(seq, update(data[start : start + size])) for start in range(0, len(data), size)]
        deltas.append(answering.delta(seq, update(end=FinishReason.LENGTH)))
        assert "".join(delta.text for delta in deltas) == said
        assert b"".join(bytes(delta.tokens) for delta in deltas) == data
        assert all("\ufffd" not in delta.text for delta in deltas)


def test_a_stop_string_cuts_text_tokens_and_logprobs_at_the_token_that_completes_it() -> None:
    answering, seq = opened(stop=("END",))
    assert answering.delta(seq, update("one E")).text == "one "
    delta = answering.delta(seq, update("ND and more"))
    assert (delta.text, delta.tokens, len(delta.logprobs)) == ("", tuple(b"ND"), 2)
    assert (delta.finish_reason, delta.stop_reason) == (FinishReason.STOP, "END")


@pytest.mark.parametrize("end", [FinishReason.LENGTH, FinishReason.STOP, FinishReason.ABORT, FinishReason.ERROR])
def test_a_stop_string_wins_over_any_other_end_of_the_same_update(end: FinishReason) -> None:
    answering, seq = opened(stop=("END",))
    delta = answering.delta(seq, update("the END", end=end))
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("the ", FinishReason.STOP, "END")


def test_a_stop_string_before_the_end_token_wins_and_the_end_token_never_happened() -> None:
    answering, seq = opened(stop=("END",))
    delta = answering.delta(seq, update("the END", end=FinishReason.STOP, stop_token=END))
    assert (delta.tokens, delta.stop_reason) == (tuple(b"the END"), "END")


def test_text_that_was_held_comes_with_the_end() -> None:
    for end in (FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR):
        answering, seq = opened(stop=("ENDE",))
        assert answering.delta(seq, update("the EN")).text == "the "
        delta = answering.delta(seq, update("D", end=end))
        assert (delta.text, delta.finish_reason) == ("END", end)


def test_an_end_without_tokens_gives_back_what_was_held_too() -> None:
    answering, seq = opened(stop=("ENDE",))
    answering.delta(seq, update("the EN"))
    assert answering.delta(seq, update(end=FinishReason.ABORT)).text == "EN"


def test_the_end_of_sequence_is_counted_not_shown_and_no_reason_of_its_own() -> None:
    answering, seq = opened()
    delta = answering.delta(seq, update("ab", end=FinishReason.STOP, stop_token=END))
    assert (delta.text, delta.tokens, delta.stop_reason) == ("ab", (*b"ab", END), None)


def test_a_stop_token_of_the_request_is_named() -> None:
    answering, seq = opened(stop_token_ids=(ord("!"),))
    delta = answering.delta(seq, update("ab", end=FinishReason.STOP, stop_token=ord("!")))
    assert (delta.text, delta.stop_reason) == ("ab", ord("!"))


def test_an_error_is_passed_on() -> None:
    answering, seq = opened()
    failed = update(end=FinishReason.ERROR)._replace(error="a logit is not a number")
    assert answering.delta(seq, failed).error == "a logit is not a number"


def test_without_a_factory_there_are_tokens_and_no_text() -> None:
    seq = Sequence(SeqId(0), Request(RequestId("r"), (1,), SamplingParams(stop=("ab",))), 0, 0, 9, 0.0)
    answering = Answering(None)
    answering.open(seq)
    delta = answering.delta(seq, update("abc", end=FinishReason.LENGTH))
    assert (delta.text, delta.tokens, delta.finish_reason) == ("", tuple(b"abc"), FinishReason.LENGTH)


def test_sequences_do_not_share_text() -> None:
    answering, first = opened(stop=("xy",))
    second = Sequence(SeqId(1), first.request, 0, 0, 9, 0.0)
    answering.open(second)
    assert answering.delta(first, update("x")).text == ""
    assert answering.delta(second, update("y")).text == "y"
    answering.close(first)
    answering.close(first)
    assert answering.delta(second, update("x")).text == ""
