"""Op names: what the operations of a tape are called where people read about them.

Owns names (`layers.3.q,k,v gemm Q4_1`) and kinds (`gemm q,k,v`), which are the same in every layer.
Invariant: one name and one kind for each operation of the tape, in its order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plait.exec.native.tape import NONE, OpKind, OpSpec, RowSpace, Scheme, Tape
from plait.model.program import Program

_WORDS: Mapping[OpKind, str] = {
    OpKind.EMBED: "embed",
    OpKind.NORM: "norm",
    OpKind.QUANTIZE: "quantise",
    OpKind.GEMM: "gemm",
    OpKind.GEMM_GLU: "gemm+glu",
    OpKind.ROPE: "rope",
    OpKind.CACHE_WRITE: "cache write",
    OpKind.ROPE_WRITE: "rope+cache write",
    OpKind.ATTEND: "attention",
    OpKind.GLU: "glu",
    OpKind.ARITHMETIC: "arithmetic",
    OpKind.SELECT: "select",
    OpKind.SAMPLE: "sampler",
    OpKind.POOL: "pool",
    OpKind.ROUTE: "route",
    OpKind.EXPERTS_GLU: "experts gate,up",
    OpKind.EXPERTS_OUT: "experts down",
    OpKind.EXPERTS_MIX: "experts sum",
}


@dataclass(frozen=True, slots=True)
class OpName:
    name: str
    kind: str


def op_names(program: Program, tape: Tape, schemes: Mapping[str, Scheme]) -> tuple[OpName, ...]:
    """`schemes`: of every weight that is a matrix, by name."""
    return tuple(_named(program.spans[op.span].name, op, tape, schemes) for op in tape.ops)


def _named(span: str, op: OpSpec, tape: Tape, schemes: Mapping[str, Scheme]) -> OpName:
    word = _WORDS[op.kind]
    if op.kind not in (OpKind.QUANTIZE, OpKind.GEMM, OpKind.GEMM_GLU) and op.out[1].buffer != NONE:
        word += "+quantise"
    matrices = [tape.matrices[index] for index in op.matrix if index != NONE]
    if op.kind in (OpKind.GEMM, OpKind.GEMM_GLU):
        roles = ",".join(_role(name, span) for name in matrices)
        numbers = "/".join(dict.fromkeys(schemes[name].name for name in matrices))
        kind = "head" if op.space is RowSpace.OUTPUTS else f"{word} {roles}"
        return OpName(f"{span}.{roles} {word} {numbers}", kind)
    if op.kind in (OpKind.EXPERTS_GLU, OpKind.EXPERTS_OUT):
        numbers = schemes[matrices[0 if op.kind is OpKind.EXPERTS_GLU else 2]].name
        return OpName(f"{span}.{word} {numbers}", word)
    weights = [tape.vectors[index] for index in op.weight if index != NONE]
    where = f"{span}.{_role(weights[0], span)}" if op.kind is OpKind.NORM and weights else span
    return OpName(f"{where} {word}" if where != word else word, word)


def _role(weight: str, span: str) -> str:
    """A weight's name without its layer's."""
    return weight.removeprefix(f"{span}.")
