"""Operations: the closed list of what a model may do, semantic and unfused.

Owns each operation's shapes, row space, attributes and written definition; an executor that follows the definition is
correct, and may fuse as it likes within docs/concepts/numerics.md. Weights are names, cache places are (group, slot).
Invariant: nothing here depends on what the tokens are; all that changes from step to step comes from the plan.

Notation: x[r, c] is row r, column c of a value of R rows. Arithmetic is float32 unless said otherwise. A "chain" is one
accumulation in ascending order from 0, never split. A `slot` of an op is a layer's place in its cache group.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, get_args

from plait.core.ids import GroupId
from plait.model.rope import RopeSpec
from plait.model.visibility import Visibility

ValueId = NewType("ValueId", int)
"""A value of a Program: its place in `Program.values`."""

KEY_TILE = 256
"""Keys per tile of the canonical attention; tiles start at absolute slots 0, 256, 512, ..."""


class Space(StrEnum):
    """What the rows of a value are."""

    TOKENS = "tokens"
    """All tokens of the step: chunk after chunk in plan order, in a chunk by slot."""
    OUTPUTS = "outputs"
    """The rows that give outputs: chunk after chunk, in a chunk output after output, in an output by row."""
    ENCODER = "encoder"
    """Rows of the images being encoded, image after image; each image is one chunk starting at 0."""


@dataclass(frozen=True, slots=True)
class Value:
    """Rows of `width` float32 numbers.

    With `base` it is a view, defined by no op: columns [offset, offset + width) of that value.
    """

    id: ValueId
    space: Space
    width: int
    name: str
    base: ValueId | None = None
    offset: int = 0


class EmbedSource(StrEnum):
    TOKENS = "tokens"
    """Row r of the table entry of its token id."""
    POSITIONS = "positions"
    """Row r of the table entry of its position (learned absolute positions)."""


@dataclass(frozen=True, slots=True)
class Embed:
    """y[r, :] = scale * table[index of r, :].  inputs: none; output: [R, D] in TOKENS; table: [entries, D]."""

    inputs: tuple[()]
    output: ValueId
    table: str
    scale: float = 1.0
    source: EmbedSource = EmbedSource.TOKENS


@dataclass(frozen=True, slots=True)
class Place:
    """y = x with the rows that stand for image tokens replaced by the rows kept in `group`, by the plan's map.

    inputs: (x,), output: [R, D] in TOKENS; group: an EMBEDDING group of width D, which the encoder program writes.
    """

    inputs: tuple[ValueId]
    output: ValueId
    group: GroupId


class NormKind(StrEnum):
    RMS = "rms"
    LAYER = "layer"


@dataclass(frozen=True, slots=True)
class Norm:
    """Normalises each row, or each of its `parts` equal parts of n = D / parts columns (a per-head norm).

    RMS    y[c] = x[c] / sqrt(mean(x^2) + eps) * (offset + w[c])
    LAYER  y[c] = (x[c] - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * (offset + w[c]) + b[c]

    eps is added inside the root. Means are over the part's n columns, in an order that depends on n alone.
    inputs: (x,); output: [R, D]; weight (and bias): [D], or [n] and used by every part; None: w = 1, b = 0.
    `offset` is 0, or 1 for weights stored around zero.
    """

    inputs: tuple[ValueId]
    output: ValueId
    weight: str | None
    eps: float
    kind: NormKind = NormKind.RMS
    bias: str | None = None
    offset: float = 0.0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Linear:
    """y[r, n] = out_scale * (sum_k x[r, k] * w[n, k] + b[n]), the sum one chain over k from 0, the bias added after it.

    inputs: (x,) [R, K]; output: [R, N]; weight: [N, K]; bias: [N] or None.
    If `adaptable`, a row whose sequence has an adapter for this weight adds its low-rank term before the bias.
    """

    inputs: tuple[ValueId]
    output: ValueId
    weight: str
    bias: str | None = None
    out_scale: float = 1.0
    adaptable: bool = False


class Pairing(StrEnum):
    HALF = "half"
    """Pair i is columns (i, i + rotary_dim / 2) of a head."""
    INTERLEAVED = "interleaved"
    """Pair i is columns (2 i, 2 i + 1) of a head."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotates the first spec.rotary_dim columns of each head; the others pass through.

    Row at position p, pair i of columns (a, b), f = `frequencies(spec)`: c = mscale cos(p f_i), s = mscale sin(p f_i),
    in double precision, then rounded to float32;  y[a] = x[a] c - x[b] s;  y[b] = x[b] c + x[a] s.
    p comes from the plan: `Chunk.positions`, or start, start + 1, ...; in ENCODER it is the row's place in its image.
    inputs: (x,); output: [R, heads * head_dim].
    """

    inputs: tuple[ValueId]
    output: ValueId
    spec: RopeSpec
    heads: int
    head_dim: int
    pairing: Pairing = Pairing.HALF
    mscale: float = 1.0


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """Puts each row's k and v, rounded to the cache's number type (nearest, ties even), into layer `slot` of `group`.

    Where: the row's token slot, through the block table of its sequence. Attention never uses the unrounded values.
    inputs: (k, v) [R, kv_heads * d_k], [R, kv_heads * d_v], or (x,) [R, D] for an EMBEDDING group; no output.
    """

    inputs: tuple[ValueId, ValueId] | tuple[ValueId]
    group: GroupId
    slot: int
    output: None = None


@dataclass(frozen=True, slots=True)
class Attend:
    """y[r, h, :] = sum_j p_j v_j over the keys j visible to row r, head h using KV head h // (heads / kv_heads).

    z_j = scale * sum_d q_d k_jd (chain);  with softcap: z_j = softcap * tanh(z_j / softcap);  p = softmax(z).
    Canonical order, the same for every row: keys in tiles of KEY_TILE at absolute slots, ascending; per tile m = max z,
    l = sum_j exp(z_j - m), o = sum_j exp(z_j - m) v_j (chain), over visible keys only, because slots behind them may
    hold NaN; tiles are merged in order; y = o / l. `sinks` [heads] adds a first tile with m = sink, l = 1, o = 0.

    Keys and values are always read back from layer `slot` of `group`. A row of a draft tree sees its sequence and its
    ancestors, in logical order. inputs: (q,) [R, heads * d_k]; output: [R, heads * d_v].
    Without a group (encoders that keep nothing) inputs are (q, k, v) and the keys are the rows of the same chunk.
    """

    inputs: tuple[ValueId] | tuple[ValueId, ValueId, ValueId]
    output: ValueId
    group: GroupId | None
    slot: int
    heads: int
    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    scale: float
    visibility: Visibility
    softcap: float | None = None
    sinks: str | None = None


class Activation(StrEnum):
    SILU = "silu"
    """x / (1 + exp(-x))"""
    GELU = "gelu"
    """x / 2 * (1 + erf(x / sqrt 2))"""
    GELU_TANH = "gelu_tanh"
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))"""
    RELU2 = "relu2"
    """max(x, 0)^2"""
    SIGMOID = "sigmoid"
    """1 / (1 + exp(-x))"""


@dataclass(frozen=True, slots=True)
class Glu:
    """y = activation(gate) * up, column by column.  inputs: (gate, up) [R, F]; output: [R, F]."""

    inputs: tuple[ValueId, ValueId]
    output: ValueId
    activation: Activation


@dataclass(frozen=True, slots=True)
class Act:
    """y = activation(x).  inputs: (x,); output: [R, F]."""

    inputs: tuple[ValueId]
    output: ValueId
    activation: Activation


@dataclass(frozen=True, slots=True)
class Add:
    """y = a + factor * b, the product rounded first.  inputs: (a, b) [R, D]; output: [R, D]."""

    inputs: tuple[ValueId, ValueId]
    output: ValueId
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Mul:
    """y = a * b.  inputs: (a, b) [R, D] and [R, D] or [R, 1] (one gate per row); output: [R, D]."""

    inputs: tuple[ValueId, ValueId]
    output: ValueId


@dataclass(frozen=True, slots=True)
class Scale:
    """y = factor * x.  inputs: (x,); output: [R, D]."""

    inputs: tuple[ValueId]
    output: ValueId
    factor: float


@dataclass(frozen=True, slots=True)
class Conv:
    """Causal convolution along tokens, channel by channel, W = width:

    y[t, c] = activation(sum_j w[c, j] * x[t - W + 1 + j, c] + b[c]), a chain over j.

    Tokens before the chunk come from the running state (zeros at the start of a sequence): part `part` of layer `slot`
    of a STATE group, [C, W - 1] float32, oldest first. Snapshots are bit copies where the plan asks for them.
    inputs: (x,); output: [R, C] in TOKENS; weight: [C, W]; bias: [C] or None.
    """

    inputs: tuple[ValueId]
    output: ValueId
    weight: str
    width: int
    group: GroupId
    slot: int
    part: int = 0
    bias: str | None = None
    activation: Activation | None = None


class ScanKind(StrEnum):
    """Which recurrence, as written at `Scan`."""

    MAMBA1 = "mamba1"
    MAMBA2 = "mamba2"
    GATED_DELTA = "gated_delta"
    RWKV7 = "rwkv7"


@dataclass(frozen=True, slots=True)
class Scan:
    """A recurrence along tokens, one after another whatever the chunks, head by head; S is the state of head h.

    H heads, P = head_dim, N = state_dim, G = groups, g = h // (H / G), sp(x) = log(1 + exp(x)); sums are chains.

    MAMBA1       inputs x [H], dt [H], B [N], C [N] per row, P = 1; weights A_log [H, N], D [H], dt_bias [H]
                 d = sp(dt_h + dt_bias_h);  S[n] = exp(-d exp(A_log[h, n])) S[n] + d x_h B[n]
                 y_h = sum_n C[n] S[n] + D_h x_h
    MAMBA2       inputs x [H P], dt [H], B [G N], C [G N]; weights A_log [H], D [H], dt_bias [H]
                 d = sp(dt_h + dt_bias_h);  S[p, n] = exp(-d exp(A_log_h)) S[p, n] + d x[h, p] B[g, n]
                 y[h, p] = sum_n C[g, n] S[p, n] + D_h x[h, p]
    GATED_DELTA  inputs q [G N], k [G N], v [H P], a [H], b [H]; weights A_log [H], dt_bias [H]
                 q_g, k_g divided by sqrt(sum of their squares + 1e-6), q_g also by sqrt(N)
                 S = exp(-exp(A_log_h) sp(a_h + dt_bias_h)) S;  u = (v_h - S k_g) / (1 + exp(-b_h))
                 S = S + u k_g^T;  y_h = S q_g
    RWKV7        inputs r, w, k, v, a, b [H N] each, P = N; no weights
                 S = S diag(exp(-exp(w_h))) + (S a_h) b_h^T + v_h k_h^T;  y_h = S r_h

    output: [R, H P] in TOKENS. The state [H, P, N], float32 and zeros at the start of a sequence, is part `part` of
    layer `slot` of a STATE group; whether a chunk has one, and its snapshots (bit copies), come from the plan.
    """

    inputs: tuple[ValueId, ...]
    output: ValueId
    kind: ScanKind
    weights: tuple[str, ...]
    heads: int
    head_dim: int
    state_dim: int
    group: GroupId
    slot: int
    part: int = 0
    groups: int = 1

    @property
    def state_elements(self) -> int:
        return self.heads * self.head_dim * self.state_dim


class RouteScore(StrEnum):
    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class Route:
    """Chooses `top_k` of `experts` for each row, by the logits z that a Linear made.

    SOFTMAX s_e = exp(z_e - max z) / sum_e exp(z_e - max z), a chain; SIGMOID s_e = 1 / (1 + exp(-z_e)).
    Ranking by z, or with a bias by s + bias, descending, ties by lowest expert; what is not a number ranks last. With
    `groups` > 1 only the `top_groups` groups whose two best experts have the largest sum of s + bias take part. A
    chosen expert's weight is its s, divided by the sum over the chosen ones (a chain in ranking order) if `normalize`,
    times `scale`.
    inputs: (z,) [R, experts]; output: [R, 2 top_k]: expert ids in ranking order (exact in float32), then their weights;
    bias: [experts] or None.
    """

    inputs: tuple[ValueId]
    output: ValueId
    experts: int
    top_k: int
    score: RouteScore = RouteScore.SOFTMAX
    normalize: bool = True
    scale: float = 1.0
    bias: str | None = None
    groups: int = 1
    top_groups: int = 1


@dataclass(frozen=True, slots=True)
class ClampedSwish:
    """A gated activation of two numbers: with g = min(gate, limit) and u = min(max(up, -limit), limit),

    g / (1 + exp(-alpha g)) * (u + 1).
    """

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class Experts:
    """y[r] = sum of weight_e * o_e over the row's chosen experts e, o_e = down_e h_e + down_bias_e,
    h_e = activation(gate_e x + gate_bias_e) * (up_e x + up_bias_e), or a `ClampedSwish` of the two.

    The sum is a chain in the row's own ranking order, each product rounded first; no expert drops a row. Shared experts
    are a gated MLP beside it. inputs: (x, routing) [R, D], [R, 2 top_k]; output: [R, D]; gate, up, down: a matrix
    [F, D], [F, D] and [D, F] for each expert; biases: [experts, F], [experts, F] and [experts, D], all or none.
    """

    inputs: tuple[ValueId, ValueId]
    output: ValueId
    gate: tuple[str, ...]
    up: tuple[str, ...]
    down: tuple[str, ...]
    top_k: int
    ffn_hidden: int
    activation: Activation | ClampedSwish
    biases: tuple[str, str, str] | None = None

    @property
    def experts(self) -> int:
        return len(self.gate)


@dataclass(frozen=True, slots=True)
class Select:
    """The rows that the plan's outputs name.  inputs: (x,) [R, D] in TOKENS; output: [R_out, D] in OUTPUTS."""

    inputs: tuple[ValueId]
    output: ValueId


@dataclass(frozen=True, slots=True)
class Sample:
    """Turns logits into tokens and log-probabilities by each row's sampling parameters.

    z = logit_scale * x; with softcap: z = softcap * tanh(z / softcap); then the sampler of docs/concepts/numerics.md.
    Only the first `vocab_size` columns take part. Those behind them belong to no token: the tables are padded, and
    such a column is neither sampled nor counted in a log-probability, whatever it holds. Where x is cut among ranks,
    `vocab_size` still counts the columns of all of them.
    inputs: (x,) [R_out, V] in OUTPUTS; no output: results go into the StepResult.
    """

    inputs: tuple[ValueId]
    vocab_size: int
    logit_scale: float = 1.0
    softcap: float | None = None
    output: None = None


class PoolKind(StrEnum):
    MEAN = "mean"
    """Running sum in token order, carried across chunks, divided by the number of tokens at the end."""
    LAST = "last"
    FIRST = "first"


@dataclass(frozen=True, slots=True)
class Pool:
    """Folds those rows of each sequence that the plan names, in token order, into one vector y; other rows pass it by.
    `normalize`: y / sqrt(sum y^2) at the end.

    inputs: (x,) [R_out, D] in OUTPUTS; no output: y, as far as rows have come, goes into the StepResult.
    """

    inputs: tuple[ValueId]
    kind: PoolKind
    normalize: bool = False
    output: None = None

    @property
    def is_plain_mean(self) -> bool:
        """Which rows are pooled is said by plans; what is done to their mean is for whoever asked."""
        return self.kind is PoolKind.MEAN and not self.normalize


@dataclass(frozen=True, slots=True)
class Tap:
    """Keeps rows on the device under `name` for a drafter, where the plan asks for taps.  inputs: (x,); no output."""

    inputs: tuple[ValueId]
    name: str
    output: None = None


@dataclass(frozen=True, slots=True)
class AllReduce:
    """y = x summed over the `ranks` devices of parallel group `group`, in rank order.  inputs: (x,); output: [R, D]."""

    inputs: tuple[ValueId]
    output: ValueId
    ranks: int
    group: str = "tensor"


Op = (
    Embed
    | Place
    | Norm
    | Linear
    | Rope
    | CacheWrite
    | Attend
    | Glu
    | Act
    | Add
    | Mul
    | Scale
    | Conv
    | Scan
    | Route
    | Experts
    | Select
    | Sample
    | Pool
    | Tap
    | AllReduce
)

OP_TYPES: tuple[type, ...] = get_args(Op)
"""Every operation there is, in the order above."""


def op_name(op: Op) -> str:
    return type(op).__name__


def op_weights(op: Op) -> tuple[str, ...]:
    """Names of the weights that `op` reads, in the order of its definition."""
    match op:
        case Embed():
            return (op.table,)
        case Norm() | Linear() | Conv():
            return tuple(name for name in (op.weight, op.bias) if name is not None)
        case Route():
            return () if op.bias is None else (op.bias,)
        case Attend():
            return () if op.sinks is None else (op.sinks,)
        case Scan():
            return op.weights
        case Experts():
            return (*op.gate, *op.up, *op.down, *(op.biases or ()))
        case _:
            return ()


def op_group(op: Op) -> GroupId | None:
    """The cache group that `op` reads or writes."""
    match op:
        case Place() | CacheWrite() | Attend() | Conv() | Scan():
            return op.group
        case _:
            return None
