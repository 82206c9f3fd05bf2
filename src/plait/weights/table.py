"""The weight table: every tensor of one model by canonical name.

Owns the mapping, its size in bytes and the identity of the file it came from. Knows nothing about file formats.
Invariant: iteration order is the order given at construction, and nothing is read from disk until a tensor's rows are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from plait.weights.checksum import file_sha256
from plait.weights.tensor import Tensor


class WeightTable(Mapping[str, Tensor]):
    """What `Executor.load` takes its weights from. `source` is the file, for messages and for the fingerprint."""

    __slots__ = ("_sha256", "_tensors", "source", "total_bytes")

    def __init__(self, tensors: Mapping[str, Tensor], source: Path, sha256: str | None = None) -> None:
        self._tensors = dict(tensors)
        self._sha256 = sha256
        self.source = source
        self.total_bytes = sum(tensor.num_bytes for tensor in self._tensors.values())
        """Bytes of all tensors in their formats; a tied head is counted once because it is one tensor."""

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def sha256(self) -> str:
        """The source file's sha256: the one given at construction, else computed once, when first asked for."""
        if self._sha256 is None:
            self._sha256 = file_sha256(self.source)
        return self._sha256
