"""The soak of a server as a program: many clients at once, of whom a fifth leaves and a twentieth asks nonsense.

    python -m tests.soak.server [--minutes N] [--streams N] [--seed S] [--model FILE] [--most-delay-ms MS]

Every answer that is not left must be what it is alone: text, tokens and log-probabilities. The last line is one JSON
object, also of how late the server's event loop woke and how long it waited for a processor, which says how far other
programs made it late. Ends with 1 if an answer was another, if the server grew, if anything is left in it, or if more
than one wake-up in a hundred was later than --most-delay-ms, where that is given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
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
class Delays:
    """How often the event loop woke so late or less: (bound, wake-ups), the last bound infinite."""

    buckets: tuple[tuple[float, float], ...]

    def since(self, before: Delays) -> Delays:
        pairs = zip(self.buckets, before.buckets, strict=True)
        return Delays(tuple((bound, count - earlier) for (bound, count), (_, earlier) in pairs))

    def at_most_s(self, share: float) -> float:
        """An upper bound of what so large a share of all wake-ups stayed below."""
        return next(bound for bound, count in self.buckets if count >= share * self.buckets[-1][1])

    def json_object(self) -> dict[str, object]:
        shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
        told: dict[str, object] = {f"{name}_ms": _ms(self.at_most_s(share)) for name, share in shares.items()}
        return told | {"up_to_ms": {_ms(bound): int(count) for bound, count in self.buckets}}


@dataclass(frozen=True, slots=True)
class Processor:
    """What the kernel says of one thread, in seconds."""

    busy_s: float
    waited_s: float
    """Ready to run, and no core for it."""

    def since(self, before: Processor) -> Processor:
        return Processor(self.busy_s - before.busy_s, self.waited_s - before.waited_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    found: Found
    growth: float
    """Of resident memory from the end of the warm-up to the end, as a share."""
    left: Mapping[str, float]
    """What is not gone after everyone has: gauges, descriptors, threads."""
    delays: Delays
    loop: Processor
    """Of the server's event loop."""

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
    _, delays = await asyncio.to_thread(_figures, server)
    loop = _event_loop(server)
    readings: list[tuple[float, int]] = []
    watching = asyncio.create_task(_watch(server, readings, clients))
    await clients.ask_together(streams, seconds)
    loop = _event_loop(server).since(loop)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    _, late = await asyncio.to_thread(_figures, server)
    await asyncio.to_thread(server.become_idle)
    await asyncio.sleep(1.0)
    figures, _ = await asyncio.to_thread(_figures, server)
    left = {name: figures[name] for name in GAUGES}
    left["descriptors"] = max(0, _descriptors(server) - before[0])
    left["threads"] = max(0, _threads(server) - before[1])
    return Outcome(clients.found, _growth(readings, seconds), left, late.since(delays), loop)


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


def _figures(server: ServerProcess) -> tuple[dict[str, float], Delays]:
    """Gauges by name, and the delays of the event loop."""
    values: dict[str, float] = {}
    buckets: list[tuple[float, float]] = []
    reply = httpx.get(f"{server.root}/metrics", timeout=60)
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            if sample.name == f"{DELAY}_bucket":
                buckets.append((float(sample.labels["le"]), sample.value))
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values, Delays(tuple(buckets))


def _event_loop(server: ServerProcess) -> Processor:
    """It is the first thread."""
    busy, waited, _ = Path(f"/proc/{server.pid}/task/{server.pid}/schedstat").read_text().split()
    return Processor(int(busy) / 1e9, int(waited) / 1e9)


def _ms(seconds: float) -> float | str:
    """Infinity is no JSON."""
    return "more" if math.isinf(seconds) else round(seconds * 1000, 1)


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
    parser.add_argument("--most-delay-ms", type=float, help="of the event loop, in 99 of 100 wake-ups")
    given = parser.parse_args()
    outcome = soak(given.minutes, given.streams, given.seed, given.model)
    for line in outcome.found.differences[:10]:
        print(line)
    numbers = {
        **outcome.found.counts,
        "differences": len(outcome.found.differences),
        "growth": round(outcome.growth, 4),
        "event loop": {
            **outcome.delays.json_object(),
            "busy_s": round(outcome.loop.busy_s, 2),
            "waited_for_core_s": round(outcome.loop.waited_s, 2),
        },
        "left": dict(outcome.left),
    }
    print(json.dumps(numbers))
    most_ms = given.most_delay_ms
    is_late = most_ms is not None and outcome.delays.at_most_s(0.99) > most_ms / 1000
    return 0 if outcome.is_good and not is_late else 1


if __name__ == "__main__":
    sys.exit(main())
