"""The soak of a server as a program: many clients at once, of whom a fifth leaves and a twentieth asks nonsense.

    python -m tests.soak.server [--minutes N] [--streams N] [--seed S] [--model FILE]

Every answer that is not left must be what it is alone: text, tokens and log-probabilities. The last line is one JSON
object. Ends with 1 if one was not, if the server grew, or if anything is left in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2 as httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_model import write_tiny_model
from tests.soak import resources
from tests.soak.server_load import Clients, Found
from tests.soak.server_questions import TEMPLATE, questions

ALLOWED_GROWTH = 0.02
WARM_S = 60.0
SAMPLE_S = 1.0
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
DELAY = "plait:event_loop_delay_seconds"


@dataclass(frozen=True, slots=True)
class Outcome:
    found: Found
    growth: float
    """Of resident memory from the end of the warm-up to the end, as a share."""
    left: Mapping[str, float]
    """What is not gone after everyone has: gauges, descriptors, threads."""
    delay_p99_s: float
    """An upper bound: the histogram's."""

    @property
    def is_good(self) -> bool:
        return not self.found.differences and self.growth < ALLOWED_GROWTH and not any(self.left.values())


def soak(minutes: float, streams: int, seed: int, model: Path | None) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = model or write_tiny_model(Path(folder) / "tiny.gguf", template=TEMPLATE, context=2048)
        with serving(path, "--max-num-seqs", "64", "--batch-dir", str(Path(folder) / "batches")) as server:
            return asyncio.run(_soak(server, minutes * 60, streams, seed))


async def _soak(server: ServerProcess, seconds: float, streams: int, seed: int) -> Outcome:
    clients = Clients(server.address, questions(48), seed)
    await clients.ask_alone()
    # Threads and pools come into being under load, so only what comes later is counted.
    await clients.ask_together(streams, min(5.0, seconds / 4))
    await asyncio.to_thread(server.become_idle)
    before = _descriptors(server), _threads(server)
    readings: list[tuple[float, int]] = []
    watching = asyncio.create_task(_watch(server, readings, clients))
    await clients.ask_together(streams, seconds)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    await asyncio.to_thread(server.become_idle)
    await asyncio.sleep(1.0)
    figures, delay = await asyncio.to_thread(_figures, server)
    left = {name: figures[name] for name in GAUGES}
    left["descriptors"] = max(0, _descriptors(server) - before[0])
    left["threads"] = max(0, _threads(server) - before[1])
    return Outcome(clients.found, _growth(readings, seconds), left, delay)


async def _watch(server: ServerProcess, readings: list[tuple[float, int]], clients: Clients) -> None:
    began = time.monotonic()
    while True:
        readings.append((time.monotonic() - began, resources.memory(server.pid)))
        if len(readings) % 10 == 0:
            told = ", ".join(f"{count} {what}" for what, count in sorted(clients.found.counts.items()))
            memory = readings[-1][1] / resources.MIB
            differences = len(clients.found.differences)
            print(f"{readings[-1][0]:5.0f} s: {memory:.1f} MiB, {told}, {differences} differences", flush=True)
        await asyncio.sleep(SAMPLE_S)


def _growth(readings: list[tuple[float, int]], seconds: float) -> float:
    """Medians of a tenth of the time, or of the readings that there are."""
    warm = min(WARM_S, seconds / 3)
    wide = max(3.0, seconds / 10)
    early = [memory for when, memory in readings if warm <= when < warm + wide]
    late = [memory for when, memory in readings if when >= readings[-1][0] - wide]
    return statistics.median(late) / statistics.median(early) - 1.0


def _figures(server: ServerProcess) -> tuple[dict[str, float], float]:
    """Gauges by name, and the 99th percentile of the event loop's delay."""
    values: dict[str, float] = {}
    buckets: list[tuple[float, float]] = []
    reply = httpx.get(f"{server.root}/metrics", timeout=60)
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            if sample.name == f"{DELAY}_bucket":
                buckets.append((float(sample.labels["le"]), sample.value))
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    all_of_them = buckets[-1][1]
    return values, next(bound for bound, count in buckets if count >= 0.99 * all_of_them)


def _descriptors(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def _threads(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/task"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.server", description="Soak the server.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--streams", type=int, default=64, help="clients at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, help="a GGUF file with a chat template that knows tools")
    given = parser.parse_args()
    outcome = soak(given.minutes, given.streams, given.seed, given.model)
    for line in outcome.found.differences[:10]:
        print(line)
    numbers = {
        **outcome.found.counts,
        "differences": len(outcome.found.differences),
        "growth": round(outcome.growth, 4),
        "delay_p99_s": outcome.delay_p99_s,
        "left": dict(outcome.left),
    }
    print(json.dumps(numbers))
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
