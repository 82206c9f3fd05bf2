"""Machine: what two lanes on this machine's cores could give at best, from steps measured in the same minutes.

Owns the measurement of decode steps and of pieces of prompts on all cores, on a part of them and side by side, and the
ideal schedules that follow from it. Knows no policy.
Invariant: the figures of a ratio were measured in turns, so that a machine whose speed drifts drifts for both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from statistics import median

from plait.build import LoadedModel, load_executor
from plait.cli.step_bench import StepBench
from plait.config.engine_options import EngineOptions
from plait.core.clock import RealClock
from plait.core.errors import PlaitError
from plait.core.step import StepShape
from plait.cost.solo import Sample, decode_shape, prefill_shape
from plait.exec.native.executor import NativeExecutor

CONTEXT = 512
PIECE = 256
"""Tokens of a prompt that are measured at once."""
STARTS = (0, 1024, 2048)
"""Before them: prompts of 1,000 to 4,000 tokens on average."""
FUSED = (2, 4, 8, 16, 32, 64, 128, 192, 256)
REPEATS, BESIDE_S = 4, 30.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds. `decode` and `piece` on all units and on those that the other leaves; `beside`: of both side by side."""

    units: int
    share: int
    """Units of decode, side by side."""
    decode_s: float
    decode_part_s: float
    piece_s: float
    piece_part_s: float
    decode_beside_s: float
    piece_beside_s: float
    fused_s: dict[int, float]
    """Of a step of the decode rows and so many tokens of a prompt, on all units."""

    @property
    def r_decode(self) -> float:
        """How much longer decode takes on its part of the units than on all of them."""
        return self.decode_part_s / self.decode_s

    @property
    def r_prefill(self) -> float:
        return self.piece_part_s / self.piece_s

    @property
    def ceiling(self) -> float:
        """Work of both lanes together, by what all units do one after the other, if neighbours cost nothing."""
        return 1.0 / self.r_prefill + 1.0 / self.r_decode

    @property
    def overlap(self) -> float:
        """The same, as it was measured."""
        return self.piece_s / self.piece_beside_s + self.decode_s / self.decode_beside_s

    def bounds(self, limit_s: float) -> dict[str, float]:
        """Prompt tokens a second beside decode with a bound on gaps, by form of step, if planning and moving cost
        nothing and steps could be cut anywhere. 0: the form cannot hold the bound.
        """
        whole, beside = PIECE / self.piece_s, PIECE / self.piece_beside_s
        turns = max(0.0, 1.0 - self.decode_s / limit_s) * whole
        side = 0.0
        if self.decode_beside_s <= limit_s:
            # Between two decode steps prompts have everything.
            part = self.decode_beside_s / limit_s
            side = part * beside + (1.0 - part) * whole
        return {"turns": turns, "side by side": side, "fused": self._fused(limit_s)}

    def _fused(self, limit_s: float) -> float:
        """Tokens of the largest step that holds the bound, between those that were measured on a straight line."""
        low, low_s, best = 0, self.decode_s, 0.0
        for tokens, seconds in sorted(self.fused_s.items()):
            if seconds > limit_s:
                if limit_s > low_s:
                    low += int((tokens - low) * (limit_s - low_s) / (seconds - low_s))
                    best = max(best, low / limit_s)
                break
            low, low_s, best = tokens, seconds, max(best, tokens / seconds)
        return best


def measure_machine(model: LoadedModel, options: EngineOptions, rows: int, rounds: int) -> Machine:
    # The bench gives each lane half of the rows; a fused step has one more than decode.
    ready = load_executor(replace(options, max_num_seqs=4 * rows), model, RealClock())
    try:
        assert isinstance(ready.executor, NativeExecutor)
        return _measured(StepBench(ready.executor, ready.layout, model.program.vocab_size), rows, rounds)
    finally:
        ready.executor.close()


def _measured(bench: StepBench, rows: int, rounds: int) -> Machine:
    units = bench.units
    share = max(1, units // 2)
    decode = decode_shape(rows, CONTEXT)
    pieces = [prefill_shape(PIECE, start) for start in STARTS]
    found: dict[str, list[float]] = {}

    def note(name: str, samples: list[Sample]) -> None:
        found.setdefault(name, []).append(median(sample.seconds for sample in samples))

    for _ in range(rounds):
        note("decode", bench.alone(decode, units, REPEATS))
        note("decode part", bench.alone(decode, share, REPEATS))
        for piece in pieces:
            note("piece", bench.alone(piece, units, 1))
            note("piece part", bench.alone(piece, units - share, 1))
            both = bench.side_by_side(decode, piece, share, 2, BESIDE_S)
            for name, shape in (("decode beside", decode), ("piece beside", piece)):
                if of_shape := [one for one in both if one.shape == shape]:
                    note(name, of_shape)
        for tokens, start in product(FUSED, STARTS):
            mixed = StepShape((*prefill_shape(tokens, start).chunks, *decode.chunks))
            note(f"fused {tokens}", bench.alone(mixed, units, 2))

    if "decode beside" not in found or "piece beside" not in found:
        raise PlaitError(f"no step beside another ended within {BESIDE_S:.0f} s; is the machine busy?")

    def seconds(name: str) -> float:
        return median(found[name])

    # Pieces differ by where they start, so their means count.
    def mean_s(name: str) -> float:
        return sum(found[name]) / len(found[name])

    return Machine(
        units,
        share,
        seconds("decode"),
        seconds("decode part"),
        mean_s("piece"),
        mean_s("piece part"),
        seconds("decode beside"),
        mean_s("piece beside"),
        {tokens: mean_s(f"fused {tokens}") for tokens in FUSED},
    )
