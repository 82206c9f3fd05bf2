"""An engine with a model in a process of its own, for tests that look at a process from outside.

Owns the conversation: a line on standard input says what to do (look, ask, serve), a line of JSON answers.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from datetime import datetime

from plait.build import LocalEngine, load_model, start_engine
from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources, options_of
from plait.core.events import Event, Submitted
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.exec.native import executor as native

SEQUENCES, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 100, 29
"""A last token needs no memory, so these take 128 tokens' worth: whole blocks of any size up to that."""


class Watched(native.NativeExecutor):
    """The executor, known to those who look at it."""

    newest: Watched | None = None

    def __init__(self, config: native.NativeConfig) -> None:
        super().__init__(config)
        Watched.newest = self

    def close(self) -> None:
        super().close()
        Watched.newest = None


class Steps:
    """Counts what was submitted."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: Event) -> None:
        self.count += isinstance(event, Submitted)


def look(steps: Steps) -> dict[str, float]:
    assert Watched.newest is not None
    counted = Watched.newest.counters()
    return {
        "units": counted["units"],
        "parks": counted["parks"],
        "steps": steps.count,
        "switches": resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw,
        "processor_s": time.process_time(),
        "at_s": time.monotonic(),
    }


async def serve(engine: LocalEngine, sequences: int, output_tokens: int) -> None:
    async def ask(number: int) -> None:
        prompt = tuple(100 + (number * 7919 + place * 104_729) % 40_000 for place in range(PROMPT_TOKENS))
        sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        async for _ in engine.client.submit(Request(RequestId(str(number)), prompt, sampling)):
            pass

    await asyncio.gather(*map(ask, range(sequences)))


def main(model: str) -> None:
    native.NativeExecutor = Watched  # type: ignore[misc]
    options = OptionSources(options_of(EngineOptions), {"model": model}, environment={}).read(EngineOptions)
    steps = Steps()
    loaded = load_model(options, lambda done, total: None, datetime.now)
    engine = start_engine(options, loaded, steps, lambda fault: print(fault, file=sys.stderr))
    print(json.dumps(engine.notes), flush=True)
    with asyncio.Runner() as loop:
        for line in sys.stdin:
            match line.strip():
                case "ask":
                    loop.run(serve(engine, 1, 3))
                case "serve":
                    loop.run(serve(engine, SEQUENCES, OUTPUT_TOKENS))
                case _:
                    pass
            print(json.dumps(look(steps)), flush=True)
    engine.close()


if __name__ == "__main__":
    main(sys.argv[1])
