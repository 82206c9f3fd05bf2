"""What it takes to order a whole job: prefix tree, guessed lengths, densities and units of many requests.

    .venv/bin/python bench/blend_tree.py [400000]

The mix is BlendServe's in kind (ASPLOS 2026, appendix A.3): 80 % short answers to log-normal prompts, 0.08 % answers of
thousands of tokens, and questions on 57 subjects of 695 shared tokens. Prints processor seconds of each part, the
largest memory of the process with its prompts, and what the ends of the row of units are.
"""

from __future__ import annotations

import math
import random
import resource
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from plait.sched.blend.lengths import drawn, guessed
from plait.sched.blend.tree import build_tree
from plait.sched.blend.units import DensityTree, Loads, cut

T = TypeVar("T")
TOKEN_S, SECONDS_PER_KEY = 5.15e-5, 6.43e-8
"""Llama-3-8B on an A100."""
SUBJECTS, SHARED, OWN = 57, 695, 109


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    prompts, outputs = job(count)
    lengths = [len(prompt) // 4 for prompt in prompts]
    print(f"{count:,} requests, {sum(lengths):,} prompt tokens")
    tree = timed("prefix tree", lambda: build_tree(prompts))
    known = {request: outputs[request] for request in drawn(count, 0)}
    guesses = timed("guessed lengths", lambda: guessed(tree, known, [40_000] * count))
    pairs = list(zip(lengths, guesses, strict=True))
    memory = [(prompt * output + output**2 / 2) * SECONDS_PER_KEY for prompt, output in pairs]
    dense = timed("densities", lambda: DensityTree(tree, Loads(TOKEN_S, TOKEN_S, guesses, memory)))
    units = timed("units", lambda: cut(dense))
    print(f"{len(units)} units, density {units[0].density:.3g} to {units[-1].density:.3g}")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB at most")


def timed(name: str, work: Callable[[], T]) -> T:
    began = time.process_time()
    made = work()
    print(f"  {name:<16}{time.process_time() - began:>7.2f} s")
    return made


def job(count: int) -> tuple[list[bytes], list[int]]:
    dice = random.Random(1)
    subjects = [dice.randbytes(4 * SHARED) for _ in range(SUBJECTS)]
    prompts, outputs = [], []
    for _ in range(count):
        kind = dice.random()
        if kind < 0.8:
            prompts.append(dice.randbytes(4 * max(1, round(dice.lognormvariate(5.29, 0.64)))))
            outputs.append(max(1, round(dice.lognormvariate(1.93, 1.65))))
        elif kind < 0.8008:
            prompts.append(dice.randbytes(4 * 121))
            outputs.append(max(1, round(math.exp(dice.gauss(9.37, 0.82)))))
        else:
            prompts.append(dice.choice(subjects) + dice.randbytes(4 * OWN))
            outputs.append(2)
    return prompts, outputs


if __name__ == "__main__":
    main()
