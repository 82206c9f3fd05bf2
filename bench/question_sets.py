"""What a model answers to a set of questions, how well, how fast, and whether the order of the file changes anything.

Runs `plait batch` on a file of OpenAI Batch lines, once as it is and again in shuffled orders, each with a fresh
engine, and scores the answers with a file of what is right, one object a line:

    choice   {"custom_id", "answer": "C"}: the first letter A to D that stands alone in the answer
    number   {"custom_id", "answer": "45"}: the number behind "answer is", or the last one
    code     {"custom_id", "test", "entry_point"}: the completed function passes its tests

Code that a model wrote is executed: in a process of its own without network names or environment, with little memory
and time, but as you. Prints a table and, as its last line, one JSON object; exit code 1 if an answer depends on the
order.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Row = dict[str, object]

TEST_SECONDS, TEST_BYTES = 10, 1 << 30
_LETTER = re.compile(r"(?<![A-Za-z])([A-D])(?![A-Za-z])")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_BLOCK = re.compile(r"```(?:python|py)?\s*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over the file. `answers`: text by custom id; None where there was an error."""

    answers: dict[str, str | None]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    seconds: float
    """Of the whole command, start and model included."""


def read_rows(path: Path) -> list[Row]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def is_right_choice(answer: str, row: Mapping[str, object], question: Mapping[str, object]) -> bool:
    found = _LETTER.search(answer)
    return found is not None and found[1] == row["answer"]


def is_right_number(answer: str, row: Mapping[str, object], question: Mapping[str, object]) -> bool:
    said = answer.lower().rfind("answer is")
    numbers = _NUMBER.findall(answer[said:]) if said >= 0 else []
    found = numbers[0] if numbers else next(reversed(_NUMBER.findall(answer)), None)
    if found is None:
        return False
    return float(found.replace(",", "")) == float(str(row["answer"]).replace(",", ""))


def is_right_code(answer: str, row: Mapping[str, object], question: Mapping[str, object]) -> bool:
    """Whether the function passes. A chat's answer holds it whole, a completion goes on where the prompt ends."""
    body = question["body"]
    assert isinstance(body, dict)
    if "prompt" in body:
        program = f"{body['prompt']}{answer}"
    else:
        block = _BLOCK.search(answer)
        program = answer if block is None else block[1]
    return _passes(f"{program}\n{row['test']}\ncheck({row['entry_point']})\n")


def _passes(program: str) -> bool:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (TEST_BYTES, TEST_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (TEST_SECONDS, TEST_SECONDS))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", program],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=2 * TEST_SECONDS,
                preexec_fn=limit,
                start_new_session=True,
                check=False,
            )
        except (subprocess.TimeoutExpired, ValueError):  # ValueError: a NUL in the program
            return False
    return done.returncode == 0


KINDS: Mapping[str, Callable[[str, Mapping[str, object], Mapping[str, object]], bool]] = {
    "choice": is_right_choice,
    "number": is_right_number,
    "code": is_right_code,
}


def answer_text(line: Mapping[str, object]) -> str | None:
    """The text of an output line of `plait batch`, of a chat or a completion; None of an error."""
    response = line.get("response")
    if not isinstance(response, dict) or response.get("status_code") != 200:
        return None
    choice = response["body"]["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def run_batch(rows: Sequence[Row], options: Sequence[str], folder: Path) -> Run:
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    begun = time.monotonic()
    subprocess.run(
        [str(Path(sys.executable).with_name("plait")), "batch", "-i", str(source), "-o", str(target), *options],
        check=True,
    )
    seconds = time.monotonic() - begun
    answers: dict[str, str | None] = {}
    prompt = cached = output = 0
    for line in read_rows(target):
        text = answers[str(line["custom_id"])] = answer_text(line)
        usage = {} if text is None else line["response"]["body"]["usage"]
        prompt += usage.get("prompt_tokens", 0)
        cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        output += usage.get("completion_tokens", 0)
    return Run(answers, prompt, cached, output, seconds)


def in_orders(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """The file's order, then shuffled ones, the same each time."""
    orders = [list(rows)]
    for seed in range(1, count):
        shuffled = list(rows)
        random.Random(seed).shuffle(shuffled)
        orders.append(shuffled)
    return orders


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, help="OpenAI Batch lines, .jsonl or .jsonl.gz")
    parser.add_argument("right", type=Path, help="what is right, .jsonl or .jsonl.gz")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--orders", type=int, default=2, help="runs, the first in the order of the file")
    parser.add_argument("options", nargs="*", help="behind --: options for plait batch")
    asked = parser.parse_args()
    rows, right = read_rows(asked.questions), {str(row["custom_id"]): row for row in read_rows(asked.right)}
    runs = []
    for order in in_orders(rows, asked.orders):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(run_batch(order, asked.options, Path(folder)))
    first = runs[0]
    judge = KINDS[asked.kind]
    questions = {str(row["custom_id"]): row for row in rows}
    scored = [
        text is not None and judge(text, right[name], questions[name])
        for name, text in first.answers.items()
        if name in right
    ]
    differing = sorted({name for run in runs for name in questions if run.answers.get(name) != first.answers.get(name)})
    share = sum(scored) / len(scored)
    figures = {
        "questions": len(scored),
        "right": sum(scored),
        "right_fraction": round(share, 4),
        "standard_error": round((share * (1 - share) / len(scored)) ** 0.5, 4),
        "errors": sum(text is None for text in first.answers.values()),
        "orders": len(runs),
        "differing": len(differing),
        "prompt_tokens": first.prompt_tokens,
        "output_tokens": first.output_tokens,
        "cached_fraction": [round(run.cached_tokens / max(run.prompt_tokens, 1), 3) for run in runs],
        "seconds": [round(run.seconds, 1) for run in runs],
        "requests_per_s": [round(len(rows) / run.seconds, 2) for run in runs],
    }
    for name, value in figures.items():
        print(f"{name:18} {value}")
    for name in differing[:10]:
        print(f"depends on the order: {name}")
    print(json.dumps(figures))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
