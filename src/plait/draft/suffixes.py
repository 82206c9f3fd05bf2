"""Suffix automaton: where the longest ending of a text that stood in it before stands, kept up token by token.

Owns the automaton of Blumer, Blumer, Haussler, Ehrenfeucht, Chen and Seiferas, "The smallest automaton recognizing the
subwords of a text", 1985, over token ids. Knows no drafts.
Invariant: at most two states a token and three transitions; a token takes amortised constant time, whatever the text.
"""

from __future__ import annotations

from array import array

ROOT = 0
_NONE = -1


class SuffixAutomaton:
    """Of the tokens that were added, whose places count from 0.

    Most states have one transition: it lies in `_token` and `_target`, and a dictionary is made for further ones.
    """

    __slots__ = ("_branches", "_ends", "_last", "_lengths", "_links", "_target", "_token", "match_end", "match_length")

    def __init__(self) -> None:
        self._lengths = array("i", [0])
        """Of a state: its longest string."""
        self._links = array("i", [_NONE])
        self._ends = array("i", [_NONE])
        """Place of the last token of one occurrence: the newest that was looked for."""
        self._token = array("i", [_NONE])
        self._target = array("i", [_NONE])
        self._branches: list[dict[int, int] | None] = [None]
        self._last = ROOT
        self.match_length = 0
        """Of the longest ending of the text that stands in it earlier, too."""
        self.match_end = _NONE
        """Place of the last token of that earlier occurrence; -1 without one."""

    @property
    def num_states(self) -> int:
        return len(self._lengths)

    @property
    def num_transitions(self) -> int:
        return sum(token != _NONE for token in self._token) + sum(len(more) for more in self._branches if more)

    def add(self, token: int) -> None:
        """The text goes on with `token`, which is not negative."""
        tokens, targets, branches, links = self._token, self._target, self._branches, self._links
        place = self._lengths[self._last]
        fresh = self._state(place + 1, ROOT, place)
        state, target = self._last, _NONE
        while state != _NONE:
            target = self._step(state, token)
            if target != _NONE:
                break
            if tokens[state] == _NONE:
                tokens[state], targets[state] = token, fresh
            else:
                more = branches[state]
                if more is None:
                    branches[state] = {token: fresh}
                else:
                    more[token] = fresh
            state = links[state]
        if state != _NONE:
            links[fresh] = self._split(state, token, target)
        self._last = fresh
        self._find_match(place)

    def _state(self, length: int, link: int, end: int) -> int:
        self._lengths.append(length)
        self._links.append(link)
        self._ends.append(end)
        self._token.append(_NONE)
        self._target.append(_NONE)
        self._branches.append(None)
        return len(self._lengths) - 1

    def _step(self, state: int, token: int) -> int:
        if self._token[state] == token:
            return self._target[state]
        more = self._branches[state]
        return _NONE if more is None else more.get(token, _NONE)

    def _split(self, state: int, token: int, target: int) -> int:
        """`target`, or a copy of it for its strings that end like those of `state` and `token`."""
        if self._lengths[target] == self._lengths[state] + 1:
            return target
        copy = self._state(self._lengths[state] + 1, self._links[target], self._ends[target])
        self._token[copy], self._target[copy] = self._token[target], self._target[target]
        more = self._branches[target]
        self._branches[copy] = None if more is None else dict(more)
        while state != _NONE and self._step(state, token) == target:
            if self._token[state] == token:
                self._target[state] = copy
            else:
                of_state = self._branches[state]
                assert of_state is not None
                of_state[token] = copy
            state = self._links[state]
        self._links[target] = copy
        return copy

    def _find_match(self, place: int) -> None:
        """The link of the whole text's state has its longest ending that occurred before."""
        state = self._links[self._last]
        self.match_length = self._lengths[state]
        self.match_end = self._ends[state] if state != ROOT else _NONE
        # Who comes by again finds the newest occurrence: what was said last is said again more often.
        self._ends[state] = place
