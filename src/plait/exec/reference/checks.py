"""Checks: what the reference executor refuses, before any of it is carried out.

Owns the operations that this executor does not have (`ModelError`). What it refuses in a plan is for
`plait.exec.plan_limits` to find, what is wrong with a plan on any executor for `plait.exec.intake`.
Invariant: a program that passed can be executed without a further check.
"""

from __future__ import annotations

from plait.core.errors import ModelError
from plait.exec.reference.recurrence import STEPS
from plait.exec.reference.step import SUPPORTED
from plait.model.ops import Attend, CacheWrite, Op, Pool, Route, Sample, Scan, Space
from plait.model.program import Program


def check_program(program: Program) -> None:
    """`ModelError` for the first thing that cannot be executed."""
    for op in program.ops:
        if not isinstance(op, SUPPORTED) or not _is_known_form(op):
            raise ModelError(
                f"{program.name} needs the operation {type(op).__name__}, which the reference executor does not have"
                " in this form; choose a model of another family"
            )
    if program.inputs or any(value.space is Space.ENCODER for value in program.values):
        raise ModelError(f"{program.name} takes other inputs than tokens; the reference executor runs text models only")
    if not isinstance(program.ops[-1], Sample):
        raise ModelError(f"{program.name} does not end in logits; the reference executor runs text generation only")


def _is_known_form(op: Op) -> bool:
    """Attention without a cache, caches of encoder rows and some kinds of scans, pools and routes are not."""
    match op:
        case Attend():
            return op.group is not None
        case CacheWrite():
            return len(op.inputs) == 2
        case Pool():
            return op.is_plain_mean
        case Route():
            return op.groups == 1
        case Scan():
            return op.kind in STEPS
        case _:
            return True
