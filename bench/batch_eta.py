"""How well a batch knows its own end: the time left that is told on the way, beside the time that it then takes.

Runs a file of like lines, and one of answers of different lengths, on a model in this process. Prints the error at each
tenth of the way, as a share of the whole time, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from batch_lines import completion, drawn_words

from plait.batch.config import BatchConfig
from plait.batch.progress import BatchProgress
from plait.batch.runner import BatchPorts, run_batch
from plait.build import LocalEngine, load_model, start_engine
from plait.config.engine_options import EngineOptions
from plait.core.errors import PlaitError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--prompt-words", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=48, help="of each answer; of the unlike ones at most")
    parser.add_argument("--quick", action="store_true", help="few short lines: does it run?")
    given = parser.parse_args()
    num_lines, tokens = (24, 6) if given.quick else (given.lines, given.tokens)
    draw = random.Random(1)
    files = {
        "like": [tokens] * num_lines,
        "unlike": [draw.randint(1, 2 * tokens) for _ in range(num_lines)],
    }
    found: dict[str, dict[str, float | None]] = {}
    try:
        options = EngineOptions(model=given.model)
        model = load_model(options, lambda done, total: None, datetime.now)
        for name, lengths in files.items():
            engine = start_engine(options, model, _unheard, _unheard)
            try:
                found[name] = _errors(engine, _file(lengths, given.prompt_words))
            finally:
                engine.close()
            print(f"{name:<7}", _row(found[name]), flush=True)
    except PlaitError as error:
        print(f"batch_eta: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps({"errors": found, "lines": num_lines, "tokens": tokens, "quick": given.quick}))
    return 0


def _file(lengths: list[int], prompt_words: int) -> str:
    dice = random.Random(2)
    lines = (completion(str(number), drawn_words(dice, prompt_words), one) for number, one in enumerate(lengths))
    return "".join(json.dumps(line) + "\n" for line in lines)


def _errors(engine: LocalEngine, lines: str) -> dict[str, float | None]:
    """At each tenth of the time: what was said to be left, less what was, over the whole."""
    told: list[BatchProgress] = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        source.write_text(lines)
        ports = BatchPorts(engine.client, engine.text, engine.clock, time.time() - engine.clock.now(), told.append)
        run_batch(BatchConfig(str(source), Path(folder) / "out.jsonl"), ports)
    whole_s = told[-1].elapsed_s
    errors: dict[str, float | None] = {}
    for percent in range(10, 100, 10):
        one = next(one for one in told if one.elapsed_s >= whole_s * percent / 100)
        errors[str(percent)] = None if one.left_s is None else (one.left_s - (whole_s - one.elapsed_s)) / whole_s
    return errors


def _row(errors: dict[str, float | None]) -> str:
    return "  ".join(f"{percent} %: {'-' if one is None else f'{one:+.3f}'}" for percent, one in errors.items())


def _unheard(said: object) -> None:
    """Nobody listens."""


if __name__ == "__main__":
    sys.exit(main())
