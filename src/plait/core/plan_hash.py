"""Plan hashes: whether two engines planned the same.

Owns the canonical form in which plans are hashed, and `PlanDigest`, which takes them one by one.
Invariant: the digest is the same whether decode steps were planned one by one or as runs (docs/adr/0013).

Everything in a plan is covered. A decode step that follows another with the same sequences, each one token further and
taken from the device, adds to a stretch: of a stretch the first step is hashed, the number of steps, and all grants in
order. What is left out follows from these: ids and starts ascend by one, and a block is granted when its first slot is
due.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

from plait.core.step import FROM_DEVICE, SAMPLES_ONE, UNKNOWN, StepPlan


class PlanDigest:
    """The hash of plans that come one by one, in order of submission."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._first: StepPlan | None = None
        """What opened the stretch."""
        self._num_steps = 0
        self._grants: list[int] = []

    def add(self, plan: StepPlan) -> None:
        first = self._first
        if first is not None and _follows(plan, first, self._num_steps):
            self._num_steps += plan.num_steps
        else:
            self._close()
            self._first, self._num_steps = plan, plan.num_steps
        for grant in plan.blocks:
            self._grants += (grant.seq, grant.group, grant.first, len(grant.blocks), *grant.blocks)

    def hexdigest(self) -> str:
        """Of all plans so far."""
        self._close()
        return self._digest.hexdigest()

    def _close(self) -> None:
        if self._first is not None:
            self._digest.update(b"".join(_parts(self._first)))
            self._digest.update(_packed("q", (self._num_steps, *self._grants)))
            self._first, self._grants = None, []


def plan_hash(plans: Iterable[StepPlan]) -> str:
    """Digest of a sequence of plans: equal seeds must give equal digests."""
    digest = PlanDigest()
    for plan in plans:
        digest.add(plan)
    return digest.hexdigest()


def _follows(plan: StepPlan, first: StepPlan, num_steps: int) -> bool:
    """Whether `plan` is what the stretch of `num_steps` steps that `first` opened goes on with."""
    if len(plan.chunks) != len(first.chunks) or plan.step != first.step + num_steps:
        return False
    if plan.roster or plan.moves or plan.encodes or plan.sampling or not plan.chunks:
        return False
    if plan.lane != first.lane or plan.program != first.program or first.sampling:
        return False
    size = plan.num_steps
    return all(
        chunk.seq == before.seq
        and chunk.start == before.start + num_steps
        and chunk.num_tokens == size
        and before.num_tokens == first.num_steps
        and before.outputs == SAMPLES_ONE
        and chunk.is_unknown
        for chunk, before in zip(plan.chunks, first.chunks, strict=True)
    )


def _parts(plan: StepPlan) -> Iterable[bytes]:
    """Everything but the number of steps and the grants."""
    rest = (plan.roster, plan.moves, plan.encodes, plan.sampling)
    yield f"{plan.step} {plan.lane} {plan.program} {rest if any(rest) else ''}\n".encode()
    plain = [chunk[3:] == UNKNOWN for chunk in plan.chunks]
    yield bytes(plain)
    numbers: list[int] = []
    for chunk, is_plain in zip(plan.chunks, plain, strict=True):
        if is_plain:
            numbers += chunk[:2]
            continue
        size, device = chunk.num_tokens // plan.num_steps, chunk.tokens is FROM_DEVICE
        extra = (chunk.drafts, chunk.snapshots, chunk.positions)
        yield f"{chunk.seq} {chunk.start} {size} {chunk.outputs} {extra} {device}\n".encode()
        yield b"" if chunk.tokens is FROM_DEVICE else _packed("i", chunk.tokens)
    yield _packed("q", numbers)


def _packed(code: str, numbers: Sequence[int]) -> bytes:
    """As the machine has them; `array` takes four times as long for it."""
    return struct.Struct(f"{len(numbers)}{code}").pack(*numbers)
