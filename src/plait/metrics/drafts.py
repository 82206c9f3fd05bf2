"""Drafts: what guesses came to, for summaries and pages.

Owns the counters' names for programs and the line for people. Counts nothing itself.
Invariant: accepted <= proposed, and 0 of everything where nothing was drafted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """Since the engine's start."""

    num_drafts: int
    """Guesses that were verified, of any length."""
    proposed: int
    """Their tokens."""
    accepted: int
    """Of these, those that were right."""

    @property
    def depth(self) -> float:
        """Tokens of a guess."""
        return self.proposed / self.num_drafts if self.num_drafts else 0.0

    @property
    def saved_steps(self) -> int:
        """Steps that sequences need not be in: one for each token that was right. Of a sequence alone they are steps of
        the engine, too.
        """
        return self.accepted

    def json_object(self) -> dict[str, int | float]:
        return {
            "drafts": self.num_drafts,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "depth": round(self.depth, 3),
            "saved_steps": self.saved_steps,
        }

    def text(self) -> str:
        right = self.accepted / self.proposed if self.proposed else 0.0
        return f"{self.proposed:,} tokens in {self.num_drafts:,} drafts, {self.accepted:,} right ({right:.0%})"
