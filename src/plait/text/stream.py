"""Text streams: from a sequence's tokens to the text its reader sees.

Owns one sequence's detokenizer and stop strings. The engine is given a factory of `core.text_stream`'s kind and never
sees a tokenizer.
Invariant: the deltas joined are the decoded tokens up to the first stop string, however the tokens were grouped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plait.core.sampling import SamplingParams
from plait.core.text_stream import TextStreamFactory
from plait.text.detokenizer import Detokenizer
from plait.text.stops import StopMatcher
from plait.text.tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """What some tokens added to the text."""

    text: str
    """To be shown now; characters that may belong to a stop string or are not complete come with a later delta."""
    matched: str | None
    """The stop string that was found: the sequence is finished."""
    num_tokens: int
    """How many of the pushed tokens count: all of them, or up to the one that completed the stop string."""

    @classmethod
    def of_text(cls, text: str, num_tokens: int) -> TextDelta:
        """Where no stop string was found; made as `plait.core.step.Chunk.of_unknown` is."""
        return tuple.__new__(cls, (text, None, num_tokens))


class TextStream:
    """The text of one sequence, which continues its prompt."""

    __slots__ = ("_detokenizer", "_has_stops", "_stops")

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), include_stop: bool = False, skip_special: bool = True
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special, continues=True)
        self._stops = StopMatcher(stops, include_stop)
        self._has_stops = self._stops.has_any

    def push(self, ids: Sequence[int]) -> TextDelta:
        """Tokens one by one, because a stop string may be completed by any of them and the rest then never happened;
        where there is none, all at once.
        """
        if not self._has_stops:
            return TextDelta.of_text(self._detokenizer.push(ids), len(ids))
        texts: list[str] = []
        matched = self._stops.matched
        num_tokens = 0
        for token in ids:
            if matched is not None:
                break
            num_tokens += 1
            state = self._stops.push(self._detokenizer.push((token,)))
            texts.append(state.text)
            matched = state.matched
        return TextDelta("".join(texts), matched, num_tokens)

    def finish(self) -> TextDelta:
        """The sequence has ended for another reason than a stop string: nothing is held back any longer."""
        last = self._stops.push(self._detokenizer.finish())
        rest = self._stops.finish()
        return TextDelta(last.text + rest.text, rest.matched, 0)


def text_stream_factory(tokenizer: Tokenizer) -> TextStreamFactory:
    """What the engine is given instead of a tokenizer."""

    def new_stream(sampling: SamplingParams) -> TextStream:
        return TextStream(tokenizer, sampling.stop, sampling.include_stop, sampling.skip_special_tokens)

    return new_stream
