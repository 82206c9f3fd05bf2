"""Random numbers as a function of who asks: Philox4x32-10 keyed by (seed, choice, position, draw).

Owns the definition that every executor follows; csrc/base/philox.h is the fast twin and agrees bit for bit. Salmon,
Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
Invariant: no state, so a number never depends on the batch, the chunking or the order in which answers are computed.
"""

from __future__ import annotations

from plait.core.errors import InvariantError

Words = tuple[int, int, int, int]

_MASK32 = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
# The fractions of the golden ratio and of sqrt(3), times 2**32: the key's step from round to round.
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Map a counter of four 32-bit words to four random ones; for a fixed key no two counters give the same words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = _MULTIPLIERS[0] * c0
        product1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & _MASK32,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & _MASK32,
        )
        k0 = (k0 + _WEYL[0]) & _MASK32
        k1 = (k1 + _WEYL[1]) & _MASK32
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int, draw: int) -> float:
    """Return number `draw`, uniform in [0, 1), for the token at `position` of answer `choice` under `seed`.

    `seed` and `position` have 64 bits, `choice` and `draw` 32. The result has all 53 bits of a double's mantissa.
    """
    # A wrapped seed would silently share another seed's numbers, so too large is an error and not a remainder.
    for name, value, bits in (
        ("seed", seed, 64),
        ("choice", choice, 32),
        ("position", position, 64),
        ("draw", draw, 32),
    ):
        if not 0 <= value < 1 << bits:
            raise InvariantError(f"{name} {value} of a random number does not fit {bits} unsigned bits")
    counter = (draw, choice, position & _MASK32, position >> 32)
    high, low, _, _ = philox4x32(counter, (seed & _MASK32, seed >> 32))
    return ((high >> 5) * 2.0**26 + (low >> 6)) * 2.0**-53
