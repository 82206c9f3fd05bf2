"""Lowering: which operations a program becomes, in which buffers they keep what they make, and what is refused.

Needs no native runtime: a tape is plain numbers. What they compute is looked at in test_native_executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from tests.unit.exec import test_reference_step as odd
from tests.unit.model.programs import SMOLLM2

from plait.core.errors import ModelError
from plait.exec.native.checks import check_program
from plait.exec.native.lowering import lower
from plait.exec.native.tape import GROUP_SIZE, NONE, Operand, OpKind, OpSpec, RowSpace, Scheme, Tape, row_bytes
from plait.model.builder import ProgramBuilder
from plait.model.llama import llama_program
from plait.model.ops import Activation, Embed, Linear, ValueId
from plait.model.program import Program
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL

WIDTH = 64
LLAMA_LAYER = [
    OpKind.NORM,
    OpKind.GEMM,
    OpKind.ROPE_WRITE,
    OpKind.ATTEND,
    OpKind.GEMM,
    OpKind.NORM,
    OpKind.GEMM_GLU,
    OpKind.GEMM,
]
LLAMA_HEAD = [OpKind.SELECT, OpKind.NORM, OpKind.GEMM, OpKind.SAMPLE]


def schemes(program: Program, scheme: Scheme, **others: Scheme) -> dict[str, Scheme]:
    """The same for every matrix but for those whose name ends as a keyword does."""
    names = [op.table if isinstance(op, Embed) else op.weight for op in program.ops if isinstance(op, Embed | Linear)]
    return {name: others.get(name.split(".")[-1], scheme) for name in names}


def smollm2(num_layers: int) -> Program:
    return llama_program(replace(SMOLLM2, num_layers=num_layers, layer_visibility=(CAUSAL,) * num_layers))


def kinds(tape: Tape) -> list[OpKind]:
    return [op.kind for op in tape.ops]


def built(body: Callable[[ProgramBuilder, ValueId], ValueId]) -> Program:
    b = ProgramBuilder("made-up")
    b.span("all", "all")
    x = body(b, b.embed("embed", 24, WIDTH))
    b.sample(b.linear(b.select(x), "head", 24))
    return b.finish()


def test_a_llama_is_eight_operations_a_layer() -> None:
    for scheme in (one for one in Scheme if one is not Scheme.INT8):
        program = smollm2(30)
        # Rows of 576 are no whole blocks of 256, rows of 1536 are: such files mix formats.
        elsewhere = Scheme.Q5_0 if scheme.depth_multiple > GROUP_SIZE else scheme
        tape = lower(program, schemes(program, elsewhere, down=scheme))
        assert kinds(tape) == [OpKind.EMBED, *LLAMA_LAYER * 30, *LLAMA_HEAD]
        assert tape.first_output_op == 1 + 8 * 30
        assert tape.vocab_size == program.vocab_size


def test_products_of_one_input_are_one_operation_and_the_residual_is_added_in_place() -> None:
    program = smollm2(2)
    tape = lower(program, schemes(program, Scheme.F32))
    _, norm, qkv, turn, attend, out, _, glu, down = tape.ops[:9]
    assert [tape.matrices[at] for at in qkv.matrix] == ["layers.0.q", "layers.0.k", "layers.0.v"]
    assert (turn.in_[0], turn.in_[1], turn.in_[2]) == (qkv.out[0], qkv.out[1], qkv.out[2])
    assert turn.out[0] == turn.in_[0] == attend.in_[0]
    assert [tape.matrices[at] for at in glu.matrix[:2]] == ["layers.0.gate", "layers.0.up"]
    residual = norm.in_[0]
    for product in (out, down):
        assert product.in_[1] == product.out[0] == residual


def test_integer_products_get_rows_that_whoever_makes_them_has_quantised() -> None:
    program = smollm2(2)
    tape = lower(program, schemes(program, Scheme.Q4_1))
    assert OpKind.QUANTIZE not in kinds(tape)
    for op in tape.ops:
        if op.kind in (OpKind.NORM, OpKind.ATTEND, OpKind.GEMM_GLU):
            assert op.out[0].buffer == NONE, "nobody wants floats"
            assert tape.buffers[op.out[1].buffer].group_size == 32
        if op.kind in (OpKind.GEMM, OpKind.GEMM_GLU):
            assert tape.buffers[op.in_[0].buffer].group_size == 32


def test_a_format_may_differ_from_matrix_to_matrix() -> None:
    program = smollm2(1)
    tape = lower(program, schemes(program, Scheme.Q4_1, v=Scheme.F16, down=Scheme.F32, embed=Scheme.Q8_0))
    norm, qk, v = tape.ops[1:4]
    assert [tape.matrices[at] for at in (*qk.matrix[:2], v.matrix[0])] == ["layers.0.q", "layers.0.k", "layers.0.v"]
    assert qk.matrix[2] == v.matrix[1] == NONE
    assert (norm.out[0], norm.out[1]) == (v.in_[0], qk.in_[0])
    down = tape.ops[9]
    assert tape.matrices[down.matrix[0]] == "layers.0.down"
    assert tape.buffers[down.in_[0].buffer].group_size == 0


def test_int8_takes_rows_in_groups_of_128_which_a_kv_heads_columns_may_not_be() -> None:
    program = smollm2(1)
    tape = lower(program, schemes(program, Scheme.INT8))
    kinds_of_layer = [OpKind.NORM, OpKind.GEMM, OpKind.ROPE_WRITE, OpKind.ATTEND, OpKind.QUANTIZE, OpKind.GEMM]
    assert kinds(tape)[1:7] == kinds_of_layer, "192 columns of a KV head are no whole groups"
    assert kinds(tape).count(OpKind.QUANTIZE) == 1
    for op in tape.ops:
        if op.kind in (OpKind.GEMM, OpKind.GEMM_GLU):
            assert tape.buffers[op.in_[0].buffer].group_size == 128


def test_a_value_is_quantised_once_for_each_size_of_groups() -> None:
    program = smollm2(1)
    tape = lower(program, schemes(program, Scheme.INT8, v=Scheme.Q8_0, up=Scheme.Q4_1))
    sizes = {
        tape.matrices[at]: tape.buffers[op.in_[0].buffer].group_size
        for op in tape.ops
        if op.kind is OpKind.GEMM
        for at in op.matrix
        if at != NONE
    }
    layer = {name.split(".")[-1]: size for name, size in sizes.items()}
    expected = {"q": 128, "k": 128, "v": 32, "o": 128, "gate": 128, "up": 32, "down": 128}
    assert {name: layer[name] for name in expected} == expected
    assert OpKind.GEMM_GLU not in kinds(tape), "gate and up take different rows"


def test_attention_whose_heads_are_no_whole_groups_is_quantised_on_its_own() -> None:
    def body(b: ProgramBuilder, x: ValueId) -> ValueId:
        group = b.kv_group("full", 1, 4, 16)
        q, k, v = (b.linear(x, name, WIDTH) for name in "qkv")
        b.cache_write(k, v, group, 0)
        return b.linear(b.attend(q, group, 0, 4), "o", WIDTH)

    program = built(body)
    tape = lower(program, schemes(program, Scheme.Q8_0))
    quantized_first = [OpKind.EMBED, OpKind.QUANTIZE, OpKind.GEMM, OpKind.CACHE_WRITE, OpKind.ATTEND, OpKind.QUANTIZE]
    assert kinds(tape)[:6] == quantized_first


def test_a_tied_table_is_one_matrix() -> None:
    program = smollm2(1)
    tape = lower(program, schemes(program, Scheme.Q8_0))
    assert tape.ops[0].matrix[0] == tape.ops[-2].matrix[0]
    assert tape.matrices.count("embed") == 1


def test_thirty_layers_take_no_more_memory_than_two() -> None:
    for scheme in (Scheme.F32, Scheme.Q4_1, Scheme.INT8):
        few, many = (lower(smollm2(n), schemes(smollm2(n), scheme)).buffers for n in (2, 30))
        assert many == few
        tokens = [one for one in few if one.space is RowSpace.TOKENS]
        most = max(one.first_byte + row_bytes(one.width, one.group_size) for one in tokens)
        assert most < 12_000, "bytes a row: residual, what is read, and what is made"


def test_what_is_wanted_twice_is_not_swallowed_by_a_fusion() -> None:
    def body(b: ProgramBuilder, x: ValueId) -> ValueId:
        gate, up = b.linear(x, "gate", WIDTH), b.linear(x, "up", WIDTH)
        product = b.linear(b.glu(gate, up, Activation.SILU), "down", WIDTH)
        return b.add(b.add(product, x), b.mul(gate, product))

    program = built(body)
    middle = kinds(lower(program, schemes(program, Scheme.F32)))[1:-3]
    assert middle == [OpKind.GEMM, OpKind.GLU, OpKind.GEMM, OpKind.ARITHMETIC, OpKind.ARITHMETIC, OpKind.ARITHMETIC]


def test_a_factor_is_never_lost() -> None:
    def body(b: ProgramBuilder, x: ValueId) -> ValueId:
        return b.add(b.linear(x, "w", WIDTH, out_scale=3.0), x, factor=0.5)

    program = built(body)
    tape = lower(program, schemes(program, Scheme.F32))
    assert (tape.ops[1].kind, tape.ops[1].out_scale[0], tape.ops[2].scale) == (OpKind.GEMM, 3.0, 0.5)


def test_queries_that_are_read_before_the_cache_is_written_are_rotated_in_time() -> None:
    spec = RopeSpec(10_000.0, WIDTH, 40)

    def body(b: ProgramBuilder, x: ValueId) -> ValueId:
        group = b.kv_group("full", 1, 1, WIDTH)
        q, k, v = (b.linear(x, name, WIDTH) for name in "qkv")
        q, k = b.rope(q, spec, 1), b.rope(k, spec, 1)
        v = b.add(v, q)
        b.cache_write(k, v, group, 0)
        return b.attend(q, group, 0, 1)

    program = built(body)
    middle = kinds(lower(program, schemes(program, Scheme.F32)))[1:-3]
    rotated = [OpKind.GEMM, OpKind.ROPE, OpKind.ROPE, OpKind.GEMM, OpKind.CACHE_WRITE, OpKind.ATTEND]
    assert sorted(middle) == sorted(rotated)
    assert middle.index(OpKind.ROPE) < len(middle) - 1 - middle[::-1].index(OpKind.GEMM)


def test_what_is_computed_of_tokens_comes_before_rows_of_them_are_selected() -> None:
    b = ProgramBuilder("made-up")
    group = b.kv_group("full", 1, 1, WIDTH)
    b.span("all", "all")
    x = b.embed("embed", 24, WIDTH)
    rows = b.select(x)
    k = b.linear(x, "k", WIDTH)
    b.cache_write(k, k, group, 0)
    b.sample(b.linear(rows, "head", 24))
    program = b.finish()
    tape = lower(program, schemes(program, Scheme.F32))
    assert kinds(tape) == [
        OpKind.EMBED,
        OpKind.GEMM,
        OpKind.CACHE_WRITE,
        OpKind.SELECT,
        OpKind.GEMM,
        OpKind.SAMPLE,
    ]
    assert tape.first_output_op == 3


PROGRAMS: Mapping[str, Program] = {
    **{name: odd.build(body) for name, (body, _) in odd.PROGRAMS.items()},
    "a llama": smollm2(3),
}


@pytest.mark.parametrize(
    ("name", "scheme"),
    [*((name, Scheme.F32) for name in PROGRAMS), ("a llama", Scheme.Q8_0), ("a llama", Scheme.INT8)],
    ids=str,
)
def test_whatever_is_read_lies_there_whole(name: str, scheme: Scheme) -> None:
    """Every write takes bytes; a read must find all of them as one write left them."""
    program = PROGRAMS[name]
    tape = lower(program, schemes(program, scheme))
    owner: dict[tuple[RowSpace, int], int] = {}

    def covered(operand: Operand) -> list[tuple[RowSpace, int]]:
        buffer = tape.buffers[operand.buffer]
        size = row_bytes(buffer.width, buffer.group_size)
        return [(buffer.space, byte) for byte in range(buffer.first_byte, buffer.first_byte + size, 64)]

    for number, op in enumerate(tape.ops):
        for operand in used(op.in_):
            assert len({owner.get(byte) for byte in covered(operand)} - {None}) == 1
            assert all(byte in owner for byte in covered(operand))
            assert operand.column + operand.width <= tape.buffers[operand.buffer].width
        written = [byte for operand in used(op.out) for byte in covered(operand)]
        assert len(written) == len(set(written)), "two outputs share bytes"
        owner |= dict.fromkeys(written, number)
        check_overlap(op, {byte for operand in used(op.in_) for byte in covered(operand)}, set(written))


def used(operands: tuple[Operand, ...]) -> list[Operand]:
    return [operand for operand in operands if operand.buffer != NONE]


def check_overlap(op: OpSpec, read: set[tuple[RowSpace, int]], written: set[tuple[RowSpace, int]]) -> None:
    """Outputs lie apart from inputs, but for operations that say so: norms, rotations, and products' residuals."""
    if op.kind in (OpKind.NORM, OpKind.ROPE, OpKind.ROPE_WRITE) and op.out[0] == op.in_[0]:
        return
    if op.kind is OpKind.GEMM and op.out[0] == op.in_[1]:
        return
    assert not read & written


def test_a_depth_that_is_no_whole_groups_is_refused_by_name() -> None:
    program = odd.build(odd.fused_qkv)
    with pytest.raises(ModelError, match="weight qkv has rows of 8 numbers in Q8_0, which are not whole groups of 32"):
        lower(program, schemes(program, Scheme.Q8_0))
    with pytest.raises(ModelError, match="weight qkv has rows of 8 numbers in Q4_K, which are not whole groups of 256"):
        lower(program, schemes(program, Scheme.Q4_K))


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (odd.build(odd.with_groups_of_experts), "needs the operation Route"),
        (odd.build(odd.without_a_cache), "needs the operation Attend"),
        (odd.pooled(), "does not end in logits"),
        (odd.headless(), "does not end in logits"),
        (odd.drafter(), "other inputs than tokens"),
    ],
    ids=["experts", "no cache", "pooled", "headless", "drafter"],
)
def test_a_program_that_it_cannot_carry_out_is_refused_with_a_way_out(program: Program, named: str) -> None:
    with pytest.raises(ModelError, match=named) as refusal:
        check_program(program)
    assert "--executor reference" in str(refusal.value)
