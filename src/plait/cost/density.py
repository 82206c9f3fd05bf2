"""Density: how much computing and how much memory traffic a request is, over its whole life.

Owns the closed forms of BlendServe (ASPLOS 2026: its cost model, dual scanner and appendix A.3): seconds of both
resources, their ratio, the split of memory between a compute-heavy and a memory-heavy side, the least time of a job,
and what an order that runs one side after the other costs.
Invariant: reading weights is no part of it (batches are large), and what prefix hits save is computing alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plait.core.errors import UsageError

FLOPS_PER_PARAMETER = 2.0
"""A multiplication and an addition for each token."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a request, or the means of a class of requests whose prompts and outputs are independent."""

    prompt: float
    output: float
    output_squared: float | None = None
    """Mean of the square of the output; None: all outputs are equally long. The spread decides the memory traffic."""
    shared: float = 0.0
    """Tokens that a prefix hit saves."""

    @property
    def tokens(self) -> float:
        return self.prompt + self.output

    @property
    def token_steps(self) -> float:
        """Cached tokens read in all decode steps together: each output token reads what stands before it."""
        squared = self.output**2 if self.output_squared is None else self.output_squared
        return self.prompt * self.output + squared / 2


@dataclass(frozen=True, slots=True)
class DensityModel:
    """A model that caches every token in every layer, on a device or a group of devices that share all work evenly."""

    parameters: float
    kv_width: int
    """Numbers of keys (and as many of values) of a token in one layer: KV heads times their width."""
    num_layers: int
    flops_per_s: float
    bytes_per_s: float
    number_bytes: float = 2.0
    """Of a cached number."""

    @property
    def token_bytes(self) -> float:
        """Cache bytes of one token in all layers."""
        return 2 * self.kv_width * self.num_layers * self.number_bytes

    def token_compute_s(self) -> float:
        return FLOPS_PER_PARAMETER * self.parameters / self.flops_per_s

    def compute_s(self, one: Lengths) -> float:
        """Comp(r) without hits: products with weights; attention of the prompt is left out, as in the paper."""
        return one.tokens * self.token_compute_s()

    def memory_s(self, one: Lengths) -> float:
        """Mem(r): reading the cache in decode steps."""
        return one.token_steps * self.token_bytes / self.bytes_per_s

    def density(self, one: Lengths) -> float:
        """rho(r): above 1, computing takes longer. What a hit saves counts as not computed."""
        return (self.compute_s(one) - one.shared * self.token_compute_s()) / self.memory_s(one)

    def output_squared_of(self, prompt: float, output: float, density: float) -> float:
        """The mean square of outputs that gives a class of these means this density."""
        if not density > 0:
            raise UsageError(f"density is {density}; it must be positive")
        token_steps = self.compute_s(Lengths(prompt, output)) / density * self.bytes_per_s / self.token_bytes
        return 2 * (token_steps - prompt * output)


@dataclass(frozen=True, slots=True)
class Job:
    """Requests of several classes: how many of each."""

    model: DensityModel
    parts: tuple[tuple[float, Lengths], ...]

    @property
    def tokens(self) -> float:
        return sum(count * one.tokens for count, one in self.parts)

    @property
    def compute_s(self) -> float:
        """T_comp, nothing saved."""
        return sum(count * self.model.compute_s(one) for count, one in self.parts)

    @property
    def memory_s(self) -> float:
        return sum(count * self.model.memory_s(one) for count, one in self.parts)

    @property
    def sharing(self) -> float:
        """s: the part of all computing that hits save at best."""
        return sum(count * one.shared for count, one in self.parts) / self.tokens

    @property
    def density(self) -> float:
        return (1 - self.sharing) * self.compute_s / self.memory_s

    @property
    def optimum_s(self) -> float:
        """T_o: all hits, and both resources busy until the longer one is done."""
        return max((1 - self.sharing) * self.compute_s, self.memory_s)


def job_of(
    model: DensityModel, classes: tuple[Lengths, Lengths, Lengths], count: float, density: float, sharing: float
) -> Job:
    """So many requests of three classes as give `count` in all, this density and this sharing.

    `UsageError` if no mixture of them does.
    """
    rows = [
        [1.0, 1.0, 1.0, count],
        [one.shared - sharing * one.tokens for one in classes] + [0.0],
        [(1 - sharing) * model.compute_s(one) - density * model.memory_s(one) for one in classes] + [0.0],
    ]
    counts = _solve(rows)
    if counts is None or min(counts) < 0:
        raise UsageError(f"no mixture of these requests has density {density} and sharing {sharing}; choose others")
    return Job(model, tuple(zip(counts, classes, strict=True)))


def partition(left_density: float, right_density: float, root_density: float, memory: float) -> tuple[float, float]:
    """(M_L, M_R): the memory of both sides whose mix has the job's density.

    Where no mix has it, the side that moves the batch toward it gets everything.
    """
    if left_density <= root_density or left_density <= right_density:
        return memory, 0.0
    if right_density >= root_density:
        return 0.0, memory
    left = memory * (root_density - right_density) / (left_density - right_density)
    return left, memory - left


def step_s(compute_s: float, memory_s: float, interference: float = 0.0) -> float:
    """Seconds of work that overlaps: the longer resource, and `interference` times the shorter one."""
    return max(compute_s, memory_s) + interference * min(compute_s, memory_s)


def two_phase_speedup(heavy: float, light: float, root: float, interference: float = 0.0) -> float:
    """How much longer a job of density `root` takes if all requests of density `heavy` run before all of `light`, over
    the time when every step holds the job's mix. `heavy` > `root` > `light`.
    """
    if not heavy > root > light > 0:
        raise UsageError(f"densities are {heavy}, {root} and {light}; the job's must lie between the other two")
    # Seconds of computing of the heavy phase for each second of memory of the light one.
    compute = (root - light) / (1 - root / heavy)
    apart = step_s(compute, compute / heavy, interference) + step_s(light, 1.0, interference)
    together = step_s(compute + light, compute / heavy + 1.0, interference)
    return apart / together


def concurrent_requests(memory_bytes: float, prompt: float, output: float, token_bytes: float) -> float:
    """N_X: sequences in decode at once, each halfway through its output on average."""
    return memory_bytes / ((prompt + output / 2) * token_bytes)


def prefill_budget(concurrent: float, prompt: float, output: float) -> float:
    """C_X: prompt tokens to compute in each step so that as many requests start as end."""
    return concurrent * prompt / output


def _solve(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """Gauss-Jordan with the largest pivot; None if the equations do not determine the unknowns."""
    table = [list(row) for row in rows]
    for column in range(len(table)):
        pivot = max(range(column, len(table)), key=lambda place: abs(table[place][column]))
        if abs(table[pivot][column]) < 1e-300:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        table[column] = [value / table[column][column] for value in table[column]]
        for place, row in enumerate(table):
            if place != column:
                table[place] = [value - row[column] * lead for value, lead in zip(row, table[column], strict=True)]
    return [row[-1] for row in table]
