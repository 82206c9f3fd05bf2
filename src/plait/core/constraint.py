"""Constraints: which tokens a sequence may take next.

Owns the protocols through which scheduler and sampler see a grammar without knowing any; `plait.text.grammar`
implements them. A sequence under a constraint is planned only when all its tokens are known: what may come next
depends on them.
Invariant: a token that the mask allows can be accepted, and equal tokens lead to equal masks.
"""

from __future__ import annotations

from typing import Protocol


class Constraint(Protocol):
    """The state of one sequence."""

    def mask(self) -> bytes:
        """Tokens that may come next: bit t of the little-endian bytes permits token t."""

    def accept(self, token: int) -> None:
        """This token came."""

    @property
    def is_over(self) -> bool:
        """Nothing more can come but the end."""


class ConstraintSource(Protocol):
    """A grammar, ready to be followed from its beginning by any number of sequences."""

    def begin(self) -> Constraint:
        """A fresh state."""
