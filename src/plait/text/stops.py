"""Stop strings: found in text while it arrives, for one sequence.

Owns the text that might be the beginning of a stop string. Knows nothing about tokens. Invariant: no character of a
stop string is emitted (unless asked to include it), and no other character is lost or delayed longer than it could
still belong to one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from plait.core.errors import RequestError


@dataclass(frozen=True, slots=True)
class StopState:
    """What a piece of text led to."""

    text: str
    """To be emitted now."""
    matched: str | None
    """The stop string that ended the text, if one did."""


class StopMatcher:
    """Finds the stop string whose match ends first; if several end at the same character, the longest of them.

    An Aho-Corasick automaton: one state per prefix of a stop string, so the work is linear in the text for any number
    of stops and however they overlap. The depth of the state is exactly the length of the text that must be held
    back.
    """

    __slots__ = ("_depths", "_ends", "_fails", "_held", "_include", "_matched", "_moves", "_state")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        if "" in stops:
            raise RequestError("a stop string is empty and would end every answer at once; leave it out", param="stop")
        self._moves: list[dict[str, int]] = [{}]
        self._depths = [0]
        self._ends: list[str | None] = [None]
        self._fails = [0]
        for stop in stops:
            self._add(stop)
        self._link()
        self._include = include
        self._state = 0
        self._held: deque[str] = deque()
        self._matched: str | None = None

    @property
    def has_any(self) -> bool:
        """Whether there is anything to be found."""
        return len(self._moves) > 1

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._matched

    def push(self, text: str) -> StopState:
        """Text to emit now. After a match nothing more is emitted, whatever is pushed."""
        if self._matched is not None:
            return StopState("", self._matched)
        if not self.has_any:
            return StopState(text, None)
        state = self._state
        for place, char in enumerate(text, start=1):
            state = self._step(state, char)
            stop = self._ends[state]
            if stop is not None:
                return self._stop(text[:place], stop)
        self._state = state
        return StopState(self._emit(text, self._depths[state]), None)

    def finish(self) -> StopState:
        """The text has ended: what was held back was not a stop string after all."""
        self._state = 0
        return StopState(self._emit("", 0), self._matched)

    def _stop(self, text: str, stop: str) -> StopState:
        self._matched = stop
        emitted = self._emit(text, 0 if self._include else len(stop))
        self._held.clear()
        return StopState(emitted, stop)

    def _emit(self, text: str, num_held: int) -> str:
        """Add `text` to what is held and give out all but the last `num_held` characters."""
        if not self._held and num_held == 0:
            return text
        self._held.extend(text)
        return "".join([self._held.popleft() for _ in range(len(self._held) - num_held)])

    def _step(self, state: int, char: str) -> int:
        while char not in self._moves[state]:
            if state == 0:
                return 0
            state = self._fails[state]
        return self._moves[state][char]

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            following = self._moves[state].get(char)
            if following is None:
                following = len(self._moves)
                self._moves[state][char] = following
                self._moves.append({})
                self._depths.append(self._depths[state] + 1)
                self._ends.append(None)
                self._fails.append(0)
            state = following
        self._ends[state] = stop

    def _link(self) -> None:
        """Breadth first: a state fails to the longest proper suffix of its text that is also a state."""
        waiting = deque(self._moves[0].values())
        while waiting:
            state = waiting.popleft()
            for char, following in self._moves[state].items():
                waiting.append(following)
                self._fails[following] = self._step(self._fails[state], char)
                # A state's own stop is longer than one that ends inside it, so only fill the gap.
                self._ends[following] = self._ends[following] or self._ends[self._fails[following]]
