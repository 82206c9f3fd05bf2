"""Forms: how many engines stand behind one door, and what each of them does.

Owns `Form` and its text: `4` is four whole replicas, `disagg:1x2` one that computes prompts and two that continue them.
Invariant: a form has at least one engine of every role that it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from plait.core.errors import UsageError

MOST_ENGINES = 1024
"""A form with more is taken for a typing mistake."""

_DISAGG = "disagg:"


class Role(StrEnum):
    WHOLE = "whole"
    """Computes prompts and continues them."""
    PREFILL = "prefill"
    """Computes prompts up to their first token."""
    DECODE = "decode"
    """Continues what a prefill engine began; the keys and values of the prompt come over the link."""


class Routing(StrEnum):
    """Which engine gets the next request."""

    LEAST_TOKENS = "least-tokens"
    """The one with the fewest prompt and output tokens in unfinished requests."""
    ROUND_ROBIN = "round-robin"
    PREFIX = "prefix"
    """The one that had the longest beginning of the prompt before, unless it has far more to do than the others."""


@dataclass(frozen=True, slots=True)
class Form:
    """`num_first` engines take requests; with `num_decode` above 0 they hand them on after the first token."""

    num_first: int = 1
    num_decode: int = 0

    def __post_init__(self) -> None:
        if self.num_first < 1 or self.num_decode < 0 or self.num_engines > MOST_ENGINES:
            raise UsageError(
                f"a form of {self.num_first} and {self.num_decode} engines is not possible; take 1 to {MOST_ENGINES} "
                "in all"
            )

    @property
    def is_disagg(self) -> bool:
        return self.num_decode > 0

    @property
    def num_engines(self) -> int:
        return self.num_first + self.num_decode

    @property
    def roles(self) -> tuple[Role, ...]:
        """Of every engine, in the order of their numbers."""
        first = Role.PREFILL if self.is_disagg else Role.WHOLE
        return (first,) * self.num_first + (Role.DECODE,) * self.num_decode

    def __str__(self) -> str:
        return f"{_DISAGG}{self.num_first}x{self.num_decode}" if self.is_disagg else str(self.num_first)


def parse_form(text: str) -> Form:
    """`4` or `disagg:1x2`. `UsageError` names what else was given."""
    counts = text.removeprefix(_DISAGG).split("x") if text.startswith(_DISAGG) else [text]
    numbers = [int(count) for count in counts if count.isascii() and count.isdigit() and len(count) < 10]
    wanted = 2 if text.startswith(_DISAGG) else 1
    if len(counts) != wanted or len(numbers) != wanted or min(numbers) < 1:
        raise UsageError(
            f"form {text!r} is not known; write a number of replicas (4), or disagg:PxD with P prefill and D decode "
            "replicas (disagg:1x2)"
        )
    return Form(*numbers)
