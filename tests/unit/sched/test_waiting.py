"""The waiting line keeps its order whatever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.ids import RequestId, SeqId
from plait.core.request import Request, Sequence, ServiceClass
from plait.sched.waiting import WaitingLine, order_key


def make_seq(
    number: int,
    *,
    arrival_s: float = 0.0,
    priority: int = 0,
    service_class: ServiceClass = ServiceClass.ONLINE,
    deadline_s: float | None = None,
) -> Sequence:
    request = Request(
        RequestId(str(number)), (1,), priority=priority, service_class=service_class, deadline_s=deadline_s
    )
    return Sequence(SeqId(number), request, 0, 0, 1, arrival_s, [1])


def test_online_before_batch_then_priority_then_arrival_then_id() -> None:
    line = WaitingLine()
    batch = make_seq(0, service_class=ServiceClass.BATCH, priority=-9)
    late, early = make_seq(1, arrival_s=2.0), make_seq(3, arrival_s=1.0)
    urgent, twin = make_seq(4, arrival_s=9.0, priority=-1), make_seq(2, arrival_s=1.0)
    for seq in (batch, late, early, urgent, twin):
        line.add(seq)
    assert [int(seq.id) for seq in line] == [4, 2, 3, 1, 0]


def test_removing_what_does_not_wait_is_an_error() -> None:
    line = WaitingLine()
    line.add(make_seq(1))
    with pytest.raises(ValueError, match="sequence 2 is not waiting"):
        line.remove(make_seq(2))
    with pytest.raises(ValueError, match="sequence 1 is not waiting"):
        line.remove(make_seq(1))  # an equal stranger


def test_the_first_ones_are_a_copy_so_that_taking_them_is_safe() -> None:
    line = WaitingLine()
    for number in range(5):
        line.add(make_seq(number))
    for seq in line.first(3):
        line.remove(seq)
    assert [int(seq.id) for seq in line.first(9)] == [3, 4]
    assert line.first(0) == []


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3), st.booleans()), max_size=30), st.data())
def test_the_line_is_always_sorted(rows: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    line = WaitingLine()
    waiting: list[Sequence] = []
    for number, (priority, arrival, is_batch) in enumerate(rows):
        kind = ServiceClass.BATCH if is_batch else ServiceClass.ONLINE
        seq = make_seq(number, priority=priority, arrival_s=float(arrival), service_class=kind)
        line.add(seq)
        waiting.append(seq)
        if len(waiting) > 3 and data.draw(st.booleans()):
            leaver = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            line.remove(leaver)
    assert list(line) == sorted(waiting, key=order_key)
    assert len(line) == len(waiting)
