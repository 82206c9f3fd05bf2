"""The weight table: every tensor of one model by canonical name.

Owns the mapping, its size in bytes and the identity of the file it came from. Knows nothing about file formats.
Invariant: iteration order is the order given at construction, and nothing is read from disk until a tensor's rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from plait.core.errors import ModelError
from plait.weights.checksum import file_sha256
from plait.weights.formats import INT8, Q4_1, WeightFormat
from plait.weights.tensor import Tensor


class WeightTable(Mapping[str, Tensor]):
    """What `Executor.load` takes its weights from. `source` is the file, for messages and for the fingerprint."""

    __slots__ = ("_checksum", "_sha256", "_tensors", "quantized", "source", "total_bytes")

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        source: Path,
        sha256: str | None = None,
        quantized: str = "",
        checksum: Callable[[], str] | None = None,
    ) -> None:
        self._tensors = dict(tensors)
        self._sha256 = sha256
        self._checksum = checksum
        self.source = source
        self.quantized = quantized
        """What the file's weights were rounded to, `int8` or `int4`; empty: they are the file's."""
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
        """The model's sha256: the one given at construction, else computed once, when first asked for."""
        if self._sha256 is None:
            self._sha256 = file_sha256(self.source) if self._checksum is None else self._checksum()
        return self._sha256

    @property
    def identity(self) -> str:
        """What these numbers are: the file's sha256, and what they were rounded to."""
        return f"{self.sha256}+{self.quantized}" if self.quantized else self.sha256

    @property
    def short_identity(self) -> str:
        """For fingerprints."""
        return f"{self.sha256[:16]}+{self.quantized}" if self.quantized else self.sha256[:16]

    def named_by(self, checksum: Callable[[], str]) -> WeightTable:
        """The same, with `checksum` to compute what it is where it did not come from the bytes of one file."""
        return WeightTable(self._tensors, self.source, self._sha256, self.quantized, checksum)

    def rounded(self, quantized: str, matrices: Mapping[str, str], head: str) -> WeightTable:
        """The same with the weights of products rounded: `matrices` says what each is made from, which for a head that
        is the embedding table is another name. With `int4` the head is kept in 8 bits, as it decides between tokens.
        """
        made = {
            name: _rounded(name, self[source], INT8 if quantized == "int8" or name == head else Q4_1)
            for name, source in matrices.items()
        }
        return WeightTable({**self._tensors, **made}, self.source, self._sha256, quantized, self._checksum)


def _rounded(name: str, tensor: Tensor, to: WeightFormat) -> Tensor:
    if to is Q4_1 and tensor.format.bits_per_weight <= to.bits_per_weight:
        # As small already: another rounding would only lose.
        return replace(tensor, name=name)
    width = tensor.num_weights // tensor.num_rows
    if width % to.block_weights:
        raise ModelError(
            f"weight {name} has rows of {width} numbers, which are not whole groups of {to.block_weights}; "
            "leave out --quantize"
        )
    return replace(tensor, name=name, format=to, rounded_from=tensor.format)
