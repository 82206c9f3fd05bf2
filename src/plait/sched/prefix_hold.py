"""Prefix holds: a common prefix is computed once.

Owns the knowledge of which full prompt blocks running sequences are about to compute, by halves: the second half of a
block includes its first. A waiting sequence that could use the next half block of them, as part of a full block or as a
tail to copy, is held back until the block is published (CONTRACTS "a common prefix is computed once": lookup alone sees
only what exists). Less than half a block is not worth a step's wait: every prompt of a model begins with the same few
tokens.
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
    """Half blocks of prompt tokens that are being computed now, by chained hash. A block of an odd number of tokens has
    no half and counts as a whole.
    """

    def __init__(self, tokens_per_block: int) -> None:
        self._tokens_per_block = tokens_per_block
        self._halves = 1 if tokens_per_block % 2 else 2
        self._tokens_per_key = tokens_per_block // self._halves
        self._owner: dict[int, SeqId] = {}
        self._keys: dict[SeqId, list[int]] = {}

    def keys_of(self, seq: Sequence, root: Hashable) -> list[int]:
        """Chained hashes of the prompt's half blocks; kept until `forget`."""
        keys = self._keys.get(seq.id)
        if keys is None:
            keys = self._keys[seq.id] = self._chain(seq.request.prompt, root)
        return keys

    def is_held(self, seq: Sequence, root: Hashable, num_hit: int) -> bool:
        return self.holder(seq, root, num_hit) is not None

    def holder(self, seq: Sequence, root: Hashable, num_hit: int) -> SeqId | None:
        """Who is computing the first half block of `seq` that its `num_hit` cached tokens do not cover."""
        keys = self.keys_of(seq, root)
        first = num_hit // self._tokens_per_key
        # One token must be computed in any case, so a half block that ends the prompt cannot be taken from another.
        usable = (len(seq.tokens) - 1) // self._tokens_per_key
        if first >= min(usable, len(keys)):
            return None
        owner = self._owner.get(keys[first])
        return None if owner == seq.id else owner

    def computing(self, seq: Sequence, root: Hashable, num_hit: int) -> None:
        """`seq` was admitted and will compute its prompt blocks behind `num_hit`. What its prompt does not fill is
        published late or never, so nobody waits for it.
        """
        keys = self.keys_of(seq, root)
        for key in keys[num_hit // self._tokens_per_key : self._num_published(len(seq.request.prompt))]:
            self._owner.setdefault(key, seq.id)

    def computed(self, seq: Sequence) -> None:
        """`seq.num_computed` tokens are published now."""
        keys = self._keys.get(seq.id)
        if keys is None:
            return
        done = self._num_published(seq.num_computed)
        self._drop(seq.id, keys[:done])
        if done >= self._num_published(len(seq.request.prompt)):
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

    def _num_published(self, num_tokens: int) -> int:
        """Keys of the full blocks of so many computed tokens."""
        return num_tokens // self._tokens_per_block * self._halves

    def _drop(self, seq_id: SeqId, keys: list[int]) -> None:
        for key in keys:
            if self._owner.get(key) == seq_id:
                del self._owner[key]

    def _chain(self, prompt: tuple[int, ...], root: Hashable) -> list[int]:
        step = self._tokens_per_key
        keys: list[int] = []
        key = hash(root)
        for start in range(0, len(prompt) - step + 1, step):
            key = hash((key, prompt[start : start + step]))
            keys.append(key)
        return keys
