"""What online traffic leaves idle, from events and prices."""

from __future__ import annotations

import pytest
from tests.unit.sched.blend.test_feeds import EvenLives

from plait.core.events import Arrived, Collected, Finished, Scheduled
from plait.core.ids import LaneId, RequestId, SeqId, StepId
from plait.core.request import FinishReason, ServiceClass
from plait.core.step import SeqResult, SeqStatus, StepResult, StepStatus
from plait.sched.colocation.idle import LEAST_IDLE, Idle, IdleMeter


def collected(at_s: float, *computed: tuple[int, int]) -> Collected:
    seqs = tuple(SeqResult(SeqId(seq), SeqStatus.OK, count) for seq, count in computed)
    return Collected(at_s, StepResult(StepId(0), LaneId(0), StepStatus.COMPLETED, at_s - 0.1, at_s, 1, seqs))


def test_nobody_online_leaves_both_idle_alike() -> None:
    assert Idle().ratio(5.0) == 1.0


def test_computing_leaves_memory_idle_and_the_other_way_round() -> None:
    computing, reading = Idle(), Idle()
    computing.spent(1.0, 0.5, 0.0)
    reading.spent(1.0, 0.0, 0.5)
    assert computing.ratio(1.0) == pytest.approx(0.5)
    assert reading.ratio(1.0) == pytest.approx(2.0)


def test_a_second_later_it_matters_less() -> None:
    idle = Idle()
    idle.spent(1.0, 0.5, 0.0)
    ratios = [idle.ratio(1.0 + later) for later in range(6)]
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(1.0, abs=0.01)


def test_a_resource_is_never_taken_to_be_busy_altogether() -> None:
    idle = Idle()
    idle.spent(1.0, 5.0, 0.0)
    assert idle.ratio(1.0) == LEAST_IDLE


def test_only_online_rows_count() -> None:
    meter, lives = IdleMeter(EvenLives()), EvenLives()
    meter(Arrived(0.0, RequestId("a"), SeqId(1), ServiceClass.BATCH, 40))
    meter(collected(1.0, (1, 40)))
    assert meter.idle.ratio(1.0) == 1.0
    meter(Arrived(1.0, RequestId("b"), SeqId(2), ServiceClass.ONLINE, 40))
    meter(Scheduled(1.0, SeqId(2), 10))
    meter(collected(1.0, (1, 1), (2, 30)))
    assert meter.idle.ratio(1.0) == pytest.approx(max(LEAST_IDLE, 1 - 30 * lives.prompt_token_s))


def test_who_has_ended_is_forgotten() -> None:
    meter = IdleMeter(EvenLives())
    meter(Arrived(0.0, RequestId("b"), SeqId(2), ServiceClass.ONLINE, 4))
    meter(Finished(1.0, RequestId("b"), SeqId(2), FinishReason.STOP, 4, 0, 1, 0, 0.0, 0.0, 1.0))
    meter(collected(2.0, (2, 4)))
    assert meter.idle.ratio(2.0) == 1.0
