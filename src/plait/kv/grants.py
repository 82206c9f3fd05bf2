"""Grants: what a reservation gave, as a value for the plan of a step.

Owns no block. Invariant: a table entry is in one grant only.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.step import BlockGrant, Encode, Move


@dataclass(frozen=True, slots=True)
class Grants:
    """New table entries for the executor, and copies to make before they are used. Every entry is granted once."""

    blocks: tuple[BlockGrant, ...]
    moves: tuple[Move, ...]
    encodes: tuple[Encode, ...] = ()
    """Images that nobody has encoded; the step with the sequence's first chunk does it."""


NO_GRANTS = Grants((), ())
"""Returned itself where there is nothing new."""
