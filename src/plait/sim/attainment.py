"""Attainment: how many requests met their targets.

Owns the judgement of one outcome and the counts. A sequence that failed met nothing; refused requests are counted by
the report, and met nothing either.
Invariant: num_met <= num_ended.
"""

from __future__ import annotations

from plait.core.request import Slo
from plait.sim.report import Outcome, Report


class Attainment:
    """An `OutcomeSink`."""

    def __init__(self, slo: Slo) -> None:
        self._slo = slo
        self.num_ended = 0
        self.num_met = 0

    def __call__(self, outcome: Outcome) -> None:
        self.num_ended += 1
        self.num_met += meets(outcome, self._slo)

    def fraction(self, report: Report) -> float:
        """Of all requests that came, refused ones too."""
        asked = self.num_ended + report.num_refused
        return self.num_met / asked if asked else 0.0

    def per_s(self, report: Report) -> float:
        """Goodput: requests a second that met every target."""
        return self.num_met / report.makespan_s if report.makespan_s > 0 else 0.0


def has_target(slo: Slo) -> bool:
    return any(one is not None for one in (slo.ttft_s, slo.ttft_s_per_token, slo.itl_s, slo.tpot_s))


def meets(outcome: Outcome, slo: Slo) -> bool:
    """Whether it came to its end and kept every target; one token alone has no gaps to keep."""
    if not outcome.is_whole or outcome.ttft_s is None:
        return False
    gaps, first_token_s = outcome.tpot_s, slo.first_token_s(outcome.num_prompt)
    return (
        (first_token_s is None or outcome.ttft_s <= first_token_s)
        and (slo.itl_s is None or outcome.longest_gap_s <= slo.itl_s)
        and (slo.tpot_s is None or gaps is None or gaps <= slo.tpot_s)
    )
