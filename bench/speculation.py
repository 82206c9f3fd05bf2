"""What drafts are worth: the same prompts with and without them, in one process, in the order off, on, on, off.

Two engines serve one model; one rests while the other works. The prompts are in the prefix index before anything is
timed, so what is compared is decode. Answers must be equal token for token. Prints a line for each set and number of
streams, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from statistics import median

from plait.build import LocalEngine, load_model, start_engine
from plait.config.engine_options import EngineOptions
from plait.core.errors import PlaitError
from plait.core.events import Collected, Event, Submitted
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.text.grammar import Grammar, GrammarKind

PROMPTS = Path(__file__).parent / "data" / "speculation_prompts.jsonl"
SETS = ("rag", "edit", "json", "chat", "maths", "code")
STREAMS = (1, 8)
ORDER = ("off", "on", "on", "off")
NUMBERS = count()

Tokens = tuple[int, ...]


@dataclass(slots=True)
class Counts:
    """An `EventSink`."""

    steps: int = 0
    drafts: int = 0
    accepted: int = 0

    def __call__(self, event: Event) -> None:
        match event:
            case Submitted(plan=plan):
                self.steps += 1
                self.drafts += sum(chunk.num_drafts for chunk in plan.chunks)
            case Collected(_, result):
                self.accepted += sum(one.num_accepted for one in result.seqs)
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Ask:
    name: str
    request: Request


@dataclass(frozen=True, slots=True)
class Row:
    """Of one set at one number of streams. `ratio`: how many times as fast with drafts."""

    name: str
    streams: int
    num_tokens: int
    off_s: float
    on_s: float
    steps_off: int
    steps_on: int
    drafts: int
    accepted: int

    @property
    def ratio(self) -> float:
        return self.off_s / self.on_s

    def text(self) -> str:
        return (
            f"{self.name:<6} {self.streams:>2} streams: {self.num_tokens / self.off_s:6.1f} -> "
            f"{self.num_tokens / self.on_s:6.1f} tokens/s, {self.ratio:5.3f}x; steps {self.steps_off} -> "
            f"{self.steps_on}, drafts {self.drafts}, accepted {self.accepted}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=SETS)
    parser.add_argument("--streams", type=int, nargs="*", default=list(STREAMS))
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=1, help="of off, on, on, off")
    parser.add_argument("--quick", action="store_true", help="one short prompt of each set: does it run?")
    given = parser.parse_args()
    options = EngineOptions(model=given.model, max_model_len=2048)
    counts = {"off": Counts(), "on": Counts()}
    engines: dict[str, LocalEngine] = {}
    rows: list[Row] = []
    try:
        model = load_model(options, lambda done, total: None, datetime.now)
        for name, speculative in (("off", "off"), ("on", "ngram")):
            engines[name] = start_engine(replace(options, speculative=speculative), model, counts[name], _unheard)
        with asyncio.Runner() as loop:
            for name in given.sets:
                asks = _asks(engines["off"], name, given.temperature, given.quick)
                for streams in given.streams:
                    rows.append(_row(loop, engines, counts, name, asks, streams, given.rounds))
                    print(rows[-1].text(), flush=True)
    except PlaitError as error:
        print(f"speculation: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        for engine in engines.values():
            engine.close()
    found = [
        {"set": row.name, "streams": row.streams, "ratio": round(row.ratio, 4), "tokens": row.num_tokens}
        | {"drafts": row.drafts, "accepted": row.accepted, "steps": [row.steps_off, row.steps_on]}
        for row in rows
    ]
    print(json.dumps({"model": given.model, "temperature": given.temperature, "quick": given.quick, "rows": found}))
    return 0


def _asks(engine: LocalEngine, name: str, temperature: float, quick: bool) -> list[Ask]:
    found = []
    for line in PROMPTS.read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        if told["set"] != name:
            continue
        if "text" in told:
            prompt = engine.text.encode_text(told["text"], True)
        else:
            messages = [{"role": "user", "content": told["prompt"]}]
            prompt = engine.text.encode_chat(messages, add_generation_prompt=True, variables={})
        form = None
        if "schema" in told:
            grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(told["schema"]), "schema")
            form = engine.text.constraint(grammar)
        sampling = SamplingParams(
            temperature=temperature,
            max_tokens=12 if quick else told["max_tokens"],
            seed=1,
            ignore_eos=form is None,
        )
        found.append(Ask(f"{name}-{len(found)}", Request(RequestId(""), tuple(prompt), sampling, constraint=form)))
    return found[:1] if quick else found


def _row(
    loop: asyncio.Runner,
    engines: dict[str, LocalEngine],
    counts: dict[str, Counts],
    name: str,
    asks: Sequence[Ask],
    streams: int,
    rounds: int,
) -> Row:
    for engine in engines.values():
        loop.run(_serve(engine, [_short(ask) for ask in asks], streams))
    seconds: dict[str, list[float]] = {"off": [], "on": []}
    answers: dict[str, list[Tokens]] = {}
    began = {which: replace(of) for which, of in counts.items()}
    for which in ORDER * rounds:
        start_s = time.perf_counter()
        said = loop.run(_serve(engines[which], asks, streams))
        seconds[which].append(time.perf_counter() - start_s)
        if answers.setdefault(which, said) != said:
            raise PlaitError(f"{name}: two runs gave different answers")
    if answers["off"] != answers["on"]:
        raise PlaitError(f"{name}: answers with drafts differ from those without")
    runs = len(seconds["on"])
    return Row(
        name,
        streams,
        sum(map(len, answers["off"])),
        median(seconds["off"]),
        median(seconds["on"]),
        (counts["off"].steps - began["off"].steps) // runs,
        (counts["on"].steps - began["on"].steps) // runs,
        (counts["on"].drafts - began["on"].drafts) // runs,
        (counts["on"].accepted - began["on"].accepted) // runs,
    )


def _short(ask: Ask) -> Ask:
    return replace(ask, request=replace(ask.request, sampling=replace(ask.request.sampling, max_tokens=1)))


async def _serve(engine: LocalEngine, asks: Sequence[Ask], streams: int) -> list[Tokens]:
    """So many at once."""
    places, answers = iter(range(len(asks))), [()] * len(asks)

    async def work() -> None:
        for place in places:
            answers[place] = await _answer(engine, asks[place])

    await asyncio.gather(*(work() for _ in range(streams)))
    return answers


async def _answer(engine: LocalEngine, ask: Ask) -> Tokens:
    tokens: Tokens = ()
    request = replace(ask.request, id=RequestId(f"{ask.name}-{next(NUMBERS)}"))
    async for delta in engine.client.submit(request):
        tokens += delta.tokens
        if delta.error:
            raise PlaitError(delta.error)
    return tokens


def _unheard(_: object) -> None:
    """Nothing is reported."""


if __name__ == "__main__":
    raise SystemExit(main())
