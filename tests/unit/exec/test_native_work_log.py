"""What the workers of the native runtime did: sums that hold every unit of a collected step once, and slices.

Events of our making first, then those of a real runtime; nothing here depends on how fast the machine is.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from plait.core.ids import StepId
from plait.core.profiling import StepWork
from plait.exec.native.op_names import OpName
from plait.exec.native.work_log import DUE_EVENTS, EVENT, NativeWorkLog, WorkKind

MS = 1_000_000
NAMES = (OpName("layers.0 norm", "norm"), OpName("layers.1 norm", "norm"), OpName("head.embed gemm Q8_0", "head"))

Event = tuple[WorkKind, int, int, int, int, int]
"""Kind, begin and end in tenths of a ms, step, op, lane."""


def raw(*events: Event) -> npt.NDArray[np.uint8]:
    made = np.zeros(len(events), EVENT)
    for place, (kind, begin, end, step, op, lane) in enumerate(events):
        made[place] = (begin * MS // 10, end * MS // 10, step, op, lane, kind, 0)
    return made.view(np.uint8)


def unit(begin: int, end: int, step: int, op: int = 0, lane: int = 0) -> Event:
    return (WorkKind.UNIT, begin, end, step, op, lane)


def log_of(*workers: tuple[Event, ...], ended: Iterable[int], in_flight: Iterable[int] = ()) -> NativeWorkLog:
    log = NativeWorkLog(NAMES, len(workers))
    log.add([(raw(*one), 0) for one in workers], map(StepId, ended), [StepId(step) for step in in_flight])
    return log


def near(work: StepWork, kernel_ms: float, covered_ms: float) -> bool:
    return work.kernel_s == pytest.approx(kernel_ms / 1e3) and work.covered_s == pytest.approx(covered_ms / 1e3)


def test_units_beside_one_another_are_covered_once() -> None:
    log = log_of((unit(0, 4, 7), unit(6, 8, 7)), (unit(2, 5, 7),), ended=[7])
    work = log.settle()
    assert list(work) == [7]
    assert near(work[StepId(7)], kernel_ms=0.9, covered_ms=0.7)


def test_a_long_unit_covers_all_that_lie_in_it() -> None:
    log = log_of((unit(0, 10, 1),), (unit(1, 2, 1), unit(3, 4, 1), unit(9, 12, 1)), ended=[1])
    assert near(log.settle()[StepId(1)], kernel_ms=1.5, covered_ms=1.2)


def test_lanes_cover_their_own_steps() -> None:
    log = log_of((unit(0, 10, 1, lane=0), unit(10, 15, 3, lane=0)), (unit(0, 10, 2, lane=1),), ended=[1, 2, 3])
    work = log.settle()
    assert near(work[StepId(1)], 1.0, 1.0)
    assert near(work[StepId(2)], 1.0, 1.0)
    assert near(work[StepId(3)], 0.5, 0.5)


def test_a_step_in_flight_waits_until_it_is_collected() -> None:
    log = log_of((unit(0, 1, 1), unit(1, 3, 2)), ended=[1], in_flight=[2])
    assert list(log.settle()) == [1]
    assert log.totals().num_units == 1
    log.add([(raw(unit(3, 4, 2)), 0)], [StepId(2)])
    assert near(log.settle()[StepId(2)], 0.3, 0.3)
    assert log.totals().num_units == 3
    assert log.settle() == {}


def test_a_step_without_units_is_there_too() -> None:
    assert log_of((), ended=[5]).settle() == {StepId(5): StepWork(0.0, 0.0)}


def test_totals_are_by_kind_and_leave_waiting_out() -> None:
    events = (
        (WorkKind.BEGIN, 0, 1, 1, 0, 0),
        (WorkKind.ADVANCE, 1, 3, 1, 0, 0),
        unit(3, 5, 1, op=0),
        unit(5, 9, 1, op=1),
        unit(9, 10, 1, op=2),
        (WorkKind.END, 10, 12, 1, 0, 0),
        (WorkKind.SPIN, 12, 20, 0, 0, 0),
        (WorkKind.PARK, 20, 99, 0, 0, 0),
    )
    log = log_of(events, ended=[1])
    log.settle()
    totals = log.totals()
    assert totals.kernel_s == pytest.approx({"norm": 0.6e-3, "head": 0.1e-3})
    assert totals.runtime_s == pytest.approx(0.3e-3)
    assert totals.num_units == 3


def test_a_unit_of_more_than_a_millisecond_is_a_stall() -> None:
    log = log_of((unit(0, 10, 1), unit(10, 21, 1)), ended=[1])
    log.settle()
    totals = log.totals()
    assert (totals.num_stalls, totals.stalled_s, totals.longest_unit_s) == pytest.approx((1, 1.1e-3, 1.1e-3))
    assert [one.category for one in log.slices()] == ["kernel", "kernel,stall"]


def test_lost_events_are_counted_over_all_workers() -> None:
    log = NativeWorkLog(NAMES, 2)
    log.add([(raw(unit(0, 1, 1)), 3), (raw(), 4)], [StepId(1)])
    log.add([(raw(), 5), (raw(), 4)], [StepId(2)])
    assert log.totals().num_lost == 9


def test_slices_end_where_the_trace_is_full_and_sums_go_on() -> None:
    log = NativeWorkLog(NAMES, 2, most_slices=3)
    log.add([(raw(unit(0, 1, 1), unit(1, 2, 1)), 0), (raw(unit(0, 1, 1), unit(1, 2, 1)), 0)], [StepId(1)])
    assert log.is_full
    log.add([(raw(unit(2, 3, 2)), 0), (raw(), 0)], [StepId(2)])
    log.settle()
    assert log.totals().num_units == 5
    assert [(one.worker, one.step) for one in log.slices()] == [(0, 1), (0, 1), (1, 1)]


def test_it_is_due_before_memory_grows() -> None:
    log = NativeWorkLog(NAMES, 1)
    log.add([(raw(*(unit(0, 1, 1) for _ in range(DUE_EVENTS - 1))), 0)], [], [StepId(1)])
    assert not log.is_due
    log.add([(raw((WorkKind.PARK, 0, 1, 0, 0, 0)), 0)], [StepId(1)])
    assert log.is_due
    log.settle()
    assert not log.is_due


def test_slices_say_what_and_of_which_step() -> None:
    log = log_of(
        (unit(0, 1, 4, op=2), (WorkKind.ADVANCE, 1, 2, 4, 1, 0), (WorkKind.SPIN, 2, 3, 0, 0, 0)),
        ((WorkKind.PARK, 0, 5, 0, 0, 0),),
        ended=[4],
    )
    seen = [(one.worker, one.name, one.category, one.step) for one in log.slices()]
    assert seen == [
        (0, "head.embed gemm Q8_0", "kernel", 4),
        (0, "next op", "runtime", 4),
        (0, "wait", "wait", None),
        (1, "parked", "wait", None),
    ]


# A real runtime


@pytest.fixture
def native() -> None:
    pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")


@pytest.mark.usefixtures("native")
def test_units_lie_inside_their_step_and_workers_do_one_thing_at_a_time() -> None:
    from tests.unit.exec import test_native_executor as kit

    from plait.exec.native.executor import NativeConfig, NativeExecutor

    program = kit.decoder()
    executor = NativeExecutor(NativeConfig(kit.WORKERS, records_work=True))
    executor.load({"step": program}, kit.table_in(program, kit.formats.F32), kit.layout_of(program))
    results = [kit.run(executor, kit.first_plan(kit.chunk_of(3, 9, 4)))]
    log = executor.work_log
    assert log is not None
    work = log.settle()
    executor.close()
    assert list(work) == [results[0].step]
    took_s = results[0].end_s - results[0].start_s
    one = work[results[0].step]
    assert 0 < one.covered_s <= took_s + 1e-8
    assert one.covered_s <= one.kernel_s <= len(kit.WORKERS) * one.covered_s + 1e-8
    assert log.totals().num_lost == 0
    assert sum(log.totals().kernel_s.values()) == pytest.approx(one.kernel_s)
    assert {"norm", "attention", "head", "sampler", "embed"} <= set(log.totals().kernel_s)
    slices = list(log.slices())
    assert [one.name for one in slices].count("end step") == 1
    for worker in range(len(kit.WORKERS)):
        of_worker = [one for one in slices if one.worker == worker]
        assert all(one.begin_s <= one.end_s for one in of_worker)
        assert all(one.end_s <= other.begin_s + 1e-8 for one, other in pairwise(of_worker))
    for one in slices:
        if one.category.startswith("kernel"):
            assert results[0].start_s - 1e-8 <= one.begin_s
            assert one.end_s <= results[0].end_s + 1e-8


@pytest.mark.usefixtures("native")
def test_by_default_nothing_is_recorded_and_no_memory_taken_for_it() -> None:
    from tests.unit.exec import test_native_executor as kit

    from plait.exec.native.executor import NativeConfig, NativeExecutor

    program = kit.decoder()
    executor = NativeExecutor(NativeConfig(kit.WORKERS))
    executor.load({"step": program}, kit.table_in(program, kit.formats.F32), kit.layout_of(program))
    kit.run(executor, kit.first_plan(kit.chunk_of(3)))
    assert executor.work_log is None
    state = executor._state  # there is no other way to see that a buffer is not there
    assert state is not None
    assert state.runtime.take_work() == []
    executor.close()
