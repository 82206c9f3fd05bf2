"""Token-to-text: the callable through which the engine sees text without knowing tokenizers.

Owns the protocol only; `plait.text.stream` implements it and `build` hands it in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from plait.core.sampling import SamplingParams


class TextDelta(Protocol):
    @property
    def text(self) -> str:
        """Text that is certain: whole characters, and no possible beginning of a stop string."""

    @property
    def matched(self) -> str | None:
        """The stop string that was found; nothing more may be pushed."""

    @property
    def num_tokens(self) -> int:
        """How many of the pushed tokens count: all, or up to the one that completed the stop string."""


class TextStream(Protocol):
    """Text of one sequence, fed in token order."""

    def push(self, ids: Sequence[int]) -> TextDelta:
        """Take new output tokens."""

    def finish(self) -> TextDelta:
        """The sequence has ended: give back what was held."""


TextStreamFactory = Callable[[SamplingParams], TextStream]
