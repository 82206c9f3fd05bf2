"""Grids of verification, decode and fusion (XY-Serve, ASPLOS 2026, figures 16a, 16b and 18), on this machine.

    X9   verify of 4 x 31 and 8 x 15 rows, contexts of 512 to 4,096, beside what a dense mask costs
    X10  decode of 1 to 32 rows, contexts of 128 to 4,096, beside rows and heads one by one
    X12  steps of prompts, decode and drafts fused, beside the same chunks stage by stage, on three shapes of load;
         tokens and log-probabilities of both must be equal, bit for bit

Every table begins with its bound: what the machine allows at the rates that were measured in turns with it. Chains are
verified, no trees. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from kernel.library import Attention, CacheType, Library, Machine, Stage, Way, build, targets_of
from kernel.setting import last_cache_bytes, measure, num_cores
from kernel.turns import Effort, Take, geomean
from serving.plait_engine import open_model
from serving.quiet import QUIET_FRACTION, busy_fraction

from plait.build import LoadedModel
from plait.config.engine_options import EngineOptions
from plait.config.machine import usable_processors
from plait.core.clock import Wake
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import (
    BlockGrant,
    Chunk,
    Drafts,
    Join,
    Leave,
    OutputKind,
    Outputs,
    StepPlan,
    StepResult,
    TokenLogprob,
)
from plait.exec.native.executor import NativeConfig, NativeExecutor
from plait.model.cache_layout import plan_layout
from plait.model.cache_type import CacheType as NumberType

GEOMETRY = (9, 3, 64)
"""Query heads, KV heads and numbers of a head, as SmolLM2-135M has them."""
VERIFIES = ((4, 31), (8, 15))
VERIFY_CONTEXTS = (512, 1024, 2048, 4096)
BATCHES = (1, 2, 4, 8, 16, 32)
DECODE_CONTEXTS = (128, 512, 2048, 4096)
LONG = 2048
"""From this context on decode should read as fast as the machine does."""
MIB = 1 << 20
Said = tuple[int, tuple[int, ...], tuple[TokenLogprob, ...]]
"""A sequence, what a chunk of it gave, and the log-probabilities of that, which are compared to the last bit."""
GREEDY = SamplingParams(temperature=0.0, logprobs=2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="x9,x10,x12", help="which grids [all]")
    parser.add_argument("--rounds", type=int, default=3, help="there and back, two samples each [3]")
    parser.add_argument("--sample-ms", type=float, default=1.0, help="least length of a sample [1]")
    parser.add_argument("--library", type=Path, help="plait_bench, if it is not to be built")
    parser.add_argument("--quick", action="store_true", help="few cells: does everything run?")
    given = parser.parse_args()
    chosen = given.only.lower().split(",")
    busy, began = busy_fraction(), time.perf_counter()
    effort = Effort(given.sample_ms / 1e3, 1 if given.quick else given.rounds)
    found: dict[str, object] = {}
    if "x9" in chosen or "x10" in chosen:
        library = Library(given.library or build())
        with Machine(
            library, targets_of(library)[-1], num_cores(), 4 * max(3 * last_cache_bytes(), 16 * MIB)
        ) as machine:
            if "x9" in chosen:
                found["x9"] = verify_grid(machine, effort, quick=given.quick)
            if "x10" in chosen:
                found["x10"] = decode_grid(machine, effort, quick=given.quick)
    if "x12" in chosen:
        found["x12"] = fusion(quick=given.quick)
    if busy is not None and busy > QUIET_FRACTION:
        print(f"NOT QUIET: others used {busy:.0%} of the machine before the start; these figures are only a first look")
    print(f"{time.perf_counter() - began:.0f} s")
    print(json.dumps({"busy_fraction": busy, "quick": given.quick, **found}))
    return 0


# X9 and X10: attention alone.


def _cache(machine: Machine, num_tokens: int, max_rows: int) -> Attention:
    """Of so many layers that the last cache does not hold two of them."""
    bytes_per_token = 2 * GEOMETRY[1] * CacheType.F16.vector_bytes(GEOMETRY[2])
    num_layers = max(2, -(-3 * last_cache_bytes() // (num_tokens * bytes_per_token)))
    return Attention(
        machine, GEOMETRY, CacheType.F16, num_layers=min(num_layers, 24), num_tokens=num_tokens, max_rows=max_rows
    )


def _take(batch: object, way: Way) -> Take:
    return lambda calls: batch.attend(calls, way)  # type: ignore[attr-defined]


def verify_grid(machine: Machine, effort: Effort, *, quick: bool) -> list[dict[str, float]]:
    print("X9  verify, microseconds of a layer; the bound: the longer of operations at F and of keys read once at B")
    print("    masked: the same kernel, and a number of a dense mask read and added for every head, row and key")
    print(
        "    tiled: that, with rows padded to 64, as a kernel for prompts has them; keys in place, so no copying counts"
    )
    heads = ("bound", "ours", "masked", "tiled", "masked/ours", "tiled/ours", "mask bits", "dense")
    print(f"    {'cell':<16}" + "".join(f"{head:>12}" for head in heads))
    rows_found: list[dict[str, float]] = []
    contexts = VERIFY_CONTEXTS[:1] if quick else VERIFY_CONTEXTS
    for count, rows in VERIFIES:
        with _cache(machine, count * (contexts[-1] + 96), count * 64) as attention, ExitStack() as stack:
            batches = {at: stack.enter_context(attention.batch([(Stage.VERIFY, at, rows)] * count)) for at in contexts}
            ways = (Way.ONE_CALL, Way.MASKED, Way.TILED)
            takes = {(at, way): _take(batch, way) for at, batch in batches.items() for way in ways}
            times, rates = measure(machine, takes, effort)
        for at, batch in batches.items():
            bound = max(batch.flops() / rates.f32, batch.key_bytes() / rates.read)
            ours, masked, tiled = (times[at, way].seconds for way in ways)
            dense = count * rows * (at + rows) * 32
            cells = [f"{one * 1e6:.0f}" for one in (bound, ours, masked, tiled)]
            cells += [f"{masked / ours:.2f}x", f"{tiled / ours:.2f}x", "0", f"{dense:,}"]
            print(f"    {f'{count} x {rows} at {at}':<16}" + "".join(f"{cell:>12}" for cell in cells))
            rows_found.append(
                {"count": count, "rows": rows, "context": at, "bound_s": bound, "ours_s": ours, "masked_s": masked}
                | {"tiled_s": tiled}
            )
    masked, tiled = (geomean(one[f"{name}_s"] / one["ours_s"] for one in rows_found) for name in ("masked", "tiled"))
    print(f"    geometric mean: {masked:.2f}x over the mask alone, {tiled:.2f}x over tiles of 64 and it (wanted 1.25)")
    print("    a chain has no mask: a row sees what stands before it; a tree would have rows x rows bits a request")
    return rows_found


def decode_grid(machine: Machine, effort: Effort, *, quick: bool) -> list[dict[str, float]]:
    print("X10 decode, microseconds of a layer; the bound: keys and values read once at B, cold")
    print("    one by one: the same kernel for every query head alone, so that the heads of a group read keys each")
    print(f"    {'cell':<16}{'bound':>8}{'ours':>8}{'one by one':>12}{'of B':>7}{'ratio':>8}")
    found: list[dict[str, float]] = []
    contexts = DECODE_CONTEXTS[:2] if quick else DECODE_CONTEXTS
    batches_of = BATCHES[:2] if quick else BATCHES
    for count in batches_of:
        with _cache(machine, count * (contexts[-1] + 96), count * 64) as attention, ExitStack() as stack:
            batches = {at: stack.enter_context(attention.batch([(Stage.DECODE, at - 1, 1)] * count)) for at in contexts}
            ways = (Way.ONE_CALL, Way.SINGLY)
            takes = {(at, way): _take(batch, way) for at, batch in batches.items() for way in ways}
            times, rates = measure(machine, takes, effort)
        for at, batch in batches.items():
            bound = batch.key_bytes() / rates.read
            ours, singly = (times[at, way].seconds for way in ways)
            print(
                f"    {f'{count} at {at}':<16}{bound * 1e6:>8.0f}{ours * 1e6:>8.0f}{singly * 1e6:>12.0f}"
                f"{bound / ours:>7.2f}{singly / ours:>7.2f}x"
            )
            found.append({"count": count, "context": at, "bound_s": bound, "ours_s": ours, "singly_s": singly})
    ratio = geomean(one["singly_s"] / one["ours_s"] for one in found)
    long = [one["bound_s"] / one["ours_s"] for one in found if one["context"] >= LONG]
    share = f"; {min(long):.2f} of B at least from {LONG} tokens on (wanted 0.75)" if long else ""
    print(f"    geometric mean: {ratio:.2f}x over one by one (wanted 1.13){share}")
    return found


# X12: whole steps of a model.


@dataclass(frozen=True, slots=True)
class Shape:
    """A load: prompts that keep coming beside sequences that decode, every second of which has drafts."""

    name: str
    num_decoding: int
    context: int
    prompt: int
    chunk: int
    drafts: int


SHAPES = (
    Shape("chat", 8, 384, 256, 64, 3),
    Shape("long prompts", 4, 512, 1536, 192, 3),
    Shape("long answers", 16, 256, 64, 16, 3),
)
STEPS = 16


@dataclass(slots=True)
class _Stream:
    seq: SeqId
    row: int
    tokens: list[int]
    prompt: int
    computed: int = 0


@dataclass(slots=True, eq=False)
class Steps:
    """One load on an executor of its own: fused steps, or the chunks of each stage in a step of their own."""

    model: LoadedModel
    shape: Shape
    fused: bool
    executor: NativeExecutor = field(init=False)
    wake: Wake = field(init=False)
    streams: list[_Stream] = field(init=False)
    blocks_each: int = 0
    block: int = 0
    next_step: int = 0
    said: list[Said] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    """Of decode: from one of its tokens to the next."""

    def __post_init__(self) -> None:
        longest = self.shape.context + self.shape.prompt + STEPS * (self.shape.drafts + 1) + 64
        layout = plan_layout(self.model.program, memory_bytes=768 * MIB, cache_type=NumberType.F16)
        self.block = layout.groups[0].tokens_per_block
        self.blocks_each = -(-longest // self.block)
        self.executor = NativeExecutor(NativeConfig(tuple(usable_processors())))
        self.executor.load({"step": self.model.program}, self.model.weights, layout)
        self.wake = Wake()
        self.executor.subscribe(self.wake)
        self.streams = [self._stream(at, self.shape.context) for at in range(self.shape.num_decoding)]
        for one in self.streams:
            while one.computed < one.prompt:
                self._run([self._prompt(one, 256)], [one])
        self.said.clear()

    def close(self) -> None:
        self.executor.close()

    def play(self) -> float:
        """Seconds of so many steps with everything in them."""
        incoming = self._incoming()
        began = last = time.perf_counter()
        for number in range(STEPS):
            fresh = next(incoming)
            prompts = [self._prompt(fresh, self.shape.chunk)]
            decode = [
                self._decode(one, self.shape.drafts if at % 2 else 0, number) for at, one in enumerate(self.streams)
            ]
            if self.fused:
                self._run([*prompts, *decode], [fresh, *self.streams])
            else:
                self._run(prompts, [fresh])
                plain = [at for at in range(len(decode)) if not at % 2]
                drafted = [at for at in range(len(decode)) if at % 2]
                for places in (plain, drafted):
                    if places:
                        self._run([decode[at] for at in places], [self.streams[at] for at in places])
            now = time.perf_counter()
            self.gaps_s.append(now - last)
            last = now
        return last - began

    def _incoming(self) -> Iterator[_Stream]:
        number = len(self.streams)
        while True:
            one = self._stream(number, self.shape.prompt)
            number += 1
            while one.computed < one.prompt:
                yield one
            self._submit([], (Leave(one.seq),), ())

    def _stream(self, number: int, prompt: int) -> _Stream:
        rng = random.Random(number)
        row = min(number, self.shape.num_decoding)
        return _Stream(SeqId(number), row, [rng.randrange(200, 20_000) for _ in range(prompt)], prompt)

    def _prompt(self, one: _Stream, most: int) -> Chunk:
        end = min(one.prompt, one.computed + most)
        last = (Outputs(end - one.computed - 1, 1, OutputKind.SAMPLE),) if end == one.prompt else ()
        return Chunk(one.seq, one.computed, end - one.computed, tuple(one.tokens[one.computed : end]), outputs=last)

    def _decode(self, one: _Stream, num_drafts: int, number: int) -> Chunk:
        """Guesses are drawn, so nearly all are wrong: what is measured is the step, not the drafter."""
        rng = random.Random(number * 131 + one.seq)
        guesses = tuple(rng.randrange(200, 20_000) for _ in range(num_drafts))
        drafts = Drafts(guesses, tuple(range(-1, num_drafts - 1))) if num_drafts else None
        rows = (Outputs(0, 1 + num_drafts, OutputKind.SAMPLE),)
        return Chunk(one.seq, one.computed, 1 + num_drafts, (one.tokens[-1],), drafts, rows)

    def _run(self, chunks: Sequence[Chunk], streams: Sequence[_Stream]) -> None:
        fresh = [one for one in streams if not one.computed]
        joins = tuple(Join(one.seq, one.row, GREEDY, 0, 0, one.prompt) for one in fresh)
        grants = tuple(BlockGrant(one.seq, GroupId(0), 0, self._blocks(one.row)) for one in fresh)
        result = self._submit(chunks, joins, grants)
        for one, given in zip(streams, result.seqs, strict=True):
            one.computed += given.num_computed
            one.tokens += given.tokens
            self.said.append((int(one.seq), given.tokens, given.logprobs))

    def _blocks(self, row: int) -> tuple[BlockId, ...]:
        return tuple(BlockId(row * self.blocks_each + at) for at in range(self.blocks_each))

    def _submit(
        self, chunks: Sequence[Chunk], roster: tuple[Join | Leave, ...], grants: tuple[BlockGrant, ...]
    ) -> StepResult:
        self.next_step += 1
        self.executor.submit(StepPlan(StepId(self.next_step), LaneId(0), roster, grants, (), tuple(chunks)))
        while not self.executor.ready():
            self.wake.wait(1.0)
            self.wake.clear()
        (result,) = self.executor.collect()
        return result


def fusion(*, quick: bool) -> list[dict[str, object]]:
    print("X12 steps of a prompt's chunk, decode and drafts, SmolLM2-135M; apart: the same chunks stage by stage")
    print("    the bound: a fused step reads the weights once where three steps read them three times")
    heads = ("rows P+D+V", "fused ms", "apart ms", "ratio", "P99 gap", "apart")
    print(f"    {'load':<14}" + "".join(f"{head:>12}" for head in heads) + "  bits")
    model = open_model(EngineOptions())
    found: list[dict[str, object]] = []
    for shape in SHAPES[:1] if quick else SHAPES:
        times: dict[bool, list[float]] = {True: [], False: []}
        gaps: dict[bool, list[float]] = {True: [], False: []}
        said: dict[bool, list[Said]] = {}
        for fused in (True, False, False, True):
            steps = Steps(model, shape, fused)
            times[fused].append(steps.play() / STEPS)
            gaps[fused] += steps.gaps_s
            said[fused] = sorted(steps.said, key=lambda one: one[:2])
            steps.close()
        equal = said[True] == said[False]
        fused_s, apart_s = (min(times[one]) for one in (True, False))
        late = [sorted(gaps[one])[int(0.99 * (len(gaps[one]) - 1))] for one in (True, False)]
        drafted = shape.num_decoding // 2
        rows = f"{shape.chunk}+{shape.num_decoding - drafted}+{drafted * (1 + shape.drafts)}"
        cells = [rows, *(f"{one * 1e3:.2f}" for one in (fused_s, apart_s)), f"{apart_s / fused_s:.2f}x"]
        cells += [f"{one * 1e3:.2f}" for one in late]
        print(f"    {shape.name:<14}" + "".join(f"{one:>12}" for one in cells) + ("  equal" if equal else "  DIFFER"))
        found.append({"load": shape.name, "fused_s": fused_s, "apart_s": apart_s, "equal": equal, "p99_gap_s": late})
    if not all(one["equal"] for one in found):
        print("verify_grids: fused and separate steps gave different tokens or log-probabilities", file=sys.stderr)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
