"""Text streams: from a sequence's tokens to the text its reader sees.

Owns one sequence's detokenizer and stop strings. The engine holds it as a plain callable and never sees a tokenizer.
Invariant: the deltas joined are the decoded tokens up to the first stop string, however the tokens were grouped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.text.detokenizer import Detokenizer
from plait.text.stops import StopMatcher
from plait.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What some tokens added to the text."""

    text: str
    """To be shown now; characters that may belong to a stop string or are not complete come with a later delta."""
    stopped: bool
    """A stop string was found: the sequence is finished."""
    matched: str | None
    """The stop string that was found."""
    num_tokens: int
    """How many of the pushed tokens count: all of them, or up to the one that completed the stop string."""
    offsets: tuple[int, ...]
    """Where in the whole decoded text each counted token begins, in characters."""


class TextStream:
    """The text of one sequence."""

    __slots__ = ("_detokenizer", "_stops")

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), include_stop: bool = False, skip_special: bool = True
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special)
        self._stops = StopMatcher(stops, include_stop)

    def push(self, ids: Sequence[int]) -> TextDelta:
        """Tokens one by one, because a stop string may be completed by any of them and the rest then never happened."""
        texts: list[str] = []
        offsets: list[int] = []
        matched = self._stops.matched
        for token in ids:
            if matched is not None:
                break
            offsets.append(self._detokenizer.num_chars)
            state = self._stops.push(self._detokenizer.push((token,)))
            texts.append(state.text)
            matched = state.matched
        return TextDelta("".join(texts), matched is not None, matched, len(offsets), tuple(offsets))

    def finish(self) -> TextDelta:
        """The sequence has ended for another reason than a stop string: nothing is held back any longer."""
        last = self._stops.push(self._detokenizer.finish())
        rest = self._stops.finish()
        return TextDelta(last.text + rest.text, rest.matched is not None, rest.matched, 0, ())


TextStreamFactory = Callable[[Sequence[str], bool, bool], TextStream]
"""`(stops, include_stop, skip_special)` to the stream of one new sequence."""


def text_stream_factory(tokenizer: Tokenizer) -> TextStreamFactory:
    """What the engine is given instead of a tokenizer."""

    def new_stream(stops: Sequence[str], include_stop: bool, skip_special: bool) -> TextStream:
        return TextStream(tokenizer, stops, include_stop, skip_special)

    return new_stream
