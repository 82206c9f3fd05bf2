"""Fingerprint: everything that decides the last bits of the native executor's numbers, as one readable string.

Owns the list of those things: our own revision, the number schemes, the cache's number type, the key tile, the rotary
frequencies, the model. The instruction set is none of them, because every target gives the same bits; neither are
threads, shares and sizes, nor the compiler, which may not reorder or contract anything.
Invariant: two processes with equal fingerprints give equal bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from plait.exec.native.tape import CacheCode, RopeUse, Scheme
from plait.exec.reference.fingerprint import plait_version
from plait.model.ops import KEY_TILE
from plait.model.rope import frequencies

NUMERICS: Final = 1
"""Revision of this executor's arithmetic: goes up with every change that moves a bit of any result."""


def fingerprint(weights: str, schemes: Iterable[Scheme], cache: Iterable[CacheCode], ropes: Iterable[RopeUse]) -> str:
    """For example `native-0.1.0-r1-q4_1+q8_0-kvf16-t256-rope1f2e3d4c-<model>`; `weights` is their short identity."""
    numbers = "+".join(sorted({scheme.name.lower() for scheme in schemes}))
    kept = "+".join(sorted({code.name.lower() for code in cache}))
    tables = _digest(ropes)
    parts = ["native", plait_version(), f"r{NUMERICS}", numbers, f"kv{kept}", f"t{KEY_TILE}", tables, weights]
    return "-".join(part for part in parts if part)


def _digest(ropes: Iterable[RopeUse]) -> str:
    """Of the frequencies, which come from the C library's power function; empty for a model without rotation."""
    digest = hashlib.blake2b(digest_size=4)
    used = False
    for use in ropes:
        used = True
        for frequency in (*frequencies(use.spec), use.mscale):
            digest.update(frequency.hex().encode())
    return f"rope{digest.hexdigest()}" if used else ""
