"""Crashes as a program: a server is killed in the midst of a batch, again and again, and the batch ends whole.

    python -m tests.soak.crash [--kills N] [--lines N] [--seed S]

Kills come at random moments: while the file is checked, while lines run, while files are made. Between them the ledger
on the disk is read: what it had must still be there, and must not have been run again. Then the same with limits on
what may be written, as on a full disk. The last line is one JSON object; ends with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_model import write_tiny_model

FINAL = ("completed", "failed", "cancelled", "expired")
PATIENCE_S = 300.0
MOST_TOKENS = 200


@dataclass(slots=True, eq=False)
class Found:
    kills: list[str] = field(default_factory=list)
    """The state of the batch at each."""
    faults: list[str] = field(default_factory=list)

    def check(self, is_right: bool, what: str) -> None:
        if not is_right:
            self.faults.append(what)


def crash(kills: int, lines: int, seed: int) -> Found:
    chance, found = random.Random(seed), Found()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        tiny = write_tiny_model(folder / "tiny.gguf")
        options = ("--batch-dir", str(folder / "batches"), "--max-num-seqs", "8")
        with serving(tiny, *options) as server:
            sdk = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
            batch_id = _started(sdk, lines)
        # Leaving kills the server at once: nothing but what is on the disk goes on.
        before: dict[int, str] = {}
        for number in range(kills):
            with serving(tiny, *options) as server:
                state = _state_when(server, batch_id, int(lines * (number + chance.random()) / kills))
                server.signal(signal.SIGKILL)
                server.wait()
            found.kills.append(state)
            after = _ledger(folder, batch_id)
            if state not in FINAL:
                found.check(before.items() <= after.items(), f"lines were lost or run again behind {state}")
                before = after
        with serving(tiny, *options) as server:
            _check_whole(server, batch_id, lines, before, found)
    return found


def fill(lines: int, limit_bytes: int) -> Found:
    """No file may grow beyond the limit while the batch runs; then the limit is taken away."""
    found = Found()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        tiny = write_tiny_model(folder / "tiny.gguf")
        with serving(tiny, "--batch-dir", str(folder / "batches"), "--max-num-seqs", "8") as server:
            sdk = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
            batch_id = _started(sdk, lines)
            give_up = time.monotonic() + PATIENCE_S
            while not any("batch waits" in line for line in server.said):
                if time.monotonic() > give_up or sdk.batches.retrieve(batch_id).status in FINAL:
                    found.faults.append("a full disk was not noticed")
                    return found
                time.sleep(0.02)
            found.check(sdk.batches.retrieve(batch_id).status not in FINAL, "a full disk ended the batch")
            reply = sdk.completions.create(model="tiny", prompt="x", max_tokens=4)
            found.check(bool(reply.choices), "a full disk kept people from their answers")
            before = _ledger(folder, batch_id)
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            _check_whole(server, batch_id, lines, before, found)
    return found


def _started(sdk: openai.OpenAI, lines: int) -> str:
    raw = "".join(json.dumps(_line(number)) + "\n" for number in range(lines)).encode()
    file = sdk.files.create(file=("in.jsonl", io.BytesIO(raw)), purpose="batch")
    return sdk.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h").id


def _line(number: int) -> dict[str, Any]:
    """Sampled without a seed of its own: run twice, it would still be the same, so the ledger is compared too."""
    body = {"model": "tiny", "prompt": f"prompt {number}", "max_tokens": 1 + number % MOST_TOKENS, "temperature": 1.0}
    return {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}


def _state_when(server: ServerProcess, batch_id: str, num_finished: int) -> str:
    sdk = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    while True:
        batch = sdk.batches.retrieve(batch_id)
        finished = batch.request_counts.completed if batch.request_counts is not None else 0
        if batch.status in FINAL or finished >= num_finished:
            return batch.status


def _ledger(folder: Path, batch_id: str) -> dict[int, str]:
    """Output of every recorded line. Its `created` is the moment at which it ran."""
    path = folder / "batches" / "batches" / batch_id / "output.jsonl.ledger"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
        return {int(line): str(output) for line, output in ledger.execute("SELECT line, output FROM lines")}
    return {}


def _check_whole(server: ServerProcess, batch_id: str, lines: int, before: dict[int, str], found: Found) -> None:
    sdk = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    give_up = time.monotonic() + PATIENCE_S
    while (batch := sdk.batches.retrieve(batch_id)).status not in FINAL and time.monotonic() < give_up:
        time.sleep(0.05)
    found.check(batch.status == "completed", f"the batch is {batch.status}: {batch.errors}")
    if batch.output_file_id is None:
        found.faults.append("the batch has no output")
        return
    output = sdk.files.content(batch.output_file_id).text.splitlines()
    ids = [int(json.loads(line)["custom_id"]) for line in output]
    found.check(ids == list(range(lines)), f"{len(ids)} lines, {len(set(ids))} different ones, of {lines}")
    found.check(set(before.values()) <= set(output), "lines that were finished before were run again")
    counts = batch.request_counts
    found.check(counts is not None and counts.completed == lines, f"counts are {counts}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.crash", description="Kill a server in a batch.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    killed, filled = crash(given.kills, given.lines, given.seed), fill(given.lines, 150_000)
    faults = [*killed.faults, *filled.faults]
    print(json.dumps({"killed while": killed.kills, "faults": faults}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
