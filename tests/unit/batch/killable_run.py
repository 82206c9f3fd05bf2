"""A batch run in a process of its own, for tests that kill or interrupt it.

Usage: python -m tests.unit.batch.killable_run INPUT OUTPUT JOURNAL SECONDS_PER_TOKEN [stubborn]
Appends the words of every submitted request to JOURNAL, prints `ready` at the first one and the summary at the end.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.unit.batch.jobs import ports_of
from tests.unit.batch.scripted_client import ScriptedClient, words_of

from plait.api.bodies import write_line
from plait.batch.config import BatchConfig
from plait.batch.runner import run_batch
from plait.core.errors import PlaitError
from plait.core.ids import RequestId
from plait.core.request import Request


class StubbornClient(ScriptedClient):
    """Takes a minute to abort a request."""

    async def abort(self, request: RequestId) -> None:
        print("aborting", flush=True)
        await asyncio.sleep(60)


def main(input_path: str, output_path: str, journal_path: str, seconds: str, stubborn: str = "") -> int:
    journal = os.open(journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    is_ready = False

    def note(request: Request) -> None:
        nonlocal is_ready
        os.write(journal, words_of(request).encode() + b"\n")
        if not is_ready:
            print("ready", flush=True)
        is_ready = True

    def pause(request: Request) -> asyncio.Future[None]:
        return asyncio.ensure_future(asyncio.sleep(float(seconds)))

    client = (StubbornClient if stubborn else ScriptedClient)(pause=pause, on_submit=note)
    try:
        summary = run_batch(BatchConfig(input_path, Path(output_path), max_in_flight=8), ports_of(client))
    except PlaitError as error:
        print(f"error: {error}", flush=True)
        return error.exit_code
    print(write_line(summary.json_object()), flush=True)
    return summary.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
