"""Tapes: a program as the native runtime takes it, in plain numbers.

Owns the form; csrc/runtime/tape.h is its twin and says what every field means, `lowering.py` writes it. Weights are
still names here: whoever loads puts numbers behind them.
Invariant: members of the enumerations below have the values of the C++ enumerators of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from plait.model.ops import Pairing
from plait.model.rope import RopeSpec


class Scheme(IntEnum):
    """Which numbers a weight matrix is made of (docs/adr/0006-number-schemes.md).

    IQ4 and Q8_16 are in no file: several formats of files become one of them, exactly (`repacking.py`).
    """

    F32 = 0
    F16 = 1
    BF16 = 2
    Q8_0 = 3
    Q4_0 = 4
    Q4_1 = 5
    Q5_0 = 6
    Q5_1 = 7
    Q4_K = 8
    Q5_K = 9
    Q6_K = 10
    INT8 = 11
    Q2_K = 12
    Q3_K = 13
    IQ4 = 14
    Q8_16 = 15

    @property
    def is_integer(self) -> bool:
        """Whether rows are quantised to 8 bits before they are multiplied."""
        return self >= Scheme.Q8_0

    @property
    def row_group(self) -> int:
        """Numbers of a row that share a scale when they are multiplied with such weights; 0: they stay floats."""
        if not self.is_integer:
            return 0
        return WIDE_GROUP_SIZE if self is Scheme.INT8 else GROUP_SIZE

    @property
    def depth_multiple(self) -> int:
        """What the length of a row is a multiple of: the numbers that share a scale, or a scale of scales. The last
        of INT8's groups may be shorter.
        """
        if not self.is_integer:
            return 1
        in_blocks = Scheme.Q4_K <= self <= Scheme.Q6_K or self in (Scheme.Q2_K, Scheme.Q3_K)
        return BLOCK_SIZE if in_blocks else GROUP_SIZE


class RowSpace(IntEnum):
    TOKENS = 0
    OUTPUTS = 1


class OpKind(IntEnum):
    EMBED = 0
    NORM = 1
    QUANTIZE = 2
    GEMM = 3
    GEMM_GLU = 4
    ROPE = 5
    CACHE_WRITE = 6
    ROPE_WRITE = 7
    ATTEND = 8
    GLU = 9
    ARITHMETIC = 10
    SELECT = 11
    SAMPLE = 12
    POOL = 13
    ROUTE = 14
    EXPERTS_GLU = 15
    EXPERTS_OUT = 16
    EXPERTS_MIX = 17


class ReachCode(IntEnum):
    CAUSAL = 0
    WINDOW = 1
    CHUNK = 2
    ALL = 3


class NormCode(IntEnum):
    RMS = 0
    LAYER = 1


class ActivationCode(IntEnum):
    SILU = 0
    GELU = 1
    GELU_TANH = 2
    RELU2 = 3
    SIGMOID = 4
    CLAMPED_SWISH = 5


class ArithmeticCode(IntEnum):
    ADD = 0
    MUL = 1
    SCALE = 2


class CacheCode(IntEnum):
    F32 = 0
    F16 = 1
    BF16 = 2
    INT8 = 3


NONE = -1
GROUP_SIZE = 32
"""Numbers along K that share a scale in the integer schemes of files."""
WIDE_GROUP_SIZE = 128
"""The same in our own."""
QUANTIZED_GROUP_BYTES = GROUP_SIZE + 16
"""Of so many numbers of a row in 8 bits, with their scale, their sums and the product of both."""
BLOCK_SIZE = 256
"""Those that share a scale of scales."""
ROW_ALIGNMENT = 64
"""Rows of buffers are whole cache lines."""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """A value kept between ops. `first_byte` is counted per row."""

    space: RowSpace
    group_size: int
    """Numbers that share a scale; 0: floats."""
    width: int
    first_byte: int


@dataclass(frozen=True, slots=True)
class Operand:
    """Columns [column, column + width) of a buffer."""

    buffer: int = NONE
    column: int = 0
    width: int = 0


NO_OPERAND = Operand()
Operands = tuple[Operand, Operand, Operand]
Indices = tuple[int, int, int]
NO_OPERANDS: Operands = (NO_OPERAND, NO_OPERAND, NO_OPERAND)
NO_INDICES: Indices = (NONE, NONE, NONE)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operation. Fields that a kind does not need keep their defaults. `in_` are inputs, `out` outputs."""

    kind: OpKind
    space: RowSpace = RowSpace.TOKENS
    in_: Operands = NO_OPERANDS
    out: Operands = NO_OPERANDS
    matrix: Indices = NO_INDICES
    weight: Indices = NO_INDICES
    bias: int = NONE
    group: int = NONE
    layer: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim_k: int = 0
    head_dim_v: int = 0
    parts: int = 1
    eps: float = 0.0
    offset: float = 0.0
    scale: float = 1.0
    out_scale: tuple[float, float, float] = (1.0, 1.0, 1.0)
    softcap: float = 0.0
    reach: ReachCode = ReachCode.CAUSAL
    reach_size: int = 0
    sinks: int = NONE
    rope: int = NONE
    norm_kind: NormCode = NormCode.RMS
    activation: ActivationCode = ActivationCode.SILU
    arithmetic: ArithmeticCode = ArithmeticCode.ADD
    by_position: bool = False
    vocab_size: int = 0
    experts: int = 0
    top_k: int = 0
    normalizes: bool = True
    is_softmax: bool = True
    alpha: float = 1.0
    limit: float = 0.0
    span: int = 0


@dataclass(frozen=True, slots=True)
class RopeUse:
    """A rope table: what it is computed from, and how columns pair."""

    spec: RopeSpec
    mscale: float
    pairing: Pairing


@dataclass(frozen=True, slots=True)
class Tape:
    """`matrices`, `vectors` and `ropes` are what ops refer to by number; the first two are names of weights."""

    ops: tuple[OpSpec, ...]
    buffers: tuple[BufferSpec, ...]
    matrices: tuple[str, ...]
    vectors: tuple[str, ...]
    ropes: tuple[RopeUse, ...]
    first_output_op: int
    """From here on ops run once per tile of output rows."""
    vocab_size: int


def row_bytes(width: int, group_size: int) -> int:
    """Bytes per row of a buffer, as the runtime counts them: floats, or groups of 8-bit numbers."""
    used = width // GROUP_SIZE * QUANTIZED_GROUP_BYTES if group_size else width * 4
    return -(-used // ROW_ALIGNMENT) * ROW_ALIGNMENT
