"""Trials: targets, the optimum, steadiness, and the object that a report is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.unit.sim.kit import SPEC, TINY
from tests.unit.sim.test_workload import Listed

from plait.core.ids import RequestId
from plait.core.request import FinishReason, Slo
from plait.model.cost import Formats
from plait.sim.attainment import Attainment, meets
from plait.sim.cluster import ClusterSpec
from plait.sim.curves import Latencies
from plait.sim.optimum import Optimum
from plait.sim.report import Outcome
from plait.sim.results import result_object
from plait.sim.traces.request import TraceRequest
from plait.sim.trial import Trial, run_trial
from plait.sim.workload import Pace, Workload, measure

GOOD = Outcome(RequestId("r"), 10.0, 10.1, 11.0, 15.0, 15.0, 1.5, 100, 20, 5, FinishReason.LENGTH)


def trial(requests: list[TraceRequest], slo: Slo | None = None, pace: Pace | None = None) -> Trial:
    source = Listed(requests)
    return run_trial(ClusterSpec(SPEC), Workload(source, measure(source), pace or Pace()), slo or Slo())


@pytest.mark.parametrize(
    ("slo", "expected"),
    [
        (Slo(), True),
        (Slo(ttft_s=1.0, itl_s=1.5, tpot_s=1.0), True),
        (Slo(ttft_s=0.99), False),
        (Slo(ttft_s_per_token=0.01), True),
        (Slo(ttft_s_per_token=0.0099), False),
        (Slo(itl_s=1.49), False),
        (Slo(tpot_s=0.99), False),
    ],
)
def test_a_request_meets_its_targets_or_not(slo: Slo, expected: bool) -> None:
    assert meets(GOOD, slo) is expected


def test_one_token_has_no_gaps_and_a_failure_meets_nothing() -> None:
    short = replace(GOOD, num_output=1, longest_gap_s=0.0, last_token_s=11.0, end_s=11.0)
    assert meets(short, Slo(itl_s=0.001, tpot_s=0.001))
    assert not meets(replace(GOOD, reason=FinishReason.ERROR), Slo())
    assert not meets(replace(GOOD, first_token_s=None), Slo())


def test_refused_requests_count_against_the_targets() -> None:
    report = trial([TraceRequest(0.0, 10, 2), TraceRequest(0.0, 9000, 2)], Slo(ttft_s=1000.0))
    assert report.cluster.whole.num_refused == 1
    assert report.attainment_fraction == 0.5
    assert Attainment(Slo()).fraction(report.cluster.whole) == 0.0


def test_the_optimum_counts_what_had_to_be_computed() -> None:
    optimum = Optimum(TINY, Formats())
    optimum(replace(GOOD, num_prompt=8, num_cached=0, num_output=3))
    # Two layers of width 64, 4 heads of 16 and 2 KV heads, ffn 128: products of a row, then the head for three outputs.
    layer = 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128)
    pairs = 8 * 9 // 2 + 9 + 10
    products = 10 * 2 * layer + 3 * 2 * 64 * 1000 + pairs * 2 * 4 * 4 * 16
    assert optimum.flops == pytest.approx(products, rel=0.05), "and some norms, rotations and sums"
    assert optimum.flops >= products
    assert optimum.bytes == (9 + 10) * 2 * 2 * 32 * 4.0
    cached = Optimum(TINY, Formats())
    cached(replace(GOOD, num_prompt=8, num_cached=7, num_output=3))
    assert cached.flops < optimum.flops / 2
    assert cached.bytes == optimum.bytes, "decode looks at what was cached all the same"


def test_no_run_is_faster_than_the_optimum() -> None:
    busy = trial([TraceRequest(0.0, 50 + n % 40, 1 + n % 30) for n in range(60)])
    assert 0.05 < busy.optimum_fraction <= 1.0


def test_a_queue_that_grows_is_not_steady() -> None:
    def found(waits: list[float]) -> bool:
        latencies = Latencies()
        for place, wait in enumerate(waits):
            latencies(replace(GOOD, arrival_s=float(place), first_token_s=place + wait))
        return latencies.is_steady

    assert found([3.0] * 100)
    assert found([0.1 * n for n in range(100)]) is False
    assert found([0.001 * n for n in range(100)]), "nobody minds a tenth of a second"
    assert found([5.0]), "too few to tell"


def test_latencies_of_failures_are_not_drawn() -> None:
    latencies = Latencies()
    latencies(replace(GOOD, reason=FinishReason.ABORT))
    assert latencies.curves() == {}
    latencies(GOOD)
    assert latencies.curves()["TTFT"] == ((1.0, 1.0),)


def test_the_object_is_json_whatever_the_run() -> None:
    for run in (
        trial([TraceRequest(0.0, 9000, 1)]),
        trial([TraceRequest(0.0, 5, 1)]),
        trial([TraceRequest(0.0, 5, 9)]),
    ):
        found = json.loads(json.dumps(result_object(run, {"model": "tiny"}, 3), allow_nan=False))
        assert (found["schema"], found["schema_version"], found["seed"]) == ("plait.sim", 1, 3)
        assert found["calibrated_on"] is None
        assert found["goodput_requests_per_s"] is None
    assert found["tpot_s"]["count"] == 1
    assert found["itl_s"]["count"] == 8
