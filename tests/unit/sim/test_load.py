"""Loads that wait for answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.sim.kit import SPEC

from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.sim.arrivals import Arrival
from plait.sim.cluster import ClusterReport, ClusterSpec, simulate_cluster
from plait.sim.form import Form
from plait.sim.report import Outcome


class Sessions:
    """Each session asks again so long after it was answered, a few times."""

    is_open = False

    def __init__(self, num_sessions: int, num_turns: int, think_s: float) -> None:
        self._due = [(0.01 * number, number, 0) for number in range(num_sessions)]
        self._num_turns = num_turns
        self._think_s = think_s
        self.asked_s: dict[str, float] = {}

    def next_s(self) -> float | None:
        return min(self._due)[0] if self._due else None

    def take(self) -> Arrival:
        at_s, session, turn = min(self._due)
        self._due.remove((at_s, session, turn))
        name = RequestId(f"{session}/{turn}")
        self.asked_s[name] = at_s
        sampling = SamplingParams(max_tokens=20 + 3 * session, ignore_eos=True)
        return Arrival(at_s, Request(name, tuple(range(session, session + 40 + turn)), sampling))

    def ended(self, request: RequestId, at_s: float) -> None:
        session, turn = map(int, request.split("/"))
        if turn + 1 < self._num_turns:
            self._due.append((at_s + self._think_s, session, turn + 1))


def run(form: Form, *, macro_steps: bool = True) -> tuple[Sessions, ClusterReport, list[Outcome]]:
    sessions = Sessions(6, 4, think_s=0.05)
    spec = ClusterSpec(SPEC, form, macro_steps=macro_steps)
    outcomes: list[Outcome] = []
    return sessions, simulate_cluster(sessions, spec, outcomes=outcomes.append), outcomes


def test_a_session_asks_again_when_it_was_answered_and_has_thought() -> None:
    sessions, report, outcomes = run(Form(1))
    assert report.whole.num_finished == 24
    ends = {str(one.request): one.end_s for one in outcomes}
    for session in range(6):
        for turn in range(3):
            assert sessions.asked_s[f"{session}/{turn + 1}"] == pytest.approx(ends[f"{session}/{turn}"] + 0.05)


@pytest.mark.parametrize("form", [Form(1), Form(3)])
def test_runs_change_nothing_where_answers_bring_forth_requests(form: Form) -> None:
    _, runs, mine = run(form)
    _, single, theirs = run(form, macro_steps=False)
    assert runs.plan_hash == single.plan_hash
    assert mine == theirs
    assert replace(runs.whole, busy_fraction=0.0, itl_s=None) == replace(single.whole, busy_fraction=0.0, itl_s=None)
