"""Job: all requests of an offline job at once, as far as their order needs them.

Owns prompts in packed form, lengths, and what each request asks of a device over its life. Knows no request as the
engine has it, and no line of a file.
Invariant: places count the requests from 0, in the order in which they were given.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Protocol


class Lives(Protocol):
    """What a request asks of the device over its life; `plait.cost.lifetime.LifetimeCost` is one."""

    @property
    def prompt_token_s(self) -> float:
        """Computing of a prompt token."""

    @property
    def output_token_s(self) -> float: ...

    def memory_s(self, prompt: int, output: int) -> float:
        """Reading the cache in all its decode steps."""

    def mean_held_bytes(self, prompt: int, output: int) -> float:
        """Averaged over its decode steps."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What a step takes whatever is in it, and each token of prompts and of answers in it. Seconds."""

    step_s: float
    prompt_token_s: float
    output_token_s: float
    rows: int
    """That a step may hold."""


@dataclass(slots=True)
class OfflineJob:
    """By place. `most`: output tokens at most; `known`: output tokens of those that cannot say less."""

    prompts: list[bytes] = field(default_factory=list)
    prompt_tokens: array[int] = field(default_factory=lambda: array("q"))
    most: array[int] = field(default_factory=lambda: array("q"))
    known: dict[int, int] = field(default_factory=dict)
    found_tokens: int | None = None
    """Of all prompts: those that need not be computed again, in the order that was found for them."""

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def add(self, prompt: bytes, prompt_tokens: int, most: int) -> int:
        """`prompt` as `plait.sched.blend.tree.packed` gives it. Its place."""
        self.prompts.append(prompt)
        self.prompt_tokens.append(prompt_tokens)
        self.most.append(most)
        return len(self.prompt_tokens) - 1

    def take_over(self, other: OfflineJob, place: int) -> int:
        """A request of another job, whose prompts are still there. Its place here."""
        own = self.add(other.prompts[place], other.prompt_tokens[place], other.most[place])
        if place in other.known:
            self.known[own] = other.known[place]
        return own
