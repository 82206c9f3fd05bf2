"""How fast the simulator is: CPU seconds for a trace that is repeated until so many requests have come.

Llama-3.1-8B on one A100 with a cache of 50 GB. Prints microseconds per request, tokens per CPU second, the largest
memory and the plan hash; the machine should be quiet.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from plait.cost.hardware import find_hardware
from plait.model.config import ModelConfig
from plait.model.cost import Formats
from plait.model.families import build_program
from plait.model.ops import Activation
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL
from plait.sim.arrivals import TraceRow, arrivals_of
from plait.sim.cluster import ClusterSpec, simulate_cluster
from plait.sim.replica import ReplicaSpec
from plait.sim.traces.forms import open_trace

LAYERS, VOCAB, POSITIONS = 32, 128_256, 131_072
LLAMA_8B = ModelConfig(
    family="llama",
    num_layers=LAYERS,
    hidden=4096,
    ffn_hidden=14_336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=VOCAB,
    max_positions=POSITIONS,
    norm_eps=1e-5,
    rope=RopeSpec(500_000.0, 128, POSITIONS),
    activation=Activation.SILU,
    layer_visibility=(CAUSAL,) * LAYERS,
    tied_embeddings=False,
)


def repeated(rows: list[TraceRow]) -> Iterator[TraceRow]:
    """The trace again and again, each time behind itself."""
    span_s = rows[-1].at_s + 1.0
    for turn in itertools.count():
        for row in rows:
            yield TraceRow(row.at_s + turn * span_s, row.num_prompt, row.num_output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("num_requests", type=int, nargs="?", default=100_000)
    parser.add_argument("step_tokens", type=int, nargs="?", default=2048)
    parser.add_argument("--single", action="store_true", help="no runs of steps: the plan hash must be the same")
    given = parser.parse_args()
    num_requests = given.num_requests
    spec = ReplicaSpec(
        build_program(LLAMA_8B),
        Formats(default_weight_bytes=2.0, default_cache_bytes=2.0, activation_bytes=2.0),
        find_hardware("a100-80g"),
        cache_bytes=50 * 10**9,
        max_step_tokens=given.step_tokens,
        max_rows=256,
        max_model_tokens=16_384,
        check_plans=False,
    )
    trace = [TraceRow(one.at_s or 0.0, one.num_prompt, one.num_output) for one in open_trace(given.trace).requests()]
    rows = itertools.islice(repeated(trace), num_requests)
    begin_s = time.process_time()
    report = simulate_cluster(arrivals_of(rows, VOCAB), ClusterSpec(spec, macro_steps=not given.single))
    took_s = time.process_time() - begin_s
    print("\n".join(report.whole.lines()))
    print(f"CPU      {took_s:.1f} s, {took_s / num_requests * 1e6:.0f} us per request")
    print(f"tokens   {report.whole.output_tokens / took_s:.0f} output tokens per CPU second")
    print(f"memory   {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB at most")
    print(f"plans    {report.plan_hash}")


if __name__ == "__main__":
    main()
