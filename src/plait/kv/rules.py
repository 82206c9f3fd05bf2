"""Rules: which of the memory's four habits are on, so that each can be taken away and its effect be seen.

Owns the names. What each habit does stands where it is done: `blocks` (owners), `victims` (balance and alignment),
`looking` (tails).
Invariant: answers never depend on them, only what is cached, wasted and computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from plait.kv.blocks import OWN_PAGES

ABLATIONS: Final = ("request-awareness", "alignment", "balance", "tails")


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """All on: the memory as it is meant. Each one off is an ablation of Jenga (SOSP'25, sections 4.3 and 5)."""

    by_owner: bool = True
    """What shares a page belongs to one lifetime; off: a free block on any page will do, before a fresh page."""
    own_pages: int = OWN_PAGES
    """Whoever has fewer pages shares the rest of the last one with others; 0: nobody does, as in Jenga."""
    aligned: bool = True
    """Among equally old ones the longer prefix goes first in every group; off: in those that do not keep everything, by
    chance, so that groups drop different tokens.
    """
    balanced: bool = True
    """What left a window is as old as that moment; off: a sequence that ends renews all that it ever published."""
    kept_behind: int = 192
    """Tokens behind a window that are as old as when they left it. What is farther behind, has never been hit, and is
    not where prompts part or end, is older than all else. A hit ends some tokens before the end of what is cached:
    where the next question begins, or at a whole block. (As many as Jenga's artifact keeps.)
    """
    kept_fraction: float = 0.25
    """Of the memory, what trunks in use may keep of the windows before their ends (Jenga's pool of common pages, SOSP'25);
    0: nothing.
    """
    tails: bool = True
    """A hit may end inside a block, which is copied; off: hits are whole blocks."""


ALL_RULES: Final = MemoryRules()


def any_priority(number: int, length: int) -> int:
    """Instead of a prefix length: up to twice as much, so that as many go as otherwise, but others. The same for the
    same number.
    """
    return (number * 0x9E3779B1 % 2**32) * 2 * length >> 32


def rules_without(ablations: Sequence[str]) -> MemoryRules:
    """`ablations`: names of `ABLATIONS`."""
    return MemoryRules(
        by_owner="request-awareness" not in ablations,
        aligned="alignment" not in ablations,
        balanced="balance" not in ablations,
        tails="tails" not in ablations,
    )
