"""Ids: the small integers that rooms exchange instead of objects.

Invariant: an id is never reused within the life of one engine, except rows, blocks and pages, which name places.
"""

from __future__ import annotations

from typing import NewType

RequestId = NewType("RequestId", str)
SeqId = NewType("SeqId", int)
"""One stream of tokens being extended; ascending in order of admission."""

StepId = NewType("StepId", int)
"""One launch; ascending in order of submission over all lanes."""

LaneId = NewType("LaneId", int)
GroupId = NewType("GroupId", int)
"""A cache group of a Program: its place in `Program.cache_groups`."""

BlockId = NewType("BlockId", int)
"""A block of one cache group, 0 <= block < GroupLayout.num_blocks; its bytes lie at `block * block_bytes`."""

PageId = NewType("PageId", int)
