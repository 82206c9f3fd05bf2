"""Orders of a batch on this machine: what `--plan-only` says and what they take, in one run.

    .venv/bin/python bench/batch_orders.py [--model MODEL] [--memory 100MiB] [--orders input,dfs,blend] [--repeats 1]

The job is BlendServe's in small: shuffled questions on subjects that begin with the same examples, of which the cache
holds about eight, and a few long answers. The bound is printed first. Each order is a process of its own; answers must
be equal. About a minute for each order with the default model on two cores; nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

PLAIT = [sys.executable, "-c", "import sys; from plait.cli.main import main; sys.exit(main())"]
WORDS = 400


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        source.write_text("".join(json.dumps(line) + "\n" for line in job(options)), encoding="utf-8")
        shared = ["-i", str(source), "--kv-cache-memory", options.memory, "--quiet", "--json"]
        shared += ["-m", options.model] if options.model else []
        plan = _plait(*shared, "--plan-only")
        orders = options.orders.split(",")
        predicted = {order: plan["orders"][order]["seconds"] for order in orders}
        bound = min(run["seconds"] for run in plan["orders"].values())
        print(
            f"density {plan['density']:.3g}, {plan['density_histogram']} lines below {plan['density_bins']} and above"
        )
        print(
            f"bound: the best order takes {bound:.1f} s as predicted, {predicted[orders[0]] / bound:.2f}x {orders[0]}"
        )
        found = {order: _measured(order, shared, Path(folder), options.repeats) for order in orders}
    first = orders[0]
    print(f"{'order':<10}{'real':>9}{'predicted':>11}{'hits':>7}{'speed-up':>10}{'predicted':>11}")
    for order in orders:
        real, run = found[order]["seconds"], plan["orders"][order]
        print(
            f"{order:<10}{real:>7.1f} s{run['seconds']:>9.1f} s{found[order]['hits']:>7.1%}"
            f"{found[first]['seconds'] / real:>9.2f}x{predicted[first] / run['seconds']:>10.2f}x"
        )
    if len({found[order]["answers"] for order in orders}) != 1:
        raise SystemExit("answers differ between orders")
    print(json.dumps({"predicted_s": predicted, "real": {k: dict(v, answers="equal") for k, v in found.items()}}))


def job(options: argparse.Namespace) -> list[dict[str, object]]:
    dice = random.Random(options.seed)
    vocabulary = ["".join(dice.choices("abcdefghijklmnoprstuvw", k=dice.randrange(2, 9))) for _ in range(900)]
    subjects = [" ".join(dice.choices(vocabulary, k=WORDS // 2)) for _ in range(options.subjects)]
    lines = []
    for place in range(options.questions):
        own = " ".join(dice.choices(vocabulary, k=25))
        lines.append(_line(f"q{place}", f"{dice.choice(subjects)}\nQuestion: {own}?\nAnswer:", 2))
    for place in range(options.long):
        lines.append(_line(f"l{place}", " ".join(dice.choices(vocabulary, k=12)), options.tokens))
    dice.shuffle(lines)
    return lines


def _line(name: str, prompt: str, tokens: int) -> dict[str, object]:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}


def _measured(order: str, shared: list[str], folder: Path, repeats: int) -> dict[str, object]:
    """The median run's seconds from the first line to the last, as the summary says them."""
    seconds, hits, answers = [], 0.0, ""
    for _ in range(repeats):
        output = folder / f"{order}.jsonl"
        summary = _plait(*shared, "-o", str(output), "--order", order, "--restart")
        seconds.append(summary["run"]["duration_s"])
        hits = summary["run"]["prefix_hit_fraction"]
        bodies = [json.loads(line)["response"]["body"]["choices"] for line in output.read_text().splitlines()]
        answers = str(hash(json.dumps(bodies)))
    return {"seconds": sorted(seconds)[len(seconds) // 2], "hits": hits, "answers": answers}


def _plait(*words: str) -> dict[str, object]:
    result = subprocess.run([*PLAIT, "batch", *words], capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(result.stderr)
    return json.loads(result.stdout)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="")
    parser.add_argument("--memory", default="100MiB")
    parser.add_argument("--orders", default="input,random,dfs,density,blend")
    parser.add_argument("--subjects", type=int, default=20)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--long", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
