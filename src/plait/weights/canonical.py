"""Canonical: tensors of any file as the weights of a program, each named and shaped as the program expects it.

Owns what is wrong between a file and a program (missing, unexpected, misshapen, split), and cutting stacked matrices
into the ones they are made of. Knows no file format: who reads files says what each tensor is called here.
Invariant: a table that comes out holds exactly the expected names with exactly the expected shapes, all of it still in
the mapped file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from plait.core.errors import ModelError
from plait.weights.gguf_header import shown
from plait.weights.stored import StoredTensor
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

Names: TypeAlias = tuple[str, ...]
"""Our names of the parts of a tensor, from its first row to its last; most tensors have one part."""
RowOrder: TypeAlias = Callable[[str, StoredTensor], npt.NDArray[np.intp] | None]
"""Stored row of each of our rows of the named weight; None: they are the same."""

_MOST_NAMES_SHOWN: Final = 5
_NUMBERED: Final = re.compile(r"(.+\.)(0|[1-9][0-9]{0,4})(\..+)")


@dataclass(frozen=True, slots=True)
class NameMap:
    """What a family's files call its tensors. A name that has no place here is not the family's."""

    layer_name: re.Pattern[str]
    """Of a tensor in a layer: its first group is the layer's number, its second the key into `layer`."""
    layer: Mapping[str, Names]
    outside: Mapping[str, str]
    experts: Mapping[str, Names] = field(default_factory=dict)
    """Of what every expert of a layer has: keys have a `*` for its number, parts are an expert's."""

    def __or__(self, other: Mapping[str, Names]) -> NameMap:
        """The same with more names in each layer, or other meanings of them."""
        return replace(self, layer={**self.layer, **other})

    def with_experts(self, experts: Mapping[str, Names]) -> NameMap:
        return replace(self, experts={**self.experts, **experts})

    def ours(self, name: str) -> Names:
        """Our names of a tensor's parts; none for a tensor that the family does not have."""
        outside = self.outside.get(name)
        if outside is not None:
            return (outside,)
        match = self.layer_name.fullmatch(name)
        if match is None:
            return ()
        parts = self.layer.get(match[2]) or self._of_expert(match[2])
        return tuple(f"layers.{match[1]}.{part}" for part in parts)

    def _of_expert(self, name: str) -> Names:
        match = _NUMBERED.fullmatch(name) if self.experts else None
        if match is None:
            return ()
        parts = self.experts.get(f"{match[1]}*{match[3]}", ())
        return tuple(f"experts.{match[2]}.{part}" for part in parts)


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of a file, and which weights it is."""

    stored: StoredTensor
    names: Names


def weight_table(
    found: Sequence[Named],
    expected: Mapping[str, tuple[int, ...]],
    source: Path,
    sha256: str | None,
    row_order: RowOrder = lambda _name, _stored: None,
) -> WeightTable:
    """The table of `expected` names and shapes, in that order; every difference is a `ModelError` naming it."""
    given = Counter(name for one in found for name in one.names)
    missing = [name for name in expected if name not in given]
    if missing:
        raise ModelError(f"{source}: {listed(missing)} missing; the file does not hold the whole model, fetch it again")
    unexpected = [one.stored.name for one in found if not all(name in expected for name in one.names)]
    if unexpected:
        raise ModelError(f"{source}: {listed(unexpected)} not used by this model; its metadata and tensors disagree")
    twice = [one.stored.name for one in found if any(given[name] > 1 for name in one.names)]
    if twice:
        raise ModelError(
            f"{source}: {listed(twice)} for weights that another tensor is for too; use a plain checkpoint"
        )
    _check_shapes(found, expected, source)
    tensors = {tensor.name: tensor for one in found for tensor in _parts(one, expected, source, row_order)}
    return WeightTable({name: tensors[name] for name in expected}, source, sha256)


def listed(names: Iterable[str]) -> str:
    """Names for a message, the first few in full: "tensors 'a', 'b' and 12 more are"."""
    quoted = [shown(name) for name in names]
    first, rest = quoted[:_MOST_NAMES_SHOWN], len(quoted) - _MOST_NAMES_SHOWN
    more = f" and {rest:,} more" if rest > 0 else ""
    return f"tensors {', '.join(first)}{more} are" if len(quoted) > 1 else f"tensor {quoted[0]} is"


def _check_shapes(found: Sequence[Named], expected: Mapping[str, tuple[int, ...]], source: Path) -> None:
    wrong: list[str] = []
    for one in found:
        shapes = [expected[name] for name in one.names]
        whole = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        if one.stored.shape != whole:
            wrong.append(f"{shown(one.stored.name)} has shape {one.stored.shape}, not {whole}")
    if wrong:
        first, rest = wrong[:_MOST_NAMES_SHOWN], len(wrong) - _MOST_NAMES_SHOWN
        more = f" and {rest:,} more differ" if rest > 0 else ""
        raise ModelError(
            f"{source}: {', '.join(first)}{more}; the file's metadata and tensors disagree, fetch it again"
        )


def _parts(one: Named, expected: Mapping[str, tuple[int, ...]], source: Path, row_order: RowOrder) -> Iterable[Tensor]:
    stored = one.stored
    if len(stored.shape) == 1 and stored.format.block_weights > 1:
        raise ModelError(
            f"{source}: vector {shown(stored.name)} is in {stored.format.name}; vectors must be F32, F16 or BF16"
        )
    if stored.made is not None:
        (name,) = one.names
        yield Tensor(name, expected[name], stored.format, stored.raw(), made=stored.made)
        return
    rows = stored.raw().reshape(stored.shape[0], -1)
    start = 0
    for name in one.names:
        shape = expected[name]
        yield Tensor(name, shape, stored.format, rows[start : start + shape[0]], row_order(name, stored))
        start += shape[0]
