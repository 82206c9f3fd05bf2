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
MAX_STEP_TOKENS = 32 * CONTEXT
"""The contexts of all sequences are computed in one step before a decode step is timed."""
SHAPES = [(1, 1), (8, 1), (32, 1), (1, 64), (1, 512)]
"""(sequences, tokens of each): decode with 1, 8 and 32 sequences at CONTEXT tokens, and prompts of 64 and 512."""


class Bench:
    """One executor, driven plan by plan without threads."""

    def __init__(self, options: EngineOptions) -> None:
        model = load_model(options, lambda done, total: None, datetime.now)
        self.program: Program = model.program
        layout = plan_layout(self.program, memory_bytes=1 << 30)
        self.size = layout.groups[0].tokens_per_block
        config = ReferenceConfig(max_step_tokens=MAX_STEP_TOKENS, threaded=False)
        self.executor = ReferenceExecutor(config, time.monotonic)
        self.executor.load({"step": self.program}, model.weights, layout)
        self._step = 0
        self._seq = 0
        self._roster: list[Join | Leave] = []
        self._grants: list[BlockGrant] = []

    def run(self, sequences: int, tokens: int, repeats: int) -> list[float]:
        """Seconds of each of `repeats` steps with `sequences` chunks of `tokens` tokens, after one that is not counted.

        Decode steps follow each other behind CONTEXT tokens; prompts are computed anew each time.
        """
        seconds: list[float] = []
        if tokens == 1:
            seqs = self._join(sequences, CONTEXT + repeats + 1)
            self._submit([self._chunk(seq, 0, CONTEXT) for seq in seqs])
            for step in range(repeats + 1):
                seconds.append(self._submit([self._chunk(seq, CONTEXT + step, 1) for seq in seqs]))
            self._leave(seqs)
        else:
            for _ in range(repeats + 1):
                seqs = self._join(sequences, tokens)
                seconds.append(self._submit([self._chunk(seq, 0, tokens) for seq in seqs]))
                self._leave(seqs)
        return seconds[1:]

    def _join(self, sequences: int, num_tokens: int) -> list[SeqId]:
        """New sequences with memory for `num_tokens` tokens each; the next step brings them in."""
        seqs = [SeqId(self._seq + place) for place in range(sequences)]
        self._seq += sequences
        blocks = -(-num_tokens // self.size)
        for row, seq in enumerate(seqs):
            self._roster.append(Join(seq, row, GREEDY, 0, 0, num_tokens))
            table = tuple(BlockId(row * blocks + place) for place in range(blocks))
            self._grants.append(BlockGrant(seq, GroupId(0), 0, table))
        return seqs

    def _leave(self, seqs: list[SeqId]) -> None:
        self._roster += [Leave(seq) for seq in seqs]

    def _chunk(self, seq: SeqId, start: int, tokens: int) -> Chunk:
        ids = tuple(
            (int(seq) * 31 + position * 7) % self.program.vocab_size for position in range(start, start + tokens)
        )
        return Chunk(seq, start, tokens, ids, outputs=(Outputs(tokens - 1, 1, OutputKind.SAMPLE),))

    def _submit(self, chunks: list[Chunk]) -> float:
        """Run one step to its end; its seconds."""
        plan = StepPlan(StepId(self._step), LaneId(0), tuple(self._roster), tuple(self._grants), (), tuple(chunks))
        self._step += 1
        self._roster, self._grants = [], []
        began = time.perf_counter()
        self.executor.submit(plan)
        while self.executor.advance():
            pass
        seconds = time.perf_counter() - began
        self.executor.collect()
        return seconds


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
        seconds = statistics.median(bench.run(sequences, tokens, repeats))
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
