"""Batch plan: what `plait batch --plan-only` prints: what a job asks for, and how long it would take in each order.

Owns the figures and their form. Reads and encodes every line; runs none and writes nothing.
Invariant: answers are taken to be as long as they may be, unless their length is certain, so times are the longest.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from plait.batch.config import BatchConfig
from plait.batch.preparing import Preparer
from plait.batch.runner import Cutting
from plait.batch.serving import output_limit
from plait.batch.shards import Part
from plait.batch.source import open_source
from plait.batch.survey import Survey, survey
from plait.build import LocalEngine
from plait.cli.offline import blending_on, hardware_here, machine_of
from plait.cli.streams import say
from plait.config.engine_options import EngineOptions
from plait.core.errors import UsageError
from plait.cost.density import step_s
from plait.sched.blend.feeds import JobOrder, Ordering, Outlook, feed_over, outlook
from plait.sched.blend.forecast import Forecast, Machine, forecast
from plait.sched.blend.tree import build_tree

BINS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Of densities: seconds of computing for each second of cache traffic."""
BAR = 40


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A part of the job on this machine, blended."""

    name: str
    lines: int
    density: float
    run: Forecast

    def json_object(self) -> dict[str, object]:
        return {
            "shard": self.name,
            "lines": self.lines,
            "density": self.density if math.isfinite(self.density) else None,
            "seconds": self.run.seconds,
        }


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """`histogram`: lines whose density is below each of `BINS`, and above the last. `orders`: a run in each."""

    lines: int
    faulty: int
    prompt_tokens: int
    shareable_tokens: int
    output_tokens: int
    known: int
    """Lines whose answer's length is certain."""
    density: float
    histogram: tuple[int, ...]
    orders: Mapping[str, Forecast]
    machine: Machine
    hardware: str
    least_compute_s: float
    least_memory_s: float
    least_steps: int
    folded: int = 0
    """Lines that ask for what another line asks for: they are in no other figure."""
    shards: tuple[PlannedShard, ...] = ()

    @property
    def bound_s(self) -> float:
        """The least time: every beginning computed once, every cached token read, the fewest steps, and weights read
        while something is computed.
        """
        machine = self.machine
        compute_s, memory_s = self.least_compute_s * machine.compute_factor, self.least_memory_s * machine.memory_factor
        return step_s(compute_s, memory_s, machine.interference) + self.least_steps * machine.step_overhead_s

    def limits(self, run: Forecast) -> Mapping[str, float]:
        """Parts of a run's time: computing, cache traffic, and what comes with every step."""
        loads = (run.compute_s * self.machine.compute_factor, run.memory_s * self.machine.memory_factor)
        compute, memory = (one / run.seconds if run.seconds else 0.0 for one in loads)
        return {"compute": compute, "cache traffic": memory, "weights and steps": max(0.0, 1 - compute - memory)}

    def json_object(self) -> dict[str, object]:
        return {
            "lines": self.lines,
            "faulty_lines": self.faulty,
            "folded_lines": self.folded,
            "prompt_tokens": self.prompt_tokens,
            "shareable_prompt_tokens": self.shareable_tokens,
            "output_tokens_at_most": self.output_tokens,
            "lines_of_known_length": self.known,
            "density": self.density if math.isfinite(self.density) else None,
            "density_bins": list(BINS),
            "density_histogram": list(self.histogram),
            "kv_cache_bytes": self.machine.memory_bytes,
            "hardware": self.hardware,
            "bound_seconds": self.bound_s,
            "orders": {
                name: {
                    "seconds": run.seconds,
                    "steps": run.steps,
                    "prefix_hit_fraction": run.found_tokens / max(1, self.prompt_tokens),
                    "limits": dict(self.limits(run)),
                }
                for name, run in self.orders.items()
            },
            "shards": [shard.json_object() for shard in self.shards],
        }

    def text(self) -> Iterator[str]:
        share = self.shareable_tokens / max(1, self.prompt_tokens)
        faulty = f", {self.faulty} of them cannot be served" if self.faulty else ""
        folded = f", {self.folded:,} ask for what another one asks for and cost nothing" if self.folded else ""
        yield f"lines      {self.lines:,}{faulty}{folded}"
        yield f"prompts    {self.prompt_tokens:,} tokens; {share:.0%} of them need not be computed twice"
        yield (
            f"answers    {self.output_tokens:,} tokens at most; the length of {self.known:,} is certain, the others "
            "are taken to be as long as they may be"
        )
        yield f"density    {self.density:.3g} s of computing for a second of cache traffic; by line:"
        yield from self._bars()
        yield f"machine    {self.hardware}; {self.machine.memory_bytes / 2**20:,.0f} MiB of KV cache"
        yield ""
        yield f"{'bound':<10}{self.bound_s:>10,.1f} s"
        yield f"{'order':<10}{'time':>12}{'found again':>14}  limited by"
        for name, run in sorted(self.orders.items(), key=lambda one: one[1].seconds):
            found = run.found_tokens / max(1, self.prompt_tokens)
            parts = sorted(self.limits(run).items(), key=lambda one: -one[1])
            words = ", ".join(f"{what} {part:.0%}" for what, part in parts if part >= 0.01)
            yield f"{name:<10}{run.seconds:>10,.1f} s{found:>14.0%}  {words}"
        if self.shards:
            yield ""
            yield f"{'shard':<10}{'blended':>12}{'lines':>10}{'density':>10}"
            for shard in self.shards:
                yield f"{shard.name:<10}{shard.run.seconds:>10,.1f} s{shard.lines:>10,}{shard.density:>10.3g}"

    def _bars(self) -> Iterator[str]:
        names = [f"< {BINS[0]:g}", *(f"{low:g} to {high:g}" for low, high in pairwise(BINS))]
        names.append(f">= {BINS[-1]:g}")
        for name, count in zip(names, self.histogram, strict=True):
            yield f"  {name:<12}{count:>9,} {'#' * round(BAR * count / max(1, max(self.histogram)))}".rstrip()


def batch_plan(
    config: BatchConfig, options: EngineOptions, engine: LocalEngine, cutting: Cutting | None = None
) -> BatchPlan:
    """`UsageError` if no line can be served. `cutting`: all shards of its count are planned too."""
    model = engine.client.model
    with open_source(config.input) as source:
        preparer = Preparer(engine.text, model, config.served_names, source.sha256, config.seed)
        found = survey(source, preparer, frozenset(), lambda request: output_limit(request, model))
        num_lines = source.num_lines
        if not len(found):
            raise UsageError(f"{config.input} has no line that can be served; run it without --plan-only to see why")
        parts = () if cutting is None else cutting.parts_of(source, engine.text, config)
    spec = hardware_here(options, say)
    base, machine = blending_on(spec, options, engine), machine_of(spec, options, engine, config.max_in_flight)
    plan = _planned(found, num_lines, base, machine, spec.name)
    return replace(plan, shards=tuple(_planned_shards(parts, base, machine)))


def _planned(found: Survey, num_lines: int, base: Ordering, machine: Machine, hardware: str) -> BatchPlan:
    job = found.job
    tree = build_tree(job.prompts)
    look = outlook(job, tree, base.lives, job.known)
    outputs = _outputs(look)
    lengths: array[int] = job.prompt_tokens
    runs = {}
    for order in JobOrder:
        feed = feed_over(tree, job, replace(base, order=order), look.dense)
        runs[order.value] = forecast(feed, tree, lengths, outputs, base.lives, machine)
    return BatchPlan(
        lines=num_lines,
        faulty=num_lines - len(job) - found.num_twins,
        prompt_tokens=sum(lengths),
        shareable_tokens=look.dense.num_shareable(),
        output_tokens=sum(outputs),
        known=len(job.known),
        density=look.dense.density(tree.root),
        histogram=_histogram(base, lengths, outputs),
        orders=runs,
        machine=machine,
        least_compute_s=look.dense.compute_s(tree.root),
        least_memory_s=look.dense.memory_s(tree.root),
        least_steps=max(max(outputs), -(-(tree.num_distinct() + sum(outputs)) // machine.step_tokens)),
        hardware=hardware,
        folded=found.num_twins,
    )


def _planned_shards(parts: Sequence[Part], base: Ordering, machine: Machine) -> Iterator[PlannedShard]:
    for number, part in enumerate(parts, 1):
        job = part.found.job
        tree = build_tree(job.prompts)
        look = outlook(job, tree, base.lives, job.known)
        feed = feed_over(tree, job, base)
        run = forecast(feed, tree, job.prompt_tokens, _outputs(look), base.lives, machine)
        yield PlannedShard(f"{number}/{len(parts)}", len(part.numbers), look.dense.density(tree.root), run)


def _outputs(look: Outlook) -> list[int]:
    return [max(1, round(length)) for length in look.dense.loads.outputs]


def _histogram(base: Ordering, lengths: Sequence[int], outputs: Sequence[int]) -> tuple[int, ...]:
    """Each line by itself, its whole prompt computed."""
    lives, counts = base.lives, [0] * (len(BINS) + 1)
    for prompt, output in zip(lengths, outputs, strict=True):
        compute_s = prompt * lives.prompt_token_s + output * lives.output_token_s
        memory_s = lives.memory_s(prompt, output)
        density = compute_s / memory_s if memory_s else math.inf
        counts[sum(density >= bound for bound in BINS)] += 1
    return tuple(counts)
