"""SLO figures: who met which target, on events whose times can be worked out in one's head."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.engine.kit import Stage, ask, failing

from plait.core.events import Arrived, Emitted, Event, Finished
from plait.core.ids import RequestId, SeqId
from plait.core.request import FinishReason, ServiceClass, Slo
from plait.metrics.serving_figures import ServingFigures
from plait.metrics.slo_figures import RECENT_S, Attainment, Target

ONLINE, BATCH = ServiceClass.ONLINE, ServiceClass.BATCH
ALL = Slo(ttft_s=1.0, itl_s=0.5, tpot_s=0.25)


def lived(
    *moments_s: float,
    slo: Slo = ALL,
    reason: FinishReason = FinishReason.LENGTH,
    end_s: float | None = None,
    tokens_each: int = 1,
    service_class: ServiceClass = ONLINE,
    num_prompt: int = 4,
) -> ServingFigures:
    """One sequence that arrived at 10 and gave tokens so much later."""
    request, seq = RequestId("r"), SeqId(0)
    times = [10.0 + moment for moment in moments_s]
    ended_s = (times or [10.0])[-1] if end_s is None else 10.0 + end_s
    events: list[Event] = [Arrived(10.0, request, seq, service_class, num_prompt, slo)]
    events += [Emitted(at_s, seq, tokens_each) for at_s in times]
    first_s = times[0] if times else None
    num_output = len(times) * tokens_each
    events.append(Finished(ended_s, request, seq, reason, num_prompt, 0, num_output, 0, 10.0, 10.0, first_s))
    figures = ServingFigures()
    for event in events:
        figures(event)
    return figures


def judged(figures: ServingFigures, service_class: ServiceClass = ONLINE) -> dict[str, tuple[int, int]]:
    """Kind -> (attained, missed), of the kinds that were judged."""
    found = {kind: figures.slos.attainments[service_class, kind] for kind in Target}
    return {kind.value: (one.attained, one.missed) for kind, one in found.items() if one.attained + one.missed}


def test_a_sequence_that_met_everything_is_counted_once_for_each_kind_and_as_goodput() -> None:
    figures = lived(1.0, 1.5, 1.5, 1.75)
    assert judged(figures) == {"ttft": (1, 0), "itl": (1, 0), "tpot": (1, 0)}
    assert figures.slos.goodput == {ONLINE: 1, BATCH: 0}


@pytest.mark.parametrize(
    ("moments", "missed"),
    [
        ((1.01, 1.02), "ttft"),
        ((0.5, 1.01, 1.02, 1.03), "itl"),
        ((0.5, 0.8, 1.1), "tpot"),
    ],
)
def test_each_kind_is_missed_for_itself(moments: tuple[float, ...], missed: str) -> None:
    figures = lived(*moments)
    assert {kind for kind, counts in judged(figures).items() if counts == (0, 1)} == {missed}
    assert {kind for kind, counts in judged(figures).items() if counts == (1, 0)} == {*Target} - {missed}
    assert figures.slos.goodput[ONLINE] == 0


def test_one_token_has_no_gap_to_judge() -> None:
    figures = lived(0.5)
    assert judged(figures) == {"ttft": (1, 0)}
    assert figures.slos.goodput[ONLINE] == 1


def test_tokens_of_one_step_have_gaps_of_nothing() -> None:
    assert judged(lived(0.5, 1.0, tokens_each=3)) == {"ttft": (1, 0), "itl": (1, 0), "tpot": (1, 0)}


def test_whoever_left_while_it_was_waiting_too_long_was_missed_and_otherwise_says_nothing() -> None:
    gone = FinishReason.ABORT
    assert judged(lived(reason=gone, end_s=0.9)) == {}
    assert judged(lived(reason=gone, end_s=1.1)) == {"ttft": (0, 1)}
    assert judged(lived(0.5, 0.6, reason=gone, end_s=0.9)) == {"ttft": (1, 0), "itl": (1, 0), "tpot": (1, 0)}
    assert judged(lived(0.5, 0.6, reason=gone, end_s=1.2)) == {"ttft": (1, 0), "itl": (0, 1), "tpot": (1, 0)}
    assert lived(0.5, 0.6, reason=gone).slos.goodput[ONLINE] == 0, "nobody had the whole answer"


def test_what_failed_before_its_first_token_missed_it_however_soon() -> None:
    assert judged(lived(reason=FinishReason.ERROR, end_s=0.1)) == {"ttft": (0, 1)}


def test_a_prompt_may_take_longer_by_its_length() -> None:
    slo = Slo(ttft_s=1.0, ttft_s_per_token=0.1)
    assert judged(lived(1.5, slo=slo, num_prompt=20)) == {"ttft": (1, 0)}
    assert judged(lived(1.5, slo=slo, num_prompt=4)) == {"ttft": (0, 1)}


def test_without_targets_nobody_is_judged() -> None:
    figures = lived(5.0, 9.0, slo=Slo())
    assert judged(figures) == {}
    assert figures.slos.goodput == {ONLINE: 0, BATCH: 0}


def test_classes_are_counted_apart() -> None:
    figures = lived(0.5, service_class=BATCH)
    assert judged(figures) == {}
    assert judged(figures, BATCH) == {"ttft": (1, 0)}


def test_the_recent_share_forgets_and_the_counts_do_not() -> None:
    one = Attainment()
    for at_s in range(100):
        one.judge(at_s % 4 > 0, 1000.0 + at_s)
    assert one.recent(1100.0) == 0.75
    one.judge(False, 1100.0 + RECENT_S)
    assert one.recent(1100.0 + RECENT_S) == 0.0
    assert one.recent(1100.0 + 3 * RECENT_S) is None
    assert (one.attained, one.missed) == (75, 26)


def test_an_engine_gives_targets_of_the_class_to_those_who_bring_none() -> None:
    figures = ServingFigures()
    stage = Stage(listener=figures, slos={ONLINE: Slo(ttft_s=3.0, itl_s=1.0)})
    # A token takes a second: "abc" is three of prompt, so the first token comes at 3 and the others each second.
    stage.arrive(ask("theirs"))
    stage.run()
    assert judged(figures) == {"ttft": (1, 0), "itl": (1, 0)}
    stage.arrive(replace(ask("own", "xyz"), slo=Slo(ttft_s=2.0, tpot_s=1.0)), at_s=stage.now())
    stage.run()
    assert judged(figures) == {"ttft": (1, 1), "itl": (2, 0), "tpot": (1, 0)}
    stage.arrive(replace(ask("batch", "uvw"), service_class=BATCH), at_s=stage.now())
    stage.run()
    assert judged(figures, BATCH) == {}
    assert figures.slos.goodput == {ONLINE: 1, BATCH: 0}


def test_a_device_that_fails_is_a_missed_target() -> None:
    figures = ServingFigures()
    stage = Stage(listener=figures, slos={ONLINE: Slo(ttft_s=100.0)}, edit=failing(0))
    stage.arrive(ask("a"))
    stage.run()
    assert judged(figures) == {"ttft": (0, 1)}
