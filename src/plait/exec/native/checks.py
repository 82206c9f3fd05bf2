"""Checks: which programs and memory the native executor does not take.

Owns these refusals, each a `ModelError` with a way out. What it refuses in a plan is in `plait.exec.plan_limits`.
Invariant: a program and a layout that passed can be lowered and carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from plait.core.errors import ModelError
from plait.exec.native.drafts import SUPPORTED
from plait.exec.native.tape import CacheCode
from plait.model.cache_layout import CacheLayout, GroupLayout
from plait.model.cache_type import CacheType
from plait.model.mixture_config import MAX_EXPERTS
from plait.model.ops import Attend, CacheWrite, Op, Pool, Route, Sample, Space, op_name
from plait.model.program import GroupKind, Program
from plait.model.visibility import Reach

CACHE_CODES: Final[Mapping[CacheType, CacheCode]] = {
    CacheType.F32: CacheCode.F32,
    CacheType.F16: CacheCode.F16,
    CacheType.BF16: CacheCode.BF16,
    CacheType.INT8: CacheCode.INT8,
}
_WAY_OUT: Final = "use --executor reference, or a model of another family"


def check_program(program: Program) -> None:
    """`ModelError` for the first thing that cannot be carried out."""
    for op in program.ops:
        if not isinstance(op, SUPPORTED) or not _is_cached(op) or not _is_plain(op):
            raise ModelError(
                f"{program.name} needs the operation {op_name(op)}, which the native executor does not have in this "
                f"form; {_WAY_OUT}"
            )
    if program.inputs or any(value.space is Space.ENCODER for value in program.values):
        raise ModelError(f"{program.name} takes other inputs than tokens, the native executor does not; {_WAY_OUT}")
    if sum(isinstance(op, Sample) for op in program.ops) != 1 or not isinstance(program.ops[-1], Sample):
        raise ModelError(f"{program.name} does not end in logits, as the native executor needs it; {_WAY_OUT}")


def check_layout(layout: CacheLayout) -> None:
    for placed in layout.groups:
        if not _holds_keys(placed):
            raise ModelError(
                f"cache group {placed.group.name} is {placed.group.kind}; the native executor keeps keys and values "
                f"only; {_WAY_OUT}"
            )


def _is_plain(op: Op) -> bool:
    """Whatever else pools may do is for whoever asked; experts are chosen among all of them."""
    if isinstance(op, Route):
        return op.groups == 1 and op.experts <= MAX_EXPERTS
    return not isinstance(op, Pool) or op.is_plain_mean


def _is_cached(op: Op) -> bool:
    """Attention without a cache, among the rows of a chunk, and caches of encoder rows are not carried out."""
    if isinstance(op, Attend):
        return op.group is not None and op.visibility.reach is not Reach.ALL
    return not isinstance(op, CacheWrite) or len(op.inputs) == 2


def _holds_keys(placed: GroupLayout) -> bool:
    return placed.group.kind in (GroupKind.FULL, GroupKind.WINDOW, GroupKind.CHUNKED)
