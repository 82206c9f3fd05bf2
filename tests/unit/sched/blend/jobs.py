"""Jobs of offline requests for tests of their order: classes as in BlendServe's evaluation, in small."""

from __future__ import annotations

import random
from collections.abc import Sequence

from plait.sched.blend.tree import PrefixTree, build_tree, packed
from plait.sched.blend.units import DensityTree, Loads

TOKEN_S = 5e-5
SECONDS_PER_TOKEN_STEP = 6e-8


def memory_s(prompt: int, output: float) -> float:
    """All keys that its decode steps read."""
    return (prompt * output + output**2 / 2) * SECONDS_PER_TOKEN_STEP


def mixed_job(seed: int, num_requests: int = 300) -> tuple[list[tuple[int, ...]], list[int]]:
    """Prompts and output lengths: short answers, shared questions, and a few very long answers; some prompts twice, and
    some that begin others.
    """
    dice = random.Random(seed)

    def text(length: int) -> tuple[int, ...]:
        return tuple(dice.randrange(1000) for _ in range(length))

    system = text(dice.randrange(0, 9))
    stems = [text(dice.randrange(20, 90)) for _ in range(5)]
    prompts, outputs = [], []
    for _ in range(num_requests):
        kind = dice.random()
        if kind < 0.45:
            prompts.append(system + text(dice.randrange(1, 60)))
            outputs.append(dice.randrange(1, 40))
        elif kind < 0.85:
            stem = dice.choice(stems)
            prompts.append(system + stem[: dice.randrange(1, len(stem) + 1)] + text(dice.choice((0, 0, 3, 12))))
            outputs.append(dice.choice((1, 2, 2, 400)))
        else:
            prompts.append(system + text(12) if dice.random() < 0.7 or not prompts else dice.choice(prompts))
            outputs.append(dice.randrange(500, 6000))
    return prompts, outputs


def tree_of(prompts: Sequence[Sequence[int]]) -> PrefixTree:
    return build_tree([packed(prompt) for prompt in prompts])


def dense_of(prompts: Sequence[Sequence[int]], outputs: Sequence[int]) -> DensityTree:
    memory = [memory_s(len(prompt), output) for prompt, output in zip(prompts, outputs, strict=True)]
    return DensityTree(tree_of(prompts), Loads(TOKEN_S, TOKEN_S, [float(one) for one in outputs], memory))
