"""Asks and answers: what is sent to an engine under load, and what is known of its answer.

Owns the values and `Target`, the one thing that an engine must be able to do here. Times are seconds of one clock.
Invariant: an answer's error is a value; a target never raises for what an engine does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from plait.api.bodies import JsonObject


@dataclass(frozen=True, slots=True)
class Ask:
    """`prompt` is text, so that every engine is sent the same. `output_tokens`: exactly so many are wanted."""

    prompt: str
    output_tokens: int
    arrival_s: float = 0.0
    """From the start of the run; of no meaning where requests follow each other."""
    messages: tuple[JsonObject, ...] = ()
    """A conversation in place of the prompt."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`due_s`: when it was to be sent; everything is counted from then, so that a late start is no advantage."""

    due_s: float
    end_s: float
    piece_s: tuple[float, ...]
    """When pieces of output came; a piece is one token or a few."""
    wanted_output: int
    num_output: int
    """As the engine counts, or else pieces."""
    num_prompt: int | None = None
    """As the engine counts; None: it does not tell."""
    num_cached: int | None = None
    is_counted: bool = False
    """The engine told how many tokens there were."""
    error: str = ""

    @property
    def ttft_s(self) -> float | None:
        return self.piece_s[0] - self.due_s if self.piece_s else None

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between tokens, behind the first."""
        if self.num_output < 2 or len(self.piece_s) < 2:
            return None
        return (self.piece_s[-1] - self.piece_s[0]) / (self.num_output - 1)

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.due_s

    @property
    def gaps_s(self) -> list[float]:
        return [late - early for early, late in pairwise(self.piece_s)]

    @property
    def is_short(self) -> bool:
        """It ended before the tokens that were asked for."""
        return not self.error and self.num_output < self.wanted_output


def deaf() -> None:
    """For those who do not care when pieces come."""


class Target(Protocol):
    """An engine under load."""

    async def answer(self, ask: Ask, due_s: float, heard: Callable[[], None] = deaf) -> Answer:
        """Greedily, as many tokens as asked for, streamed; `heard` is called at each piece. Cancelled, it lets the
        engine know.
        """
