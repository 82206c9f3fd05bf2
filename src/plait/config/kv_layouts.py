"""KV layouts: what may stand in --kv-layout, and how a split by hand is written.

Owns the names. What a layout does stands in `plait.kv.layouts`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

SERVED_LAYOUTS: Final = ("paged", "uniform", "vllm", "max-page", "static")
MANUAL: Final = "manual"
_SHARE: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}|/0{0,8}[1-9][0-9]{0,8})?")
"""Without exponents: a number of a billion digits would be written out."""


def parse_served_layout(text: str) -> str:
    """One of `SERVED_LAYOUTS`, or manual:GROUP=SHARE:GROUP=SHARE."""
    kind, colon, shares = text.strip().partition(":")
    if kind == MANUAL:
        manual_shares(shares)
    elif kind not in SERVED_LAYOUTS or colon:
        close = difflib.get_close_matches(kind, SERVED_LAYOUTS, n=1)
        guess = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"choose one of {', '.join(SERVED_LAYOUTS)}, or manual:GROUP=SHARE:GROUP=SHARE{guess}")
    return text.strip()


def manual_shares(text: str) -> Mapping[str, Fraction]:
    """ "full=3:window=1"; only ratios count. `ValueError` for anything else."""
    found: dict[str, Fraction] = {}
    for one in text.split(":"):
        group, equals, share = one.rpartition("=")
        if not (group and equals and _SHARE.fullmatch(share) and Fraction(share) > 0):
            raise ValueError(f"{one!r} is no share; write manual:GROUP=SHARE:GROUP=SHARE, e.g. manual:full=3:window=1")
        if group in found:
            raise ValueError(f"{group!r} has two shares; write one for each group")
        found[group] = Fraction(share)
    return found
