"""Load for whole-engine properties: SmolLM2's shape on a small CPU, and requests that share what real ones share.

Run as a program it prints the digest of a simulation's plans, for tests that compare processes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from plait.core.events import Event, Submitted
from plait.core.ids import RequestId
from plait.core.plan_hash import plan_hash
from plait.core.request import Request, ServiceClass
from plait.core.sampling import SamplingParams
from plait.cost.hardware import find_hardware
from plait.model.config import ModelConfig
from plait.model.cost import Formats
from plait.model.families import build_program
from plait.model.ops import Activation
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL
from plait.sim.arrivals import Arrival
from plait.sim.driver import simulate
from plait.sim.replica import ReplicaSpec, replica
from plait.sim.report import Report

LAYERS, VOCAB = 30, 49_152
SMOLLM2 = ModelConfig(
    family="llama",
    num_layers=LAYERS,
    hidden=576,
    ffn_hidden=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=VOCAB,
    max_positions=8192,
    norm_eps=1e-5,
    rope=RopeSpec(100_000.0, 64, 8192),
    activation=Activation.SILU,
    layer_visibility=(CAUSAL,) * LAYERS,
    tied_embeddings=True,
)
TOKEN_BYTES = LAYERS * 2 * 3 * 64 * 2
NUM_SYSTEM_PROMPTS = 5


def spec(*, cache_tokens: int = 1024, max_rows: int = 32) -> ReplicaSpec:
    """One replica whose cache holds so many tokens, few enough that memory ends now and then."""
    return ReplicaSpec(
        build_program(SMOLLM2),
        Formats(),
        find_hardware("zen3-2core"),
        cache_bytes=cache_tokens * TOKEN_BYTES,
        max_rows=max_rows,
        max_model_tokens=4096,
    )


def arrivals(num_requests: int, seed: int, requests_per_s: float = 6.0) -> Iterator[Arrival]:
    """Poisson arrivals with shared beginnings, tenants, classes, priorities and choices; some repeat a question."""
    rng = random.Random(seed)
    systems = [tuple(rng.choices(range(VOCAB), k=rng.randint(20, 120))) for _ in range(NUM_SYSTEM_PROMPTS)]
    at_s, asked = 0.0, [systems[0]]
    for number in range(num_requests):
        at_s += rng.expovariate(requests_per_s)
        fresh = (*rng.choice(systems), *rng.choices(range(VOCAB), k=rng.randint(1, 80)))
        prompt = rng.choice(asked) if rng.random() < 0.1 else fresh
        asked.append(prompt)
        request = Request(
            id=RequestId(f"request-{number}"),
            prompt=prompt,
            sampling=SamplingParams(
                max_tokens=rng.choice((1, rng.randint(1, 30), rng.randint(1, 200))), ignore_eos=True
            ),
            n=rng.choice((1, 1, 1, 2)),
            service_class=rng.choice((ServiceClass.ONLINE, ServiceClass.BATCH)),
            tenant=rng.choice(("", "", "red", "blue")),
            priority=rng.choice((0, 0, 0, 1)),
        )
        yield Arrival(at_s, request)


def run(num_requests: int, seed: int, made: ReplicaSpec | None = None) -> tuple[Report, list[Event]]:
    events: list[Event] = []
    report = simulate(arrivals(num_requests, seed), replica(made or spec()), events.append)
    return report, events


def digest(events: list[Event]) -> str:
    return plan_hash(event.plan for event in events if isinstance(event, Submitted))


if __name__ == "__main__":
    print(digest(run(int(sys.argv[1]), int(sys.argv[2]))[1]))
