"""Taking turns: the steps of long answers where memory does not hold all of them at once, in closed form.

Owns a count of tokens: who runs, who leaves and what is computed again. No model, no clock, no cache of prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 32


@dataclass(frozen=True, slots=True)
class Turns:
    lengths: tuple[tuple[int, ...], ...]
    """Of every step, the tokens that each sequence in it has."""
    again: tuple[int, ...]
    """Tokens of each sequence that left, when it came back."""


def turns(room_tokens: int, count: int, prompt: int, output: int) -> Turns:
    """As the scheduler does it: the youngest leaves when memory is full, and comes back when all of it fits beside a
    block of growth for everybody. All prompts are computed before.
    """
    have = [prompt] * count
    running, waiting = list(range(count)), list[int]()
    steps: list[tuple[int, ...]] = []
    again: list[int] = []
    while running or waiting:
        while waiting and _used(have, [*running, waiting[0]]) + len(running) * BLOCK <= room_tokens:
            again.append(have[waiting[0]])
            running.append(waiting.pop(0))
        while _used(have, running) > room_tokens:
            waiting.insert(0, running.pop())
        steps.append(tuple(have[one] for one in running))
        for one in running:
            have[one] += 1
        running = [one for one in running if have[one] < prompt + output]
    return Turns(tuple(steps), tuple(again))


def _used(have: list[int], some: list[int]) -> int:
    return sum(-(-(have[one] + 1) // BLOCK) * BLOCK for one in some)
