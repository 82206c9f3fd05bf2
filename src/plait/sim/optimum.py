"""Optimum: how long a workload would take at best, as BlendServe (ASPLOS 2026, section 4) bounds it.

Owns T_o = max(compute, memory): all floating-point operations at the device's peak, or all reading of keys and values
by decode at its bandwidth, whichever takes longer; what was found in the cache is not computed. Reading of weights is
left out, because a batch can be as large as one likes, and so is waiting for arrivals.
Invariant: no schedule on these devices is faster, whatever the order.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.step import ChunkShape, StepShape
from plait.cost.hardware import HardwareSpec
from plait.model.cost import Formats, cost_sheet
from plait.model.ops import Attend
from plait.model.program import Program
from plait.model.visibility import Visibility
from plait.sim.report import Outcome


@dataclass(frozen=True, slots=True)
class _Attention:
    """All attention with one visibility."""

    visibility: Visibility
    flops_per_pair: float
    """For each row and each key that it sees."""
    bytes_per_key: float


class Optimum:
    """An `OutcomeSink` that adds up what the outcomes needed."""

    def __init__(self, program: Program, formats: Formats) -> None:
        self._attention = _attention_of(program, formats)
        self._row_flops = _flops_beside(program, formats, 0)
        self._output_flops = _flops_beside(program, formats, 1) - self._row_flops
        self.flops = 0.0
        self.bytes = 0.0

    def __call__(self, outcome: Outcome) -> None:
        if not outcome.num_output:
            return
        cached, prompt = outcome.num_cached, outcome.num_prompt
        # The last token of an answer is never computed.
        decoded = outcome.num_output - 1
        self.flops += self._row_flops * (prompt - cached + decoded) + self._output_flops * outcome.num_output
        for one in self._attention:
            decode_keys = one.visibility.total(prompt, decoded)
            self.flops += one.flops_per_pair * (one.visibility.total(cached, prompt - cached) + decode_keys)
            self.bytes += one.bytes_per_key * decode_keys

    def seconds(self, hardware: HardwareSpec, num_devices: int) -> float:
        """T_o on so many devices."""
        return max(self.flops / hardware.flops_per_s, self.bytes / hardware.bytes_per_s) / num_devices


def _attention_of(program: Program, formats: Formats) -> tuple[_Attention, ...]:
    found: dict[Visibility, tuple[float, float]] = {}
    for op in program.ops:
        if isinstance(op, Attend) and op.group is not None:
            flops, moved = found.get(op.visibility, (0.0, 0.0))
            width = op.head_dim_k + op.head_dim_v
            found[op.visibility] = (
                flops + 2.0 * op.heads * width,
                moved + op.kv_heads * width * formats.cache(op.group),
            )
    return tuple(_Attention(visibility, *rates) for visibility, rates in found.items())


def _flops_beside(program: Program, formats: Formats, num_outputs: int) -> float:
    """Of one row, without attention."""
    costs = cost_sheet(program, formats).costs(StepShape((ChunkShape(0, 1, num_outputs),)))
    return sum(cost.count * cost.flops for cost in costs if cost.kind != Attend.__name__)
