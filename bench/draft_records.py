"""What an n-gram drafter finds in answers: by place, how long an ending stood there before, and how many of the tokens
behind it came. Counts, no times: simulations replay them (src/plait/sim/drafts.py).

FILE has lines of an OpenAI batch whose ids end in a number, before which stands the kind of prompt. Answers are greedy,
of one model, and end where the model ends them. Nothing of the texts is written.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from plait.build import LocalEngine, load_model, start_engine
from plait.config.engine_options import EngineOptions
from plait.core.errors import PlaitError
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.draft.drafter import Drafter
from plait.draft.ngram import NgramDrafts
from plait.draft.suffixes import SuffixAutomaton
from plait.sim.drafts import DIGITS

MOST = len(DIGITS) - 1
LONGEST_RUN = 16
STREAMS = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("output", type=Path, metavar="OUTPUT")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--source", default="", help="what FILE is, for the output")
    parser.add_argument("-n", type=int, default=16, help="prompts of each kind [16]")
    parser.add_argument("--max-tokens", type=int, default=256)
    given = parser.parse_args()
    chosen: dict[str, list[list[dict[str, str]]]] = {}
    opened = gzip.open if given.file.suffix == ".gz" else open
    with opened(given.file, "rt", encoding="utf-8") as lines:
        for line in lines:
            asked = json.loads(line)
            kind = asked["custom_id"].rpartition("-")[0].removeprefix("spec-")
            if len(chosen.setdefault(kind, [])) < given.n:
                chosen[kind].append(asked["body"]["messages"])
    options = EngineOptions(model=given.model, max_model_len=4096)
    model = load_model(options, lambda done, total: None, datetime.now)
    engine = start_engine(options, model, lambda event: None, lambda words: None)
    try:
        found = asyncio.run(_measure(engine, chosen, given.max_tokens))
    finally:
        engine.close()
    about = {
        "what": "by answer: tokens of the longest ending that stood there before, and how many of the tokens behind "
        "it came, at every place, as digits of base 33",
        "model": f"{given.model}, greedy, {given.max_tokens} tokens at most",
        "prompts": given.source or given.file.name,
        "measured_by": "bench/draft_records.py",
    }
    kinds = ",\n".join(f"  {json.dumps(kind)}: [\n{_lines(answers)}\n  ]" for kind, answers in found.items())
    head = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in about.items())
    given.output.write_text(f'{{\n{head},\n "kinds": {{\n{kinds}\n }}\n}}\n', encoding="utf-8")
    for kind, answers in found.items():
        places = sum(len(one[0]) for one in answers)
        runs = [DIGITS.index(digit) for one in answers for digit in one[1]]
        offered = sum(digit != "0" for one in answers for digit in one[0])
        print(
            f"{kind:<18} {len(answers):>3} answers, {places:>6} places: a guess at {offered / places:.0%}, "
            f"{sum(run > 0 for run in runs) / max(1, offered):.0%} of them right at once, run {sum(runs) / places:.2f}"
        )
    return 0


def _lines(answers: Sequence[tuple[str, str]]) -> str:
    return ",\n".join("   " + json.dumps(one) for one in answers)


async def _measure(
    engine: LocalEngine, chosen: dict[str, list[list[dict[str, str]]]], max_tokens: int
) -> dict[str, list[tuple[str, str]]]:
    places = [(kind, messages) for kind, asked in chosen.items() for messages in asked]
    found: dict[int, tuple[str, str]] = {}
    numbers = iter(range(len(places)))

    async def work() -> None:
        for number in numbers:
            found[number] = await _record(engine, number, places[number][1], max_tokens)

    await asyncio.gather(*(work() for _ in range(STREAMS)))
    return {
        kind: [found[at] for at, (one, _) in enumerate(places) if one == kind and len(found[at][0]) > 1]
        for kind in chosen
    }


async def _record(engine: LocalEngine, number: int, messages: list[dict[str, str]], max_tokens: int) -> tuple[str, str]:
    prompt = engine.text.encode_chat(messages, add_generation_prompt=True, variables={})
    answer: list[int] = []
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    async for delta in engine.client.submit(Request(RequestId(f"ask-{number}"), tuple(prompt), sampling)):
        answer += delta.tokens
        if delta.error is not None:
            raise PlaitError(delta.error)
    return record(prompt, answer)


def record(prompt: Sequence[int], answer: Sequence[int]) -> tuple[str, str]:
    """Behind each token of an answer but the last."""
    automaton, drafter = SuffixAutomaton(), NgramDrafts().begin()
    tokens: list[int] = []
    for token in prompt:
        automaton.add(token)
        tokens.append(token)
    endings, runs = "", ""
    for place, token in enumerate(answer[:-1]):
        automaton.add(token)
        tokens.append(token)
        guessed = _all(drafter, tokens)
        came = zip(guessed, answer[place + 1 :], strict=False)
        run = next(
            (at for at, (guess, right) in enumerate(came) if guess != right), min(len(guessed), len(answer) - place - 1)
        )
        endings += DIGITS[min(automaton.match_length, MOST)]
        runs += DIGITS[run]
    return endings, runs


def _all(drafter: Drafter, tokens: Sequence[int]) -> Sequence[int]:
    """A long prompt is taken up over several calls."""
    guess = drafter.guess(tokens, LONGEST_RUN)
    for _ in range(len(tokens) // 256 if len(tokens) > 256 else 0):
        guess = drafter.guess(tokens, LONGEST_RUN)
    return guess.tokens


if __name__ == "__main__":
    raise SystemExit(main())
