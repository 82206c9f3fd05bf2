"""ProgramBuilder: how a family writes its program.

Owns the growing lists of a program under construction: it numbers values, declares each weight where it is first used,
marks spans and computes what is alive between them. One method per op; each returns the id of the op's output.
Invariant: `finish` returns a validated program or raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from plait.core.errors import InvariantError
from plait.core.ids import GroupId
from plait.model import ops
from plait.model.checks import groups_of, live_after
from plait.model.ops import Activation, NormKind, Op, Pairing, PoolKind, RouteScore, ScanKind, Space, Value, ValueId
from plait.model.program import CacheGroup, GroupKind, Program, Span, WeightRole, WeightSpec
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL, Visibility


class ProgramBuilder:
    """A program under construction. Sizes are in numbers; `slot` is a layer's place in its cache group."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ops: list[Op] = []
        self._values: list[Value] = []
        self._inputs: list[ValueId] = []
        self._weights: dict[str, WeightSpec] = {}
        self._groups: list[CacheGroup] = []
        self._marks: list[tuple[str, str, int]] = []
        """(name, kind, first op) of each span."""

    def span(self, name: str, kind: str) -> None:
        """The ops from here to the next call make one span."""
        self._marks.append((name, kind, len(self._ops)))

    def group(self, group: CacheGroup) -> GroupId:
        """Declare a cache group; its id is its place."""
        placed = replace(group, id=GroupId(len(self._groups)))
        self._groups.append(placed)
        return placed.id

    def kv_group(
        self,
        name: str,
        num_layers: int,
        kv_heads: int,
        head_dim: int,
        kind: GroupKind = GroupKind.FULL,
        window: int = 0,
    ) -> GroupId:
        return self.group(CacheGroup(GroupId(0), name, kind, num_layers, kv_heads, head_dim, head_dim, window))

    def weight(self, name: str, shape: tuple[int, ...], role: WeightRole, shard_axis: int | None = None) -> str:
        """Declare a weight, or use one again. Its first role stays: a tied table is looked up, then multiplied."""
        known = self._weights.setdefault(name, WeightSpec(name, shape, role, shard_axis))
        if known.shape != shape:
            raise InvariantError(f"program {self._name}: weight {name} has shape {known.shape} and {shape}")
        return name

    def input(self, space: Space, width: int, name: str) -> ValueId:
        """A value that the executor fills before the first op: an encoder's patches, a drafter's hidden states."""
        x = self._value(space, width, name)
        self._inputs.append(x)
        return x

    def view(self, of: ValueId, offset: int, width: int, name: str) -> ValueId:
        """Columns [offset, offset + width) of a value; no op, no copy."""
        base = self._values[of]
        view = ValueId(len(self._values))
        root, shift = (of, 0) if base.base is None else (base.base, base.offset)
        self._values.append(Value(view, base.space, width, name, root, shift + offset))
        return view

    def width(self, value: ValueId) -> int:
        return self._values[value].width

    def finish(self) -> Program:
        """The validated program."""
        if not self._marks or self._marks[0][2] != 0:
            raise InvariantError(f"program {self._name}: its first op belongs to no span")
        ends = [first - 1 for _, _, first in self._marks[1:]] + [len(self._ops) - 1]
        alive = live_after(self._ops, self._values, ends)
        spans = [
            Span(name, kind, first, last, live, groups_of(self._ops[first : last + 1]))
            for (name, kind, first), last, live in zip(self._marks, ends, alive, strict=True)
        ]
        program = Program(
            self._name,
            tuple(self._ops),
            tuple(self._values),
            tuple(spans),
            MappingProxyType(self._weights),
            tuple(self._groups),
            tuple(self._inputs),
        )
        program.validate()
        return program

    def _value(self, space: Space, width: int, name: str) -> ValueId:
        value = Value(ValueId(len(self._values)), space, width, name)
        self._values.append(value)
        return value.id

    def _like(self, value: ValueId, name: str, width: int | None = None) -> ValueId:
        model = self._values[value]
        return self._value(model.space, model.width if width is None else width, name)

    def embed(
        self,
        table: str,
        entries: int,
        width: int,
        *,
        scale: float = 1.0,
        source: ops.EmbedSource = ops.EmbedSource.TOKENS,
        shard_axis: int | None = 0,
    ) -> ValueId:
        self.weight(table, (entries, width), WeightRole.EMBEDDING, shard_axis)
        y = self._value(Space.TOKENS, width, table)
        self._ops.append(ops.Embed((), y, table, scale, source))
        return y

    def place(self, x: ValueId, group: GroupId) -> ValueId:
        y = self._like(x, "placed")
        self._ops.append(ops.Place((x,), y, group))
        return y

    def select(self, x: ValueId) -> ValueId:
        y = self._value(Space.OUTPUTS, self.width(x), "selected")
        self._ops.append(ops.Select((x,), y))
        return y

    def sample(
        self,
        logits: ValueId,
        *,
        vocab_size: int | None = None,
        logit_scale: float = 1.0,
        softcap: float | None = None,
    ) -> None:
        """`vocab_size` None: every column is a token."""
        columns = self.width(logits)
        if vocab_size is not None and not 1 <= vocab_size <= columns:
            raise InvariantError(f"program {self._name}: {vocab_size} tokens for {columns} columns of logits")
        self._ops.append(ops.Sample((logits,), columns if vocab_size is None else vocab_size, logit_scale, softcap))

    def pool(self, x: ValueId, kind: PoolKind, *, normalize: bool = False) -> None:
        self._ops.append(ops.Pool((x,), kind, normalize))

    def tap(self, x: ValueId, name: str) -> None:
        self._ops.append(ops.Tap((x,), name))

    def norm(
        self,
        x: ValueId,
        weight: str,
        eps: float,
        *,
        kind: NormKind = NormKind.RMS,
        bias: str | None = None,
        offset: float = 0.0,
        parts: int = 1,
    ) -> ValueId:
        """`parts` > 1: a per-head norm whose weight [width / parts] serves every part."""
        shape = (self.width(x) // parts,)
        self.weight(weight, shape, WeightRole.NORM)
        if bias is not None:
            self.weight(bias, shape, WeightRole.NORM)
        y = self._like(x, weight)
        self._ops.append(ops.Norm((x,), y, weight, eps, kind, bias, offset, parts))
        return y

    def linear(
        self,
        x: ValueId,
        weight: str,
        width: int,
        *,
        bias: str | None = None,
        out_scale: float = 1.0,
        adaptable: bool = False,
        shard_axis: int | None = None,
        role: WeightRole = WeightRole.LINEAR,
    ) -> ValueId:
        """`shard_axis` 0 cuts the output columns among ranks, 1 the input columns (the outputs are then summed)."""
        self.weight(weight, (width, self.width(x)), role, shard_axis)
        if bias is not None:
            self.weight(bias, (width,), WeightRole.BIAS, 0 if shard_axis == 0 else None)
        y = self._like(x, weight, width)
        self._ops.append(ops.Linear((x,), y, weight, bias, out_scale, adaptable))
        return y

    def rope(
        self, x: ValueId, spec: RopeSpec, heads: int, *, pairing: Pairing = Pairing.HALF, mscale: float = 1.0
    ) -> ValueId:
        y = self._like(x, "rotated")
        self._ops.append(ops.Rope((x,), y, spec, heads, self.width(x) // heads, pairing, mscale))
        return y

    def glu(self, gate: ValueId, up: ValueId, activation: Activation) -> ValueId:
        y = self._like(up, "glu")
        self._ops.append(ops.Glu((gate, up), y, activation))
        return y

    def act(self, x: ValueId, activation: Activation) -> ValueId:
        y = self._like(x, activation)
        self._ops.append(ops.Act((x,), y, activation))
        return y

    def add(self, a: ValueId, b: ValueId, *, factor: float = 1.0) -> ValueId:
        y = self._like(a, "sum")
        self._ops.append(ops.Add((a, b), y, factor))
        return y

    def mul(self, a: ValueId, b: ValueId) -> ValueId:
        y = self._like(a, "product")
        self._ops.append(ops.Mul((a, b), y))
        return y

    def scale(self, x: ValueId, factor: float) -> ValueId:
        y = self._like(x, "scaled")
        self._ops.append(ops.Scale((x,), y, factor))
        return y

    def cache_write(self, k: ValueId, v: ValueId | None, group: GroupId, slot: int) -> None:
        """`v` is None for an EMBEDDING group."""
        self._ops.append(ops.CacheWrite((k,) if v is None else (k, v), group, slot))

    def attend(
        self,
        query: ValueId,
        group: GroupId,
        slot: int,
        heads: int,
        *,
        scale: float | None = None,
        visibility: Visibility = CAUSAL,
        softcap: float | None = None,
        sinks: str | None = None,
    ) -> ValueId:
        """Attention over a layer of a cache group. `scale` None: 1 / sqrt(head_dim_k)."""
        of = self._groups[group]
        if sinks is not None:
            self.weight(sinks, (heads,), WeightRole.SINKS, 0)
        y = self._like(query, "attended", heads * of.head_dim_v)
        factor = of.head_dim_k**-0.5 if scale is None else scale
        self._ops.append(
            ops.Attend(
                (query,),
                y,
                group,
                slot,
                heads,
                of.num_kv_heads,
                of.head_dim_k,
                of.head_dim_v,
                factor,
                visibility,
                softcap,
                sinks,
            )
        )
        return y

    def attend_values(
        self, q: ValueId, k: ValueId, v: ValueId, heads: int, kv_heads: int, visibility: Visibility
    ) -> ValueId:
        """Attention among the rows of a chunk, nothing kept: encoders."""
        dim_k, dim_v = self.width(k) // kv_heads, self.width(v) // kv_heads
        y = self._like(q, "attended", heads * dim_v)
        self._ops.append(ops.Attend((q, k, v), y, None, 0, heads, kv_heads, dim_k, dim_v, dim_k**-0.5, visibility))
        return y

    def conv(
        self,
        x: ValueId,
        weight: str,
        width: int,
        group: GroupId,
        slot: int,
        *,
        part: int = 0,
        bias: str | None = None,
        activation: Activation | None = None,
    ) -> ValueId:
        channels = self.width(x)
        self.weight(weight, (channels, width), WeightRole.CONV, 0)
        if bias is not None:
            self.weight(bias, (channels,), WeightRole.BIAS, 0)
        y = self._like(x, weight)
        self._ops.append(ops.Conv((x,), y, weight, width, group, slot, part, bias, activation))
        return y

    def scan(
        self,
        inputs: tuple[ValueId, ...],
        kind: ScanKind,
        weights: Mapping[str, tuple[int, ...]],
        dims: tuple[int, int, int],
        group: GroupId,
        slot: int,
        *,
        part: int = 0,
        groups: int = 1,
    ) -> ValueId:
        """`weights` gives name -> shape in the order of the kind's definition; `dims` is (heads, head_dim,
        state_dim).
        """
        for name, shape in weights.items():
            self.weight(name, shape, WeightRole.SCAN, 0)
        heads, head_dim, state_dim = dims
        y = self._like(inputs[0], "scanned", heads * head_dim)
        self._ops.append(
            ops.Scan(inputs, y, kind, tuple(weights), heads, head_dim, state_dim, group, slot, part, groups)
        )
        return y

    def route(
        self,
        logits: ValueId,
        top_k: int,
        *,
        score: RouteScore = RouteScore.SOFTMAX,
        normalize: bool = True,
        bias: str | None = None,
        groups: int = 1,
        top_groups: int = 1,
    ) -> ValueId:
        """`logits`: a column for each expert."""
        experts = self.width(logits)
        if bias is not None:
            self.weight(bias, (experts,), WeightRole.ROUTER)
        y = self._like(logits, "routing", 2 * top_k)
        route = ops.Route((logits,), y, experts, top_k, score, normalize, 1.0, bias, groups, top_groups)
        self._ops.append(route)
        return y

    def experts(
        self,
        x: ValueId,
        routing: ValueId,
        prefix: str,
        experts: int,
        ffn_hidden: int,
        activation: Activation | ops.ClampedSwish,
        *,
        bias: bool = False,
    ) -> ValueId:
        """Weights are `{prefix}.{expert}.gate`, `.up` and `.down`; biases `{prefix}.gate_bias` and so on."""
        hidden = self.width(x)

        def matrices(name: str, shape: tuple[int, int], axis: int) -> tuple[str, ...]:
            names = [f"{prefix}.{expert}.{name}" for expert in range(experts)]
            return tuple(self.weight(one, shape, WeightRole.EXPERTS, axis) for one in names)

        def biases(name: str, width: int, axis: int | None) -> str:
            return self.weight(f"{prefix}.{name}_bias", (experts, width), WeightRole.BIAS, axis)

        gate = matrices("gate", (ffn_hidden, hidden), 0)
        up = matrices("up", (ffn_hidden, hidden), 0)
        down = matrices("down", (hidden, ffn_hidden), 1)
        all_biases = (
            (biases("gate", ffn_hidden, 1), biases("up", ffn_hidden, 1), biases("down", hidden, None)) if bias else None
        )
        y = self._like(x, prefix)
        top_k = self.width(routing) // 2
        self._ops.append(ops.Experts((x, routing), y, gate, up, down, top_k, ffn_hidden, activation, biases=all_biases))
        return y
