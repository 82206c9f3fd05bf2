"""Drafts: operations of the tape whose operands are still values.

Owns the numbers of an operation other than its buffers, and which values are quantised, by whom. `layout.py` finds
buffers for them.
Invariant: weights, tables and attributes here are those of the program's ops; a value that is read quantised is made
so once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from plait.core.errors import InvariantError, ModelError
from plait.exec.native import tape
from plait.exec.native.fusion import AddedProduct, Fused, GatedProducts, Plain, Projections, RotatedWrite
from plait.exec.native.recurrence import conv_spec, scan_spec, shift_spec
from plait.exec.native.tape import NONE, Indices, OpKind, OpSpec, RopeUse, RowSpace, Scheme
from plait.exec.native.uses import Uses
from plait.model.ops import (
    Act,
    Activation,
    Add,
    Attend,
    CacheWrite,
    ClampedSwish,
    Conv,
    Embed,
    EmbedSource,
    Experts,
    Glu,
    Linear,
    Mul,
    Norm,
    NormKind,
    Op,
    Pool,
    Rope,
    Route,
    RouteScore,
    Sample,
    Scale,
    Scan,
    Select,
    Shift,
    Space,
    ValueId,
    op_name,
)
from plait.model.visibility import Reach

SUPPORTED = (
    *(Embed, Norm, Linear, Rope, CacheWrite, Attend, Glu, Act, Add, Mul, Scale),
    *(Conv, Shift, Scan, Route, Experts, Select, Pool, Sample),
)

_REACHES: Mapping[Reach, tape.ReachCode] = {reach: tape.ReachCode[reach.name] for reach in Reach}
_NORMS: Mapping[NormKind, tape.NormCode] = {kind: tape.NormCode[kind.name] for kind in NormKind}
_ACTIVATIONS: Mapping[Activation, tape.ActivationCode] = {one: tape.ActivationCode[one.name] for one in Activation}
_SPACES: Mapping[Space, RowSpace] = {Space.TOKENS: RowSpace.TOKENS, Space.OUTPUTS: RowSpace.OUTPUTS}


@dataclass(frozen=True, slots=True)
class Draft:
    """`spec` has no operands yet. `outputs` are float values; `quantized` is the value that is made in 8 bits, and how
    many of its numbers share a scale.
    """

    spec: OpSpec
    inputs: tuple[ValueId, ...]
    outputs: tuple[ValueId, ...] = ()
    quantized: tuple[ValueId, int] | None = None
    reads: int = 0
    """The first input is read in 8 bits, so many of which share a scale; 0: in floats."""
    reuses: int | None = None
    """The input whose bytes the first output may take over, if nobody reads it afterwards."""


@dataclass(slots=True)
class Numbering:
    """Weights and tables get numbers in order of first use."""

    schemes: Mapping[str, Scheme]
    matrices: dict[str, int] = field(default_factory=dict)
    vectors: dict[str, int] = field(default_factory=dict)
    ropes: dict[RopeUse, int] = field(default_factory=dict)

    def matrix(self, name: str) -> int:
        return self.matrices.setdefault(name, len(self.matrices))

    def vector(self, name: str | None) -> int:
        return NONE if name is None else self.vectors.setdefault(name, len(self.vectors))

    def rope(self, op: Rope) -> int:
        return self.ropes.setdefault(RopeUse(op.spec, op.mscale, op.pairing), len(self.ropes))


def drafts_of(fused: Fused, span: int, uses: Uses, numbers: Numbering) -> list[Draft]:
    """The operations that carry out what was fused: one, but for a mixture of experts."""
    match fused:
        case Plain(Experts() as op):
            made = _mixture(op, numbers)
        case _:
            made = [_draft(fused, uses, numbers)]
    return [_placed(one, span, uses) for one in made]


def _placed(made: Draft, span: int, uses: Uses) -> Draft:
    space = uses.space((*made.outputs, *made.inputs)[0])
    return replace(made, spec=replace(made.spec, space=_SPACES[space], span=span))


def _mixture(op: Experts, numbers: Numbering) -> list[Draft]:
    """What is hidden between the two products, and what each expert gave, is no value of the program: the runtime keeps
    it.
    """
    # Matrices of the other experts follow those of the first.
    matrices = [[numbers.matrix(name) for name in names] for names in (op.gate, op.up, op.down)]
    spec = OpSpec(
        OpKind.EXPERTS_GLU,
        matrix=_three([of_all[0] for of_all in matrices]),
        weight=_three([numbers.vector(name) for name in op.biases or ()]),
        experts=op.experts,
        top_k=op.top_k,
    )
    if isinstance(op.activation, ClampedSwish):
        code = tape.ActivationCode.CLAMPED_SWISH
        spec = replace(spec, activation=code, alpha=op.activation.alpha, limit=op.activation.limit)
    else:
        spec = replace(spec, activation=_ACTIVATIONS[op.activation])
    x, routing = op.inputs
    return [
        Draft(spec, (x, routing), reads=numbers.schemes[op.gate[0]].row_group),
        Draft(replace(spec, kind=OpKind.EXPERTS_OUT), (routing,)),
        Draft(replace(spec, kind=OpKind.EXPERTS_MIX), (routing,), (op.output,)),
    ]


def _draft(fused: Fused, uses: Uses, numbers: Numbering) -> Draft:
    match fused:
        case Plain(op):
            made = _plain(op, uses, numbers)
        case Projections(linears):
            made = _products(linears, numbers)
        case AddedProduct(linear, residual, output):
            product = _products((linear,), numbers)
            # The rows that are multiplied are read until the last column is written.
            distinct = uses.root(residual) != uses.root(linear.inputs[0])
            made = replace(
                product, inputs=(*product.inputs, residual), outputs=(output,), reuses=1 if distinct else None
            )
        case GatedProducts(gate, up, glu):
            pair = _products((gate, up), numbers)
            spec = replace(pair.spec, kind=OpKind.GEMM_GLU, activation=_ACTIVATIONS[glu.activation])
            made = replace(pair, spec=spec, outputs=(glu.output,))
        case RotatedWrite(q, k, write):
            made = _rotated_write(q, k, write, uses, numbers)
    return made


def quantize(drafts: Sequence[Draft], uses: Uses) -> list[Draft]:
    """The same with every value that a product reads in 8 bits made so: by the op that makes the value where that can,
    else by an op of its own before the first reader.
    """
    wanted: dict[tuple[ValueId, int], None] = dict.fromkeys((one.inputs[0], one.reads) for one in drafts if one.reads)
    as_floats = {uses.root(value) for one in drafts for value in one.inputs[1 if one.reads else 0 :]}
    made: set[tuple[ValueId, int]] = set()
    result: list[Draft] = []
    for one in drafts:
        if one.reads and (read := (one.inputs[0], one.reads)) not in made:
            made.add(read)
            spec = OpSpec(OpKind.QUANTIZE, one.spec.space, span=one.spec.span)
            result.append(Draft(spec, (one.inputs[0],), quantized=read))
        forms = [key for key in wanted if one.outputs and key[0] == one.outputs[0]]
        if forms and _can_quantize(one.spec, forms[0][1]):
            made.add(forms[0])
            output = one.outputs[0]
            # A float copy is kept for whoever wants floats: another op, or what is quantised on its own: a view, or
            # the same numbers in groups of another size.
            views = any(uses.is_view(other) and uses.root(other) == output for other, _ in wanted)
            floats = one.outputs if output in as_floats or views or len(forms) > 1 else ()
            result.append(replace(one, outputs=floats, quantized=forms[0]))
        else:
            result.append(one)
    return result


def _can_quantize(spec: OpSpec, group_size: int) -> bool:
    if spec.kind is OpKind.ATTEND:
        # A unit is the heads of one KV head: it can quantise what it made if that is whole groups.
        return spec.heads // spec.kv_heads * spec.head_dim_v % group_size == 0
    return spec.kind in (OpKind.NORM, OpKind.GEMM_GLU, OpKind.GLU)


def _products(linears: Sequence[Linear], numbers: Numbering) -> Draft:
    first, second, third = ([linear.out_scale for linear in linears] + [1.0, 1.0])[:3]
    spec = OpSpec(
        OpKind.GEMM,
        matrix=_three([numbers.matrix(linear.weight) for linear in linears]),
        weight=_three([numbers.vector(linear.bias) for linear in linears]),
        scale=first,
        out_scale=(first, second, third),
    )
    outputs = tuple(linear.output for linear in linears)
    return Draft(spec, linears[0].inputs, outputs, reads=numbers.schemes[linears[0].weight].row_group)


def _rotated_write(q: Rope, k: Rope, write: CacheWrite, uses: Uses, numbers: Numbering) -> Draft:
    value = write.inputs[-1]
    group = uses.program.cache_groups[write.group]
    spec = OpSpec(
        OpKind.ROPE_WRITE,
        group=write.group,
        layer=write.slot,
        heads=q.heads,
        kv_heads=group.num_kv_heads,
        head_dim_k=group.head_dim_k,
        head_dim_v=group.head_dim_v,
        rope=numbers.rope(q),
    )
    return Draft(spec, (q.inputs[0], k.inputs[0], value), (q.output,), reuses=0)


def _plain(op: Op, uses: Uses, numbers: Numbering) -> Draft:
    match op:
        case Embed():
            spec = OpSpec(
                OpKind.EMBED,
                matrix=_three([numbers.matrix(op.table)]),
                scale=op.scale,
                by_position=op.source is EmbedSource.POSITIONS,
            )
            return Draft(spec, (), (op.output,))
        case Norm():
            spec = OpSpec(
                OpKind.NORM,
                weight=_three([numbers.vector(op.weight)]),
                bias=numbers.vector(op.bias),
                parts=op.parts,
                eps=op.eps,
                offset=op.offset,
                norm_kind=_NORMS[op.kind],
            )
            return Draft(spec, op.inputs, (op.output,), reuses=0)
        case Rope():
            spec = OpSpec(OpKind.ROPE, heads=op.heads, head_dim_k=op.head_dim, rope=numbers.rope(op))
            return Draft(spec, op.inputs, (op.output,), reuses=0)
        case CacheWrite() | Attend():
            return _cached(op, uses, numbers)
        case Conv():
            return Draft(conv_spec(op, uses.program.cache_groups[op.group], numbers.vector), op.inputs, (op.output,))
        case Shift():
            return Draft(shift_spec(op, uses.program.cache_groups[op.group], numbers.vector), op.inputs, (op.output,))
        case Scan():
            return Draft(scan_spec(op, uses.program.cache_groups[op.group], numbers.vector), op.inputs, (op.output,))
        case Route():
            spec = OpSpec(
                OpKind.ROUTE,
                weight=_three([numbers.vector(op.bias)]),
                scale=op.scale,
                experts=op.experts,
                top_k=op.top_k,
                normalizes=op.normalize,
                is_softmax=op.score is RouteScore.SOFTMAX,
            )
            return Draft(spec, op.inputs, (op.output,))
        case Select():
            return Draft(OpSpec(OpKind.SELECT), op.inputs, (op.output,))
        case Pool():
            return Draft(OpSpec(OpKind.POOL), op.inputs)
        case Sample():
            cap = 0.0 if op.softcap is None else op.softcap
            spec = OpSpec(OpKind.SAMPLE, scale=op.logit_scale, softcap=cap, vocab_size=op.vocab_size)
            return Draft(spec, op.inputs)
        case _:
            return _columnwise(op)


def _cached(op: CacheWrite | Attend, uses: Uses, numbers: Numbering) -> Draft:
    if op.group is None:
        raise InvariantError("attention without a cache was lowered")
    if isinstance(op, CacheWrite):
        group = uses.program.cache_groups[op.group]
        spec = OpSpec(
            OpKind.CACHE_WRITE,
            group=op.group,
            layer=op.slot,
            kv_heads=group.num_kv_heads,
            head_dim_k=group.head_dim_k,
            head_dim_v=group.head_dim_v,
        )
        return Draft(spec, op.inputs)
    spec = OpSpec(
        OpKind.ATTEND,
        group=op.group,
        layer=op.slot,
        heads=op.heads,
        kv_heads=op.kv_heads,
        head_dim_k=op.head_dim_k,
        head_dim_v=op.head_dim_v,
        scale=op.scale,
        softcap=0.0 if op.softcap is None else op.softcap,
        reach=_REACHES[op.visibility.reach],
        reach_size=op.visibility.size,
        sinks=numbers.vector(op.sinks),
    )
    return Draft(spec, op.inputs, (op.output,))


def _columnwise(op: Op) -> Draft:
    match op:
        case Glu() | Act():
            spec = OpSpec(OpKind.GLU, activation=_ACTIVATIONS[op.activation])
        case Add():
            spec = OpSpec(OpKind.ARITHMETIC, arithmetic=tape.ArithmeticCode.ADD, scale=op.factor)
        case Mul():
            spec = OpSpec(OpKind.ARITHMETIC, arithmetic=tape.ArithmeticCode.MUL)
        case Scale():
            spec = OpSpec(OpKind.ARITHMETIC, arithmetic=tape.ArithmeticCode.SCALE, scale=op.factor)
        case _:
            raise ModelError(f"the native executor does not have the operation {op_name(op)}")
    return Draft(spec, op.inputs, (op.output,))


def _three(numbers: Sequence[int]) -> Indices:
    first, second, third = (numbers[at] if at < len(numbers) else NONE for at in range(3))
    return first, second, third
