"""Constraints: which tokens a sequence may take next.

Owns the protocols through which scheduler and sampler see a grammar without knowing any; `plait.text.grammar`
implements them. A sequence under a constraint is planned only when all its tokens are known: what may come next
depends on them.
Invariant: a token that the mask allows can be accepted, and equal tokens lead to equal masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Constraint(Protocol):
    """The state of one sequence."""

    def mask(self) -> bytes:
        """Tokens that may come next: bit t of the little-endian bytes permits token t."""

    def accept(self, token: int) -> None:
        """This token came."""

    def likely(self) -> tuple[int, ...]:
        """Tokens that will come next if the usual spelling of the only text that the form leaves is taken; often none.
        Others may be allowed: nothing follows from it but a guess.
        """

    def masks_behind(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """What `mask` would say behind each of `tokens` if they came, one after another: of as many of them as the form
        allows, and does not end with. Nothing has come: `accept` says what did.
        """

    @property
    def is_over(self) -> bool:
        """Nothing more can come but the end."""


class ConstraintSource(Protocol):
    """A grammar, ready to be followed from its beginning by any number of sequences."""

    @property
    def says(self) -> str:
        """What was asked for: those that say the same allow the same."""

    def begin(self) -> Constraint:
        """A fresh state."""
