"""Latencies beside other engines at the highest rate that any of them sustains, on workload W5: Poisson arrivals,
lognormal lengths.

Every engine is a server behind HTTP, Plait too, and has the same client, words of the same kind and equal arrivals and
lengths. First each peer is asked at higher and higher rates until it falls behind: until all answers have ended, the
time must be no more than a quarter longer than requests came. The highest rate that one of them holds is that of the
comparison, in which engines take turns (Plait, peers, peers the other way round, Plait), once for each seed. Prints a
table, P99 of Plait by the best peer's, and as its last line one JSON object.

    .venv/bin/python bench/arrivals_beside_peers.py --peer llama.json --peer openvino.json
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from serving.contenders import Contender, Task
from serving.figures import Figures
from serving.peers import contender_of, parse_peer
from serving.plait_engine import engine_options, open_model
from serving.prompts import whole_words
from serving.quiet import QUIET_FRACTION, busy_fraction
from serving.workloads import QUICK_SIZES, Sizes, workloads_named

from plait.core.errors import PlaitError
from plait.weights.gguf import read_gguf

VOCABULARY_KEY = "tokenizer.ggml.tokens"
PORT = 18123
STEP = 1.4
"""From one rate to the next."""
BEHIND = 1.25
"""All answers may take so many times as long as requests came."""
REACH = 0.5
"""Of Plait's P99 by the best peer's."""
COMPARED = ("ttft_p99_s", "itl_p99_s")
SHOWN = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "itl_p99_s", "output_tokens_per_s")
(W5,) = workloads_named("w5")


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        found = _compared(given)
    except (ValueError, OSError, RuntimeError, PlaitError) as error:
        print(f"arrivals_beside_peers: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], metavar="JSON", required=True, help="may be given again")
    parser.add_argument("--model", default="smollm2", help="that Plait serves")
    parser.add_argument("--serve", default="--max-num-seqs 64", help="options of plait serve")
    parser.add_argument("--rate", type=float, help="requests a second, instead of looking for it")
    parser.add_argument("--from-rate", type=float, default=0.5, help="where the search begins")
    parser.add_argument("--arrival-s", type=float, default=40.0, help="how long requests come")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--logs", metavar="DIR", help="where the words of servers go")
    parser.add_argument("--quick", action="store_true", help="tiny requests, one seed: does everything run?")
    return parser.parse_args()


def _compared(given: argparse.Namespace) -> dict[str, object]:
    model = open_model(engine_options({"model": given.model}))
    vocabulary = read_gguf(model.weights.source).metadata[VOCABULARY_KEY]
    assert isinstance(vocabulary, Sequence)
    words = whole_words([str(one) for one in vocabulary])
    sizes = QUICK_SIZES if given.quick else Sizes(arrival_s=given.arrival_s)
    logs = Path(given.logs or tempfile.mkdtemp(prefix="plait-bench-"))
    with ExitStack() as keep:
        # Each is started once and frozen while another is asked.
        theirs = [
            contender_of(parse_peer(one), logs / f"peer-{place}.log", keep) for place, one in enumerate(given.peer)
        ]
        ours = contender_of(parse_peer(_plait(given)), logs / "plait.log", keep)
        search = Task((W5,), replace(sizes, arrival_s=sizes.arrival_s / 2), words, 0)
        sustained = {} if given.rate else {one.facts.label: _sustained(one, search, given.from_rate) for one in theirs}
        rate = given.rate or max(sustained.values())
        if not rate:
            raise RuntimeError(f"no peer holds {given.from_rate:g} requests a second; begin lower with --from-rate")
        task = Task((W5,), replace(sizes, arrivals_per_s=rate), words, 1)
        samples, busy = _in_turn([ours, *theirs], task, 1 if given.quick else given.seeds)
    ratios = report(rate, sustained, samples, ours.facts.label)
    if busy is not None and busy > QUIET_FRACTION:
        print(f"NOT QUIET: others used up to {busy:.0%} of the machine before a turn; these figures compare nothing")
    return {
        "rate": rate,
        "sustained": sustained,
        "samples": {name: [one.values for one in of] for name, of in samples.items()},
        "ratios": ratios,
        "busy_fraction": busy,
    }


def _plait(given: argparse.Namespace) -> str:
    command = Path(sys.executable).parent / "plait"
    start = f"{command} serve {given.model} --port {PORT} {given.serve}"
    return json.dumps({"label": "plait", "url": f"http://127.0.0.1:{PORT}", "start": start, "model": given.model})


def _asked(contender: Contender, task: Task, cycle: int) -> Figures:
    (sample,) = contender.visit(task, cycle, 1)
    return sample[W5.name]


def _sustained(contender: Contender, task: Task, rate: float) -> float:
    """The highest rate that it holds, of those that are tried; 0: not even the first."""
    held = 0.0
    for turn in range(20):
        found = _asked(contender, replace(task, sizes=replace(task.sizes, arrivals_per_s=rate)), turn)
        seconds = found.values.get("seconds", float("inf"))
        holds = not found.num_errors and not found.num_short and seconds <= BEHIND * task.sizes.arrival_s
        print(f"{contender.facts.label}: {rate:.2f}/s {'held' if holds else 'not held'}, {seconds:.1f} s, TTFT P99 "
              f"{found.values.get('ttft_p99_s', 0.0) * 1e3:.0f} ms {found.first_error}", file=sys.stderr)  # fmt: skip
        if not holds:
            break
        held, rate = rate, STEP * rate
    return held


def _in_turn(
    contenders: Sequence[Contender], task: Task, num_seeds: int
) -> tuple[dict[str, list[Figures]], float | None]:
    samples: dict[str, list[Figures]] = {one.facts.label: [] for one in contenders}
    busy: list[float] = []
    for seed in range(num_seeds):
        for one in (*contenders, *reversed(contenders)):
            if (others := busy_fraction()) is not None:
                busy.append(others)
            print(f"seed {seed + 1} of {num_seeds}: {one.facts.label}", file=sys.stderr, flush=True)
            samples[one.facts.label].append(_asked(one, task, seed))
    return samples, max(busy, default=None)


def report(
    rate: float, sustained: dict[str, float], samples: dict[str, list[Figures]], ours: str
) -> dict[str, float | None]:
    """The table, and Plait's figures by the best peer's."""
    for name, held in sustained.items():
        print(f"{name} holds {held:.2f} requests a second")
    print(f"{rate:.2f} requests a second; medians; ms, tokens/s")
    print(f"{'engine':24}" + "".join(f"{name:>20}" for name in SHOWN) + "  errors")
    medians: dict[str, dict[str, float]] = {}
    for name, found in samples.items():
        good = [one.values for one in found if not one.num_errors and not one.num_short]
        medians[name] = {key: statistics.median(one[key] for one in good) for key in SHOWN} if good else {}
        shown = "".join(
            f"{medians[name][key] * (1e3 if key.endswith('_s') and 'per' not in key else 1):20.1f}"
            if good
            else f"{'-':>20}"
            for key in SHOWN
        )
        print(f"{name:24}{shown}  {sum(one.num_errors + one.num_short for one in found)}")
    ratios: dict[str, float | None] = {}
    for key in COMPARED:
        others = [found[key] for name, found in medians.items() if name != ours and found]
        ratios[key] = medians[ours][key] / min(others) if others and medians[ours] else None
        if (ratio := ratios[key]) is not None:
            print(f"plait's {key} by the best peer's: {ratio:.2f} (reach {REACH}): "
                  f"{'reached' if ratio <= REACH else 'NOT reached'}")  # fmt: skip
    return ratios


if __name__ == "__main__":
    sys.exit(main())
