"""A batch run in a process of its own, for tests that kill or interrupt it.

Usage: python -m tests.unit.batch.killable_run INPUT OUTPUT JOURNAL LAST [MANNER]
Appends the words of every submitted request to JOURNAL, prints `ready` at the first one and the summary at the end.
Lines from number LAST on never end, so that the run is under way whenever somebody comes to end it.
MANNER: `stubborn` takes a minute to abort a request; `cramped` may write 40 kB to a file from the first request on.
"""

from __future__ import annotations

import asyncio
import os
import resource
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

A_MOMENT_S = 0.001


class StubbornClient(ScriptedClient):
    async def abort(self, request: RequestId) -> None:
        print("aborting", flush=True)
        await asyncio.sleep(60)


def main(input_path: str, output_path: str, journal_path: str, last: str, manner: str = "") -> int:
    journal = os.open(journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    is_ready = False

    def note(request: Request) -> None:
        nonlocal is_ready
        os.write(journal, words_of(request).encode() + b"\n")
        if not is_ready:
            if manner == "cramped":
                resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
            print("ready", flush=True)
        is_ready = True

    def pause(request: Request) -> asyncio.Future[None]:
        is_last = int(words_of(request).removeprefix("say ")) >= int(last)
        return (
            asyncio.get_running_loop().create_future() if is_last else asyncio.ensure_future(asyncio.sleep(A_MOMENT_S))
        )

    client = (StubbornClient if manner == "stubborn" else ScriptedClient)(pause=pause, on_submit=note)
    try:
        summary = run_batch(BatchConfig(input_path, Path(output_path), max_in_flight=8), ports_of(client))
    except PlaitError as error:
        print(f"error: {error}", flush=True)
        return error.exit_code
    print(write_line(summary.json_object()), flush=True)
    return summary.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
