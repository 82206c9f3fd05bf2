"""Offline jobs: BlendServe's synthetic mixes as whole jobs, and how long they take in some order.

Owns how requests are drawn so that a job has exactly the density and sharing that are asked for, and the runs of a
job in several orders. The machine is the paper's: an A100 whose steps take the longer of computing and traffic and a
part of the shorter one. Nothing here runs the engine; a step is two numbers (`plait.sched.blend.forecast`).
Invariant: equal mixes give equal jobs; lengths lie evenly on their distributions, so that few requests are as good as
many.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

from plait.cost.density import DensityModel, Lengths, job_of, step_s
from plait.sched.blend.feeds import Ordering, feed_over
from plait.sched.blend.forecast import Forecast, Machine, Watch, forecast
from plait.sched.blend.job import OfflineJob
from plait.sched.blend.tree import TOKEN_BYTES, PrefixTree, build_tree

SYSTEM = 16
"""Tokens of the system prompt that all requests of a trace begin with."""
SUBJECTS = 57
"""Of MMLU: groups of questions that share their examples."""
LONGEST = 262_144
"""Tokens that an answer may have."""
PROMPT_SPREAD = 1.5
"""Mean square of BurstGPT's prompts over the square of their mean; the paper does not print it."""


@dataclass(frozen=True, slots=True)
class EvenLives:
    """What requests ask of a model that keeps every token in every layer."""

    model: DensityModel
    prompt_token_s: float = field(init=False)
    output_token_s: float = field(init=False)

    def __post_init__(self) -> None:
        for name in ("prompt_token_s", "output_token_s"):
            object.__setattr__(self, name, self.model.token_compute_s())

    def memory_s(self, prompt: int, output: int) -> float:
        return (prompt * output + output * output / 2) * self.model.token_bytes / self.model.bytes_per_s

    def mean_held_bytes(self, prompt: int, output: int) -> float:
        return (prompt + output / 2) * self.model.token_bytes


@dataclass(frozen=True, slots=True)
class Mix:
    """`short`, `long` and `alike`: BurstGPT's, OpenVid's and MMLU's requests; so many in all."""

    short: Lengths
    long: Lengths
    alike: Lengths
    requests: int
    density: float
    sharing: float
    seed: int = 1


@dataclass(frozen=True, slots=True)
class DrawnJob:
    prompts: array[int]
    outputs: list[int]
    tree: PrefixTree
    known: Mapping[int, int]
    """Answers whose length is given: a video's follows from its frames."""
    lives: EvenLives

    @property
    def num_shareable(self) -> int:
        return sum(self.prompts) - self.tree.num_distinct()

    @property
    def compute_s(self) -> float:
        """With all hits."""
        return (self.tree.num_distinct() + sum(self.outputs)) * self.lives.prompt_token_s

    @property
    def memory_s(self) -> float:
        return sum(map(self.lives.memory_s, self.prompts, self.outputs))

    def optimum_s(self, interference: float) -> float:
        return step_s(self.compute_s, self.memory_s, interference)

    def run(
        self, ordering: Ordering, machine: Machine, *, knows_all: bool = False, watch: Watch | None = None
    ) -> Forecast:
        job = OfflineJob(prompt_tokens=self.prompts, most=array("q", [LONGEST]) * len(self.prompts))
        job.known = dict(enumerate(self.outputs)) if knows_all else dict(self.known)
        feed = feed_over(self.tree, job, ordering)
        return forecast(feed, self.tree, self.prompts, self.outputs, self.lives, machine, watch)


def draw_job(model: DensityModel, mix: Mix) -> DrawnJob:
    """Traces stand one after the other, as in the paper's depth-first order: computing first."""
    dice, lives = random.Random(mix.seed), EvenLives(model)
    counts = [round(count) for count, _ in job_of(
        model, (mix.short, mix.long, mix.alike), mix.requests, mix.density, mix.sharing
    ).parts]  # fmt: skip
    system = [dice.randbytes(TOKEN_BYTES * SYSTEM) for _ in counts]
    prompts: list[bytes] = []
    outputs = _lengths(counts[0], mix.short.output, mix.short.output_squared, dice)
    for length in _lengths(counts[0], mix.short.prompt, PROMPT_SPREAD * mix.short.prompt**2, dice):
        prompts.append(system[0] + dice.randbytes(TOKEN_BYTES * max(1, length - SYSTEM)))
    shared, whole = round(mix.alike.shared), round(mix.alike.prompt)
    stems = [system[2] + dice.randbytes(TOKEN_BYTES * (shared - SYSTEM)) for _ in range(SUBJECTS)]
    for place in range(counts[2]):
        prompts.append(stems[place * SUBJECTS // counts[2]] + dice.randbytes(TOKEN_BYTES * (whole - shared)))
        outputs.append(round(mix.alike.output))
    for _ in range(counts[1]):
        prompts.append(system[1] + dice.randbytes(TOKEN_BYTES * (round(mix.long.prompt) - SYSTEM)))
    tree = build_tree(prompts)
    lengths = array("q", (len(prompt) // TOKEN_BYTES for prompt in prompts))
    videos = _lengths(counts[1], mix.long.output, mix.long.output_squared, dice)
    first = len(outputs)
    outputs += _stretched(videos, mix, model, tree.num_distinct(), lengths, outputs)
    known = {place: outputs[place] for place in range(first, len(outputs))}
    return DrawnJob(lengths, outputs, tree, known, lives)


def _lengths(count: int, mean: float, square: float | None, dice: random.Random) -> list[int]:
    """Lognormal, evenly along the distribution and in random order."""
    spread = math.log((square or mean**2) / mean**2)
    values = [math.exp(math.sqrt(spread) * NormalDist().inv_cdf((place + 0.5) / count)) for place in range(count)]
    factor = mean * count / sum(values) if values else 0.0
    lengths = [max(1, round(value * factor)) for value in values]
    dice.shuffle(lengths)
    return lengths


def _stretched(
    videos: list[int], mix: Mix, model: DensityModel, distinct: int, prompts: array[int], outputs: list[int]
) -> list[int]:
    """As long as the density of the job asks for: few long ones do not lie on their distribution exactly."""
    key_s, token_s, prompt = model.token_bytes / model.bytes_per_s, model.token_compute_s(), round(mix.long.prompt)
    others_s = sum(prompts[place] * out + out * out / 2 for place, out in enumerate(outputs)) * key_s
    total, squares = sum(videos), sum(one * one for one in videos)
    # density * (others + (prompt k total + k^2 squares / 2) key_s) = (distinct + outputs + k total) token_s, for k.
    square = mix.density * squares / 2 * key_s
    linear = mix.density * prompt * total * key_s - total * token_s
    free = mix.density * others_s - (distinct + sum(outputs)) * token_s
    factor = (-linear + math.sqrt(linear * linear - 4 * square * free)) / (2 * square)
    return [max(1, round(factor * one)) for one in videos]
