"""What n-gram drafts would do with known answers: steps and, at given times of steps, how many times as fast, without a
clock. And what asking for them costs the engine's thread, in processor time of this machine.

ANSWERS has a line of JSON for each answer: {"set": name, "prompt": token ids, "answer": token ids}. Without such a file
it is made first: the model answers the prompts of `plait bench speculation`, and those of --prompts, greedy.

The answers are played through `plait.sched.speculation` as the engine's thread does it: two steps in flight, as many
answers at once as there are streams, the next ones when all have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import math
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from plait.api.bodies import JsonObject
from plait.build import LocalEngine, load_model, start_engine
from plait.cli.speculation_rounds import Counts, Rounds
from plait.config.bench_options import PROMPT_SETS
from plait.config.engine_options import EngineOptions
from plait.core.errors import PlaitError
from plait.core.ids import LaneId, RequestId, SeqId, StepId
from plait.core.request import Request, SeqState
from plait.core.request import Sequence as Seq
from plait.core.sampling import SamplingParams
from plait.core.step import (
    SAMPLES_ONE,
    Chunk,
    Drafts,
    OutputKind,
    Outputs,
    SeqResult,
    SeqStatus,
    StepPlan,
    StepResult,
    StepStatus,
)
from plait.draft.depth import PricedDepth
from plait.draft.ngram import NgramDrafts
from plait.exec.native.ngrams import native_window
from plait.sched.speculation import Drafted, Speculation

VOCAB_SIZE = 1 << 20
LANE = LaneId(0)
STREAMS = 8
FORMED = "json"
"""What forms leave no choice about is not n-grams' to guess."""
MOST_ROWS = 64
TIMES = "1:5.2,2:5.6,3:6.0,4:6.5,6:8.2,8:9.8,12:13.4,16:17"
"""Milliseconds of a step of so many rows: smollm2 as Q4_1 on two cores of an AMD EPYC, 30 November 2026."""


@dataclass(frozen=True, slots=True)
class Answer:
    name: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """Of steps, by rows, in seconds; beyond what is given as the last ones go on."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of_text(cls, text: str) -> Times:
        pairs = [one.split(":") for one in text.split(",")]
        return cls(tuple(int(rows) for rows, _ in pairs), tuple(float(ms) / 1e3 for _, ms in pairs))

    def of(self, rows: int) -> float:
        at = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        below, above = self.rows[at - 1], self.rows[at]
        part = (rows - below) / (above - below)
        return self.seconds[at - 1] + part * (self.seconds[at] - self.seconds[at - 1])


@dataclass(slots=True)
class Tally:
    steps: int = 0
    seconds: float = 0.0
    """Of steps, and of waits between them."""
    vain: int = 0
    """Steps that were waited for and had no drafts."""
    proposed: int = 0
    accepted: int = 0
    asking_s: float = 0.0
    """Processor time that guessing, choosing and keeping account took."""


@dataclass(slots=True)
class Player:
    """One engine: what it learns stays from answer to answer. `speculation`: None: nobody guesses."""

    times: Times
    wait_s: float
    speculation: Speculation | None
    tally: Tally = field(default_factory=Tally)
    now_s: float = 0.0
    """When the last step ended."""
    num_steps: int = 0
    num_seqs: int = 0

    def play(self, answers: Sequence[Answer]) -> None:
        """All at once, to the last."""
        running, known = [], {}
        for one in answers:
            seq = self._sequence(one)
            known[seq.id] = (*one.prompt, *one.tokens)
            if len(one.tokens) > 1:
                running.append(seq)
        began_s, flights, is_late = self.now_s, deque[tuple[StepPlan, bool]](), False
        while running or flights:
            while running and len(flights) < 2 and (plan := self._plan(running)) is not None:
                # What is planned behind another begins when that ends.
                flights.append((plan, is_late and not flights))
            self._collect(*flights.popleft(), running, known)
            is_late = True
        self.tally.seconds += self.now_s - began_s

    def _sequence(self, one: Answer) -> Seq:
        """Whose prompt is computed, and has brought the first token."""
        request = Request(RequestId(str(self.num_seqs)), one.prompt, SamplingParams(max_tokens=len(one.tokens)))
        seq = Seq(SeqId(self.num_seqs), request, 0, 0, len(one.tokens), 0.0, [*one.prompt, one.tokens[0]])
        seq.state, seq.num_computed = SeqState.RUNNING, len(one.prompt)
        self.num_seqs += 1
        return seq

    def _plan(self, running: Sequence[Seq]) -> StepPlan | None:
        speculation = self.speculation
        drafts: Mapping[SeqId, Drafted] = {}
        began_s = time.thread_time()
        if speculation is not None and not speculation.rests(running):
            if speculation.waits(running, False):
                self.tally.asking_s += time.thread_time() - began_s
                return None
            drafts = speculation.choose(running, MOST_ROWS, False)
        self.tally.asking_s += time.thread_time() - began_s
        chunks = [_chunk(seq, drafts.get(seq.id)) for seq in running if seq.num_plannable]
        if not chunks:
            return None
        plan = StepPlan(StepId(self.num_steps), LANE, (), (), (), tuple(chunks))
        self.num_steps += 1
        if speculation is not None:
            began_s = time.thread_time()
            speculation.submitted(plan, self.now_s)
            self.tally.asking_s += time.thread_time() - began_s
        return plan

    def _collect(
        self, plan: StepPlan, is_late: bool, running: list[Seq], known: Mapping[SeqId, tuple[int, ...]]
    ) -> None:
        tally = self.tally
        start_s = self.now_s + (self.wait_s if is_late else 0.0)
        self.now_s = start_s + self.times.of(sum([chunk.num_tokens for chunk in plan.chunks]))
        results = tuple([_result(chunk, known[chunk.seq]) for chunk in plan.chunks])
        result = StepResult(plan.step, LANE, StepStatus.COMPLETED, start_s, self.now_s, 1, results)
        if self.speculation is not None:
            began_s = time.thread_time()
            self.speculation.committed(result, self.now_s)
            tally.asking_s += time.thread_time() - began_s
        by_id = {seq.id: seq for seq in running}
        for chunk, one in zip(plan.chunks, results, strict=True):
            tally.proposed += chunk.num_drafts
            tally.accepted += one.num_accepted
            seq = by_id.get(chunk.seq)
            if seq is not None:
                seq.tokens += one.tokens
                seq.num_computed += one.num_computed
                seq.num_scheduled -= chunk.num_tokens
                if len(seq.tokens) == len(known[seq.id]):
                    running.remove(seq)
        tally.steps += 1
        tally.vain += is_late and not any([chunk.num_drafts for chunk in plan.chunks])


def _chunk(seq: Seq, drafted: Drafted | None) -> Chunk:
    start = seq.num_computed + seq.num_scheduled
    if drafted is not None:
        count = len(drafted.tokens)
        drafts = Drafts(drafted.tokens, tuple(range(-1, count - 1)))
        outputs = (Outputs(0, count + 1, OutputKind.SAMPLE),)
        chunk = Chunk(seq.id, start, count + 1, (seq.tokens[start],), drafts, outputs)
    elif start < len(seq.tokens):
        chunk = Chunk(seq.id, start, 1, (seq.tokens[start],), None, SAMPLES_ONE)
    else:
        chunk = Chunk.of_unknown(seq.id, start)
    seq.num_scheduled += chunk.num_tokens
    return chunk


def _result(chunk: Chunk, text: Sequence[int]) -> SeqResult:
    ids = () if chunk.drafts is None else chunk.drafts.ids
    came = text[chunk.start + 1 : chunk.start + 1 + len(ids)]
    right = next((at for at, (one, guess) in enumerate(zip(came, ids, strict=False)) if one != guess), len(came))
    said = tuple(text[chunk.start + 1 : chunk.start + 2 + right])
    return SeqResult(chunk.seq, SeqStatus.OK, 1 + right, said, num_accepted=right)


def played(
    by_set: Mapping[str, Sequence[Answer]], streams: int, times: Times, wait_s: float, *, drafts: bool
) -> dict[str, Tally]:
    """Set by set, on one engine."""
    speculation = Speculation(NgramDrafts(native_window), PricedDepth(), VOCAB_SIZE) if drafts else None
    player, tallies = Player(times, wait_s, speculation), {}
    for name, answers in by_set.items():
        player.tally = tallies[name] = Tally()
        for first in range(0, len(answers), streams):
            player.play(answers[first : first + streams])
    return tallies


def record(
    path: Path, model_name: str, sets: Sequence[str], prompts: Path | None = None, count: int = 0, max_tokens: int = 1
) -> None:
    """Answers of a model to sets of the bench's prompts, and to `count` of each kind of others."""
    options = EngineOptions(model=model_name, max_model_len=4096)
    model = load_model(options, lambda done, total: None, datetime.now)
    engine = start_engine(options, model, lambda event: None, lambda words: None)
    try:
        rounds = Rounds(engine, lambda is_on: None, Counts())
        asked = [(name, one) for name in sets for one in rounds.requests(name)]
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        for kind, messages in _chats(prompts, count):
            prompt = engine.text.encode_chat(messages, add_generation_prompt=True, variables={})
            asked.append((kind, Request(RequestId(""), tuple(prompt), sampling)))
        answers = asyncio.run(_answers(engine, asked))
    finally:
        engine.close()
    with path.open("w", encoding="utf-8") as lines:
        for one in answers:
            lines.write(json.dumps({"set": one.name, "prompt": one.prompt, "answer": one.tokens}) + "\n")


def read(path: Path) -> dict[str, list[Answer]]:
    by_set: dict[str, list[Answer]] = {}
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        by_set.setdefault(line["set"], []).append(Answer(line["set"], tuple(line["prompt"]), tuple(line["answer"])))
    return by_set


def _chats(path: Path | None, count: int) -> Iterator[tuple[str, list[JsonObject]]]:
    """The first ones of each kind in an OpenAI batch, whose ids end in a number, before which stands the kind."""
    if path is None:
        return
    seen: Counter[str] = Counter()
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            kind = line["custom_id"].rpartition("-")[0]
            seen[kind] += 1
            if seen[kind] <= count:
                yield kind, line["body"]["messages"]


async def _answers(engine: LocalEngine, asked: Sequence[tuple[str, Request]]) -> list[Answer]:
    found: dict[int, Answer] = {}
    numbers = iter(range(len(asked)))

    async def work() -> None:
        for number in numbers:
            name, request = asked[number]
            tokens: list[int] = []
            async for delta in engine.client.submit(replace(request, id=RequestId(f"answer-{number}"))):
                tokens += delta.tokens
                if delta.error is not None:
                    raise PlaitError(delta.error)
            found[number] = Answer(name, request.prompt, tuple(tokens))

    await asyncio.gather(*(work() for _ in range(STREAMS)))
    return [found[number] for number in range(len(asked)) if found[number].tokens]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path, nargs="?", default=Path("out/draft_answers.jsonl"), metavar="ANSWERS")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="lines of an OpenAI batch, asked as well")
    parser.add_argument("-n", type=int, default=24, help="of each kind of --prompts [24]")
    parser.add_argument("--max-tokens", type=int, default=256, help="of their answers [256]")
    parser.add_argument("--streams", default="1,8,32", help="with commas [1,8,32]")
    parser.add_argument("--times", default=TIMES, help=f"of steps, as rows:milliseconds [{TIMES}]")
    parser.add_argument("--wait-ms", type=float, default=0.3, help="before a step that waited for a token [0.3]")
    parser.add_argument("--rounds", type=int, default=3, help="of which the least processor time is said [3]")
    parser.add_argument("--quick", action="store_true", help="one set, whose answers are not kept: does it run?")
    given = parser.parse_args()
    if given.quick:
        with TemporaryDirectory() as folder:
            record(Path(folder) / "answers", given.model, PROMPT_SETS[-1:])
            by_set = read(Path(folder) / "answers")
    else:
        if not given.answers.exists():
            given.answers.parent.mkdir(parents=True, exist_ok=True)
            sets = [name for name in PROMPT_SETS if name != FORMED]
            record(given.answers, given.model, sets, given.prompts, given.n, given.max_tokens)
        by_set = read(given.answers)
    times, wait_s, found = Times.of_text(given.times), given.wait_ms / 1e3, []
    for streams in map(int, given.streams.split(",")):
        plain = played(by_set, streams, times, wait_s, drafts=False)
        drafted = played(by_set, streams, times, wait_s, drafts=True)
        for _ in range(given.rounds - 1):
            # The same once more, but for how much others on the machine disturb it.
            for name, one in played(by_set, streams, times, wait_s, drafts=True).items():
                drafted[name].asking_s = min(drafted[name].asking_s, one.asking_s)
        ratios = [plain[name].seconds / drafted[name].seconds for name in by_set]
        for name, ratio in zip(by_set, ratios, strict=True):
            before, after = plain[name], drafted[name]
            asking_us = after.asking_s / after.steps * 1e6
            print(
                f"{name:20} {streams:>3} streams {before.steps:>6} -> {after.steps:>6} steps {ratio:6.3f}x, "
                f"{after.proposed:>5} drafts, {after.accepted:>5} right, {after.vain:>4} waits in vain, "
                f"asking {asking_us:6.1f} us a step"
            )
            found.append({"set": name, "streams": streams, "ratio": round(ratio, 4), "asking_us": round(asking_us, 1)})
        mean, lowest = math.exp(sum(map(math.log, ratios)) / len(ratios)), min(ratios)
        print(f"{'mean':20} {streams:>3} streams {mean:.4f}x, lowest {lowest:.4f}x")
    print(json.dumps({"times": given.times, "wait_ms": given.wait_ms, "cells": found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
