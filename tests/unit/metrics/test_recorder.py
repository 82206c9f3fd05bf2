"""Recorder: every moment of a run counted once, on a clock of our making and with a real work log."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from tests.unit.engine.kit import Stage, ask

from plait.core.events import Collected, Event, Submitted
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.profiling import Phase
from plait.core.step import Chunk, StepPlan, StepResult, StepStatus
from plait.exec.native.op_names import OpName
from plait.exec.native.work_log import EVENT, NativeWorkLog
from plait.metrics import recorder as parts
from plait.metrics.profile_figures import Figures
from plait.metrics.recorder import Recorder


class Play:
    """A recorder, its clock, and a log of one worker, or none."""

    def __init__(self, log: NativeWorkLog | None = None) -> None:
        self.now_s = 0.0
        self.log = log
        self.recorder = Recorder(lambda: self.now_s, log)

    def at(self, now_s: float, *told: Phase | Event) -> None:
        self.now_s = now_s
        for one in told:
            self.recorder.phase(one) if isinstance(one, Phase) else self.recorder.event(one)

    def work(self, step: int, *units: tuple[float, float]) -> None:
        assert self.log is not None
        events = np.zeros(len(units), EVENT)
        for place, (begin_s, end_s) in enumerate(units):
            events[place] = (round(begin_s * 1e9), round(end_s * 1e9), step, 0, 0, 0, 0)
        self.log.add([(events.view(np.uint8), 0)], [StepId(step)])

    def end(self, now_s: float) -> Figures:
        self.now_s = now_s
        return self.recorder.figures("native", "trace.json", 0)


def submitted(step: int, *num_tokens: int) -> Submitted:
    chunks = tuple(Chunk(SeqId(seq), 0, count, (7,) * count) for seq, count in enumerate(num_tokens))
    return Submitted(0.0, StepPlan(StepId(step), LaneId(0), (), (), (), chunks), 0, 0)


def collected(step: int, start_s: float, end_s: float) -> Collected:
    return Collected(end_s, StepResult(StepId(step), LaneId(0), StepStatus.COMPLETED, start_s, end_s, 1, ()))


def one_worker() -> NativeWorkLog:
    return NativeWorkLog((OpName("op", "gemm"),), 1)


def one_step_after_another(play: Play) -> Figures:
    """Idle to 10; planned to 12 and handed over at 13; it runs from 15 to 20; Python comes at 21; the next begins at
    once when it is handed over, at 24; it ends at 30, collected at 30.
    """
    play.at(10, Phase.ARRIVALS)
    play.at(11, Phase.PLAN)
    play.at(12, Phase.SUBMIT)
    play.at(13, submitted(0, 5, 3), Phase.WAIT)
    play.at(21, Phase.COLLECT)
    if play.log is not None:
        play.work(0, (15.5, 18), (18.5, 20))
    play.at(21.5, collected(0, 15, 20), Phase.COMMIT)
    play.at(22, Phase.PLAN)
    play.at(23, Phase.SUBMIT)
    play.at(24, submitted(1, 1, 1), Phase.WAIT)
    play.at(30, Phase.COLLECT)
    if play.log is not None:
        play.work(1, (24, 30))
    play.at(30, collected(1, 24, 30))
    play.at(31, Phase.WAIT)
    return play.end(40)


def test_the_time_between_steps_is_python_wake_ups_and_idleness() -> None:
    figures = one_step_after_another(Play())
    assert figures.rows == pytest.approx(
        {
            parts.UNTOLD: 5 + 6,
            parts.TAKING_UP: 0,
            parts.WAKING_WORKERS: 2,
            parts.WAKING_PYTHON: 1,
            parts.PYTHON: 3 + 3 + 1,
        }
    )
    assert (figures.elapsed_s, figures.idle_s) == (40, 10 + 9)
    assert (figures.num_steps, figures.num_rows, figures.num_sequences) == (2, 10, 4)
    assert figures.units is None
    assert figures.overhead is None


def test_phases_say_which_of_them_kept_steps_waiting() -> None:
    phases = one_step_after_another(Play()).phases
    assert phases["plan"] == (2, 2)
    assert phases["submit"] == (2, 2)
    assert phases["collect"] == (1.5, 1.5)
    assert phases["commit"] == (0.5, 0.5)
    assert "wait" not in phases


def test_rows_add_up_to_all_that_is_not_idle() -> None:
    for play in (Play(), Play(one_worker())):
        figures = one_step_after_another(play)
        assert sum(figures.rows.values()) == pytest.approx(figures.busy_s)


def test_inside_steps_a_worker_is_in_kernels_in_the_runtime_or_waits() -> None:
    rows = one_step_after_another(Play(one_worker())).rows
    assert rows["gemm"] == pytest.approx(2.5 + 1.5 + 6)
    assert rows[parts.WAITING] == pytest.approx(1)


def test_overhead_is_what_lies_between_the_ends_of_steps_and_is_no_kernel_and_no_idleness() -> None:
    overhead = one_step_after_another(Play(one_worker())).overhead
    assert overhead is not None
    # 3 s of Python and 2 s of waking, then 1 s without a kernel; 1 s of waking and 3 s of Python.
    assert overhead.mean_s == pytest.approx((6 + 4) / 2)
    assert overhead.per_sequence_s == pytest.approx((6 + 4) / 4)
    assert overhead.within_fraction == 0
    assert overhead.num_steps == 2


def test_a_step_that_was_queued_has_nothing_in_front_of_it_but_being_taken_up() -> None:
    play = Play()
    play.at(0, Phase.PLAN, submitted(0, 1), submitted(1, 1), Phase.WAIT)
    play.at(12, Phase.COLLECT, collected(0, 0, 10))
    play.at(13, Phase.WAIT)
    play.at(21, Phase.COLLECT, collected(1, 10.5, 20), Phase.WAIT)
    rows = play.end(22).rows
    assert rows[parts.TAKING_UP] == 0.5
    assert rows[parts.PYTHON] == 0
    assert rows[parts.UNTOLD] == 19.5


def test_python_beside_a_running_step_costs_no_step_anything() -> None:
    play = Play()
    play.at(0, submitted(0, 1), Phase.WAIT)
    play.at(2, Phase.PLAN)
    play.at(4, Phase.WAIT)
    play.at(10, Phase.COLLECT, collected(0, 0, 10), Phase.WAIT)
    figures = play.end(10)
    assert figures.phases["plan"] == (2, 0)
    assert figures.rows[parts.PYTHON] == 0


def test_results_that_come_in_one_turn_are_settled_together() -> None:
    play = Play(one_worker())
    play.recorder.event(submitted(0, 1))
    play.recorder.event(submitted(1, 1))
    play.work(0, (0, 4))
    play.work(1, (5, 9))
    play.now_s = 10
    told: Iterable[Event] = (collected(0, 0, 5), collected(1, 5, 10))
    for event in told:
        play.recorder.event(event)
        play.recorder._settle()  # as it does by itself when much has come
    overhead = play.end(10).overhead
    assert overhead is not None
    assert overhead.mean_s == pytest.approx(1)


def test_a_full_trace_ends_and_says_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_PHASES", 3)
    play = Play()
    for second in range(6):
        play.at(second, Phase.PLAN)
    assert len(play.recorder.phases) == 3
    figures = play.end(7)
    assert figures.trace_ends_s == 3
    assert figures.phases["plan"] == (7, 7)


def test_an_engine_in_simulated_time_is_recorded_like_any_other() -> None:
    stages: list[Stage] = []
    recorder = Recorder(lambda: stages[0].now() if stages else 0.0, None)
    stages.append(Stage(listener=recorder.event, phases=recorder.phase))
    stages[0].arrive(ask("a", max_tokens=4))
    stages[0].arrive(ask("b", max_tokens=2), at_s=50.0)
    stages[0].run()
    figures = recorder.figures("simulated", "trace.json", 0)
    assert figures.num_steps == 6
    assert figures.rows[parts.UNTOLD] == sum(step.end_s - step.begin_s for step in recorder.steps)
    assert sum(figures.rows.values()) == figures.busy_s
    assert figures.idle_s > 0
