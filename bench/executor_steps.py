"""How long a step of the default model takes on the reference executor, and what share of the machine's limit that is.

Limits are measured in the same run: the best matrix product that NumPy reaches, and the rate at which all weights can
be read. A step can not be faster than max(flops / F, weight bytes / B). Medians of repetitions after one warm-up.
Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import datetime

import numpy as np

from plait.build import load_model
from plait.config.engine_options import EngineOptions
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import BlockGrant, Chunk, ChunkShape, Join, Leave, OutputKind, Outputs, StepPlan, StepShape
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor
from plait.model.cache_layout import plan_layout
from plait.model.program import Program

GREEDY = SamplingParams(temperature=0.0)
CONTEXT = 256
SHAPES = [(1, 1), (8, 1), (32, 1), (1, 64), (1, 512)]
"""(sequences, tokens of each): decode with 1, 8 and 32 sequences at CONTEXT tokens, and prompts of 64 and 512."""


class Bench:
    """One executor, driven plan by plan without threads."""

    def __init__(self, options: EngineOptions) -> None:
        model = load_model(options, lambda done, total: None, datetime.now)
        self.program: Program = model.program
        layout = plan_layout(self.program, memory_bytes=1 << 30)
        self.size = layout.groups[0].tokens_per_block
        self.executor = ReferenceExecutor(ReferenceConfig(max_step_tokens=4096, threaded=False), time.monotonic)
        self.executor.load({"step": self.program}, model.weights, layout)
        self._step = 0
        self._seq = 0

    def run(self, sequences: int, tokens: int) -> float:
        """Seconds of one step with `sequences` chunks of `tokens` tokens; decode chunks stand at CONTEXT."""
        start = CONTEXT if tokens == 1 else 0
        seqs = [SeqId(self._seq + place) for place in range(sequences)]
        self._seq += sequences
        blocks = -(-(start + tokens) // self.size)
        rows = {seq: row for row, seq in enumerate(seqs)}
        joins = tuple(Join(seq, rows[seq], GREEDY, 0, 0, start + tokens) for seq in seqs)
        grants = tuple(
            BlockGrant(seq, GroupId(0), 0, tuple(BlockId(rows[seq] * blocks + place) for place in range(blocks)))
            for seq in seqs
        )
        if start:
            self._submit(joins, grants, [self._chunk(seq, 0, start) for seq in seqs])
            joins, grants = (), ()
        began = time.perf_counter()
        self._submit(joins, grants, [self._chunk(seq, start, tokens) for seq in seqs])
        seconds = time.perf_counter() - began
        self._submit(tuple(Leave(seq) for seq in seqs), (), [])
        return seconds

    def _chunk(self, seq: SeqId, start: int, tokens: int) -> Chunk:
        ids = tuple(
            (int(seq) * 31 + position * 7) % self.program.vocab_size for position in range(start, start + tokens)
        )
        return Chunk(seq, start, tokens, ids, outputs=(Outputs(tokens - 1, 1, OutputKind.SAMPLE),))

    def _submit(self, roster: tuple[Join | Leave, ...], grants: tuple[BlockGrant, ...], chunks: list[Chunk]) -> None:
        self.executor.submit(StepPlan(StepId(self._step), LaneId(0), roster, grants, (), tuple(chunks)))
        self._step += 1
        while self.executor.advance():
            pass
        self.executor.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="three repetitions")
    given = parser.parse_args()
    repeats = 3 if given.quick else given.repeats
    bench = Bench(EngineOptions(model=given.model))
    flops_per_s, bytes_per_s = gemm_rate(repeats), read_rate(repeats)
    print(f"limits: {flops_per_s / 1e9:.0f} GFLOP/s (f32 product), {bytes_per_s / 1e9:.1f} GB/s (read of 512 MiB)")
    print(f"{'sequences':>9} {'tokens':>6} {'median s':>9} {'tokens/s':>9} {'bound s':>8} {'of limit':>8}")
    rows = []
    for sequences, tokens in SHAPES:
        bench.run(sequences, tokens)
        seconds = statistics.median(bench.run(sequences, tokens) for _ in range(repeats))
        bound = bound_s(bench.program, sequences, tokens, flops_per_s, bytes_per_s)
        rate = sequences * tokens / seconds
        print(f"{sequences:9} {tokens:6} {seconds:9.4f} {rate:9.1f} {bound:8.4f} {bound / seconds:8.0%}")
        rows.append({"sequences": sequences, "tokens": tokens, "seconds": seconds, "of_limit": bound / seconds})
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "numpy": np.__version__}
    print(json.dumps({"flops_per_s": flops_per_s, "bytes_per_s": bytes_per_s, "steps": rows, **machine}))


def bound_s(program: Program, sequences: int, tokens: int, flops_per_s: float, bytes_per_s: float) -> float:
    """The roofline of the whole step, from the program's own cost."""
    start = CONTEXT if tokens == 1 else 0
    costs = program.cost(StepShape((ChunkShape(start, tokens, 1),) * sequences))
    flops = sum(cost.flops * cost.count for cost in costs)
    weights = sum(spec.num_elements for spec in program.weights.values()) * 4
    return max(flops / flops_per_s, weights / bytes_per_s)


def gemm_rate(repeats: int) -> float:
    """FLOP/s of the best of several f32 products."""
    a = np.ones((1024, 1024), np.float32)
    return max(2 * 1024**3 / _timed(lambda: a @ a) for _ in range(repeats + 1))


def read_rate(repeats: int) -> float:
    """Bytes/s of a matrix-vector product over 512 MiB, which does nothing but read."""
    a, x = np.ones((16384, 8192), np.float32), np.ones(8192, np.float32)
    return max(a.nbytes / _timed(lambda: a @ x) for _ in range(repeats + 1))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
