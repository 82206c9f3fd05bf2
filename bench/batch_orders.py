"""Orders of a batch on this machine: what they are said to take and what they take, on a model of balanced loads.

    .venv/bin/python bench/batch_orders.py                      # about four minutes on two cores, nothing else running
    .venv/bin/python bench/batch_orders.py --model smollm2 --words 200 --questions 200 --orders input,dfs,blend
    .venv/bin/python bench/batch_orders.py --sets FOLDER        # densities of files of requests; runs nothing

The job is BlendServe's in small: shuffled questions on subjects that begin with the same examples, of which the cache
holds about eight, answers of middle length and long ones, of lengths that are drawn. The model is `balance_model.py`'s.
The bound is printed first. Each run is a process of its own; rounds go through the orders forward and back; answers
must be equal. The lines with `ok` or `MISSED` are what the orders are held to; what a decision costs is processor time
of its thread.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from balance_model import write_balance_model
from batch_lines import Line, completion

from plait.sched.blend.feeds import Feed, JobOrder, Ordering, feed_over
from plait.sched.blend.forecast import Machine, forecast
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.tree import build_tree, packed

PLAIT = [sys.executable, "-c", "import sys; from plait.cli.main import main; sys.exit(main())"]
FIXED = ("input", "dfs", "bfs", "density")


@dataclass(frozen=True, slots=True)
class Found:
    """Of one order: seconds of each run, parts of prompts found again, and of the time, until the order was found."""

    seconds: list[float]
    hits: float
    ordering_s: float
    answers: str

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.seconds)


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = options.model or str(write_balance_model(folder / "balance"))
        engine = ["-m", model, "--quiet", "--json"]
        engine += [] if options.model else ["--kv-cache-dtype", "f32", "--max-model-len", "4096"]
        if options.sets:
            _densities(Path(options.sets), folder, engine)
            return
        lines = job(options)
        source = folder / "in.jsonl"
        source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        shared = ["-i", str(source), "--kv-cache-memory", options.memory, *engine]
        plan = _plait(*shared, "--plan-only")
        bound_s = _bound(plan)
        orders = options.orders.split(",")
        found = _measured(orders, shared, folder, options.rounds)
    predicted = {order: plan["orders"][order]["seconds"] for order in orders if order in plan["orders"]}
    _table(found, predicted, bound_s)
    checks = [*_checks(found, predicted, bound_s, plan), *_costs(lines)]
    for told in checks:
        print(told)
    real = {order: {"seconds": one.seconds, "hits": one.hits} for order, one in found.items()}
    print(json.dumps({"bound_s": bound_s, "predicted_s": predicted, "real": real, "density": plan["density"]}))


def _bound(plan: Mapping[str, object]) -> float:
    """All beginnings computed once, everything read once, one after the other, no step but those that hold a full
    load: the practical optimum of a machine whose steps are fused. Printed.
    """
    print(f"density {plan['density']:.3g}; {plan['density_histogram']} lines below {plan['density_bins']} and above")
    bound_s = float(plan["bound_seconds"])
    print(f"bound   {bound_s:.2f} s if every beginning is computed once and no step waits for weights alone")
    for name, run in sorted(plan["orders"].items(), key=lambda one: one[1]["seconds"]):
        print(f"        {name:<8}{run['seconds']:>7.2f} s predicted, {run['seconds'] / bound_s:.2f} of the bound")
    return bound_s


def _measured(orders: Sequence[str], shared: list[str], folder: Path, rounds: int) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for number in range(rounds):
        # Forward and back, so that a machine that gets slower does so for all.
        for order in orders if number % 2 == 0 else orders[::-1]:
            output = folder / f"{order}.jsonl"
            summary = _plait(*shared, "-o", str(output), "--order", order, "--restart")
            bodies = [json.loads(line)["response"]["body"]["choices"] for line in output.read_text().splitlines()]
            run, answers = summary["run"], json.dumps(bodies)
            before = found[order].seconds if order in found else []
            found[order] = Found([*before, run["duration_s"]], run["prefix_hit_fraction"], run["ordering_s"], answers)
    if len({one.answers for one in found.values()}) != 1:
        raise SystemExit("answers differ between orders")
    return found


def _table(found: Mapping[str, Found], predicted: Mapping[str, float], bound_s: float) -> None:
    first = next(iter(found))
    heads = ("order", "real", "runs", "predicted", "hits", "speed-up", "predicted", "to bound")
    widths = ("<9", ">9", ">18", ">11", ">7", ">10", ">11", ">10")
    print("".join(format(head, width) for head, width in zip(heads, widths, strict=True)))
    for order, one in found.items():
        runs = " ".join(f"{seconds:.2f}" for seconds in one.seconds)
        said = predicted.get(order)
        words = ("", "") if said is None else (f"{said:.2f} s", f"{predicted[first] / said:.3f}x")
        print(
            f"{order:<9}{one.mean_s:>7.2f} s{runs:>18}{words[0]:>11}{one.hits:>7.1%}"
            f"{found[first].mean_s / one.mean_s:>9.3f}x{words[1]:>11}{one.mean_s / bound_s:>10.3f}"
        )


def _checks(
    found: Mapping[str, Found], predicted: Mapping[str, float], bound_s: float, plan: Mapping[str, object]
) -> Iterator[str]:
    fixed = {order: found[order].mean_s for order in FIXED if order in found}
    best = min(fixed, key=fixed.__getitem__)
    for order in ("blend", "auto"):
        if order not in found:
            continue
        seconds = found[order].mean_s
        yield _told(fixed[best] / seconds, 0.98, f"{order} over the best fixed order, {best}")
        if "input" in fixed:
            yield _told(fixed["input"] / seconds, 1.25, f"{order} over the order of the input")
        if "dfs" in fixed:
            gap = fixed["dfs"] / bound_s - 1
            closed = (fixed["dfs"] - seconds) / (fixed["dfs"] - bound_s) if gap > 0 else 1.0
            words = f"{order} closes of the gap between dfs and the bound, which is {gap:.1%}"
            yield _told(closed, 0.6, words) if gap > 0.05 else f"  --    {closed:6.3f}  {words}: not above 5 %"
            yield _told(found[order].hits / max(found["dfs"].hits, 1e-9), 0.95, f"{order}'s hits over those of dfs")
        yield _told(
            found[order].ordering_s / seconds, 0.01, f"{order}: part of the run until the order was found", most=True
        )
    first = next(iter(found))
    for order, said in predicted.items():
        if order in found and order != first:
            real, told = found[first].mean_s / found[order].mean_s, predicted[first] / said
            yield _told(
                abs(real / told - 1), 0.03, f"{order}: speed-up {real:.3f}x, predicted {told:.3f}x, off by", most=True
            )


def _told(value: float, bar: float, words: str, *, most: bool = False) -> str:
    is_met = value <= bar if most else value >= bar
    return f"{'ok' if is_met else 'MISSED':>6}  {value:8.3f}  {words} ({'at most' if most else 'at least'} {bar:g})"


class _Timed:
    """A feed whose calls are timed in processor time of this thread, added up from step to step."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.step_ns, self.steps_ns = 0, list[int]()

    @property
    def num_left(self) -> int:
        return self._feed.num_left

    def _timed(self, work: Callable[[], int | None]) -> int | None:
        begun = time.thread_time_ns()
        found = work()
        self.step_ns += time.thread_time_ns() - begun
        return found

    def next(self) -> int | None:
        return self._timed(self._feed.next)

    def ended(self, place: int, output_tokens: int) -> None:
        self._timed(lambda: self._feed.ended(place, output_tokens))

    def spent(self, compute_s: float, memory_s: float) -> None:
        self._timed(lambda: self._feed.spent(compute_s, memory_s))

    def compute_s(self, memory_s: float) -> float:
        return self._feed.compute_s(memory_s)

    def step(self, compute_s: float, memory_s: float, count: int) -> None:
        self.steps_ns += [self.step_ns, *[0] * (count - 1)]
        self.step_ns = 0


@dataclass(frozen=True, slots=True)
class _Bytes:
    """What requests ask of the balance model, bytes being tokens; any machine's rates will do here."""

    prompt_token_s: float = 60e-6
    output_token_s: float = 60e-6

    def memory_s(self, prompt: int, output: int) -> float:
        return (prompt * output + output * output / 2) * 16_384 / 34e9

    def mean_held_bytes(self, prompt: int, output: int) -> float:
        return (prompt + output / 2) * 16_384


def _costs(lines: Sequence[Line]) -> Iterator[str]:
    """What choosing the next request costs in a step: ten times the job, blended, lengths known and sampled."""
    for knows in (True, False):
        given, lives = OfflineJob(), _Bytes()
        outputs = []
        for copy in range(10):
            for line in lines:
                body: Line = line["body"]  # type: ignore[assignment]
                prompt, limit = f"{body['prompt']}{copy}".encode(), int(str(body["max_tokens"]))
                place = given.add(packed(list(prompt)), len(prompt), limit)
                outputs.append(limit)
                if knows:
                    given.known[place] = limit
        tree = build_tree(given.prompts)
        ordering = Ordering(JobOrder.BLEND, lives, 100 * 2**20, ahead=4, holds_once=True)
        feed = _Timed(feed_over(tree, given, ordering))
        machine = Machine(100 * 2**20, 512, rows=64, tells=False, block_tokens=32, in_flight=128)
        forecast(feed, tree, given.prompt_tokens, outputs, lives, machine, feed.step)
        costs = sorted(feed.steps_ns)
        # What plans the job anew when the sample has ended is part of the warm-up: those two steps are told apart.
        plans = 0 if knows else 2
        steps = costs[: len(costs) - plans]
        words = f"of {len(given):,} requests, lengths {'known' if knows else 'sampled'}"
        yield _told(statistics.fmean(steps) / 1e6, 0.1, f"ms a step to choose {words}, mean", most=True)
        yield _told(steps[int(0.99 * len(steps))] / 1e6, 0.3, f"ms a step to choose {words}, p99", most=True)
        if plans:
            yield f"  --    {costs[-1] / 1e6:8.1f}  ms to plan {len(given):,} requests anew when the sample has ended"


def _densities(sets: Path, folder: Path, engine: list[str]) -> None:
    """Of every file of requests in a folder, each answer as long as it may be."""
    print(f"{'set':<42}{'lines':>7}{'faulty':>8}{'density':>9}   lines by density")
    for path in sorted(sets.glob("*.jsonl*")):
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = [json.loads(line) for line in raw.splitlines() if line.strip()]
        for line in lines:
            line["body"].pop("model", None)
        source = folder / "set.jsonl"
        source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        try:
            plan = _plait("-i", str(source), *engine, "--plan-only")
        except SystemExit as error:
            print(f"{path.name:<42}{str(error).strip()[:80]}")
            continue
        print(
            f"{path.name:<42}{plan['lines']:>7}{plan['faulty_lines']:>8}{plan['density']:>9.3g}   "
            f"{plan['density_histogram']} below {plan['density_bins']}"
        )


def job(options: argparse.Namespace) -> list[Line]:
    dice = random.Random(options.seed)
    vocabulary = ["".join(dice.choices("abcdefghijklmnoprstuvw", k=dice.randrange(2, 9))) for _ in range(900)]
    subjects = [" ".join(dice.choices(vocabulary, k=options.words)) for _ in range(options.subjects)]
    lines = []
    for place in range(options.questions):
        own = " ".join(dice.choices(vocabulary, k=8))
        lines.append(completion(f"q{place}", f"{dice.choice(subjects)}\nQuestion: {own}?\nAnswer:", 2))
    for place in range(options.middle):
        prompt = " ".join(dice.choices(vocabulary, k=options.words // 2))
        lines.append(completion(f"m{place}", prompt, round(options.tokens * dice.uniform(0.1, 0.4))))
    for place in range(options.long):
        prompt = " ".join(dice.choices(vocabulary, k=4))
        lines.append(completion(f"l{place}", prompt, round(options.tokens * dice.uniform(0.5, 1.5))))
    dice.shuffle(lines)
    return lines


def _plait(*words: str) -> dict[str, object]:
    result = subprocess.run([*PLAIT, "batch", *words], capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(result.stderr)
    return json.loads(result.stdout)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="", help="instead of the balance-matched one")
    parser.add_argument("--memory", default="100MiB")
    parser.add_argument("--orders", default="input,dfs,bfs,density,blend,auto")
    parser.add_argument("--subjects", type=int, default=20)
    parser.add_argument("--words", type=int, default=86, help="of a subject's beginning")
    parser.add_argument("--questions", type=int, default=240)
    parser.add_argument("--middle", type=int, default=30)
    parser.add_argument("--long", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sets", default="", help="a folder of JSONL files, plain or .gz")
    return parser.parse_args()


if __name__ == "__main__":
    main()
