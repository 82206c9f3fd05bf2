"""Plan hashes of small loads, as they were when this was written. A change of a policy or of a price changes them,
and has to say so; nothing else may: no other process, machine or order of work.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.sim.kit import SPEC, TOKEN_BYTES, VOCAB

from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.cost.alpha import constant_alpha
from plait.cost.calibration import Calibration
from plait.cost.scatter import Scatter
from plait.sim.arrivals import Arrival, Lengths, arrivals_of, poisson_trace
from plait.sim.cluster import ClusterSpec, simulate_cluster
from plait.sim.form import Form, Routing
from plait.sim.prompts import prompt_of
from plait.sim.replica import ReplicaSpec

ROWS = poisson_trace(300.0, 60, Lengths(80, 0.8, 400), Lengths(25, 0.7, 100), seed=3)
SHARED = [
    Arrival(
        number * 0.02,
        Request(
            RequestId(f"r{number}"),
            prompt_of(90, [number % 3, 10 + number % 5, 20 + number], 32, number, VOCAB),
            SamplingParams(max_tokens=5 + number % 7, ignore_eos=True),
        ),
    )
    for number in range(40)
]
TIGHT = replace(SPEC, cache_bytes=1024 * TOKEN_BYTES)


@pytest.mark.parametrize("macro_steps", [True, False])
@pytest.mark.parametrize(
    ("load", "spec", "expected"),
    [
        ("lengths", ClusterSpec(SPEC), "57902dc7f5bcfde2f9b7fbc9cb99155b"),
        ("lengths", ClusterSpec(TIGHT, Form(2), Routing.ROUND_ROBIN), "942dc021cc3de397cf6e70babdaaa6cc"),
        ("shared", ClusterSpec(TIGHT), "7f67a5dd9d6c4344128a1db1008b5d4c"),
        ("shared", ClusterSpec(TIGHT, Form(2), Routing.PREFIX), "4125f2d812aa4b25b7c27265292dceff"),
        ("lengths", ClusterSpec(SPEC, Form(1, 1), link_bytes_per_s=1e7), "fb7103de19fad7077e1569f47047b095"),
    ],
)
def test_plans_are_what_they_were(load: str, spec: ClusterSpec, expected: str, macro_steps: bool) -> None:
    arrivals = arrivals_of(ROWS, VOCAB) if load == "lengths" else SHARED
    assert simulate_cluster(arrivals, replace(spec, macro_steps=macro_steps)).plan_hash == expected


def test_shared_prefixes_are_found() -> None:
    report = simulate_cluster(SHARED, ClusterSpec(SPEC))
    assert report.whole.prefix_hit_fraction == pytest.approx(0.6, abs=0.15)


def on_a_measured_machine(seed: int) -> ReplicaSpec:
    scatter = Scatter((0.05, 0.02, 0.4), (1.0, 1.6, 1.1), (-1e-4, 0.0, 5e-4), (1e-4, 1e-3), 1e-3)
    measured = Calibration("tiny", "-", "simulated", 1, constant_alpha(1.5), 1e-4, 1e-5, scatter=scatter)
    return replace(SPEC, hardware=replace(SPEC.hardware, calibration=measured), seed=seed)


def test_steps_that_depart_from_their_prices_do_so_alike_each_time_and_without_runs() -> None:
    """As long as the seed is the same."""
    load, spec = list(arrivals_of(ROWS, VOCAB)), ClusterSpec(on_a_measured_machine(3), Form(2))
    found = [simulate_cluster(load, replace(spec, macro_steps=runs)) for runs in (True, False, True)]
    assert found[0] == found[1] == found[2]
    other = simulate_cluster(load, replace(spec, replica=on_a_measured_machine(4)))
    assert other.whole.itl_s != found[0].whole.itl_s
    assert other.whole.output_tokens == found[0].whole.output_tokens
