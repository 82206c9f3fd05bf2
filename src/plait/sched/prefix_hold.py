"""Prefix holds: a common prefix is computed once.

Owns the knowledge of which prompt blocks running sequences are about to compute. A waiting sequence whose next
uncached block is among them is held back until it is published (CONTRACTS "a common prefix is computed once": lookup
alone sees only what exists).
Invariant: every entry belongs to a running sequence that has not computed that block yet, so a held sequence is
always released by a step of somebody else, by that sequence's end, or by its preemption.

Keys are chained hashes; a collision can only hold a sequence for nothing, never share wrong memory, because hits
compare token ids.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from plait.core.errors import InvariantError
from plait.core.ids import SeqId
from plait.core.request import Sequence


class PrefixHolds:
    """Blocks of `tokens_per_block` prompt tokens that are being computed now, by chained hash."""

    def __init__(self, tokens_per_block: int) -> None:
        self._tokens_per_block = tokens_per_block
        self._owner: dict[int, SeqId] = {}
        self._keys: dict[SeqId, list[int]] = {}

    def keys_of(self, seq: Sequence, root: Hashable) -> list[int]:
        """Chained hashes of the full prompt blocks of a sequence; kept until `forget`."""
        keys = self._keys.get(seq.id)
        if keys is None:
            keys = self._keys[seq.id] = self._chain(seq.request.prompt, root)
        return keys

    def is_held(self, seq: Sequence, root: Hashable, num_hit: int) -> bool:
        """Whether somebody is computing the first full prompt block of `seq` behind its `num_hit` cached tokens."""
        keys = self.keys_of(seq, root)
        first = num_hit // self._tokens_per_block
        # One token must be computed in any case, so a block that ends the prompt can never be taken from another.
        usable = (len(seq.tokens) - 1) // self._tokens_per_block
        return first < min(usable, len(keys)) and self._owner.get(keys[first], seq.id) != seq.id

    def computing(self, seq: Sequence, root: Hashable, num_hit: int) -> None:
        """`seq` was admitted and will compute its prompt blocks behind `num_hit`."""
        for key in self.keys_of(seq, root)[num_hit // self._tokens_per_block :]:
            self._owner.setdefault(key, seq.id)

    def computed(self, seq: Sequence) -> None:
        """`seq.num_computed` tokens are published now."""
        keys = self._keys.get(seq.id)
        if keys is None:
            return
        done = min(seq.num_computed // self._tokens_per_block, len(keys))
        self._drop(seq.id, keys[:done])
        if done == len(keys):
            del self._keys[seq.id]

    def forget(self, seq: Sequence) -> None:
        """`seq` ended or was preempted: what it had not computed yet is free for others."""
        self._drop(seq.id, self._keys.pop(seq.id, []))

    def check(self, running: Collection[SeqId], known: Collection[SeqId]) -> None:
        """Raise `InvariantError` if somebody who does not run holds a block, or something of a stranger is kept."""
        idle = [seq_id for seq_id in self._owner.values() if seq_id not in running]
        if idle:
            raise InvariantError(f"holds: sequences {idle} hold others back but do not run")
        strangers = [seq_id for seq_id in self._keys if seq_id not in known]
        if strangers:
            raise InvariantError(f"holds: keys of sequences {strangers} are kept, which have ended")

    def _drop(self, seq_id: SeqId, keys: list[int]) -> None:
        for key in keys:
            if self._owner.get(key) == seq_id:
                del self._owner[key]

    def _chain(self, prompt: tuple[int, ...], root: Hashable) -> list[int]:
        step = self._tokens_per_block
        keys: list[int] = []
        key = hash(root)
        for start in range(0, len(prompt) - step + 1, step):
            key = hash((key, prompt[start : start + step]))
            keys.append(key)
        return keys
