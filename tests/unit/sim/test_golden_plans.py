"""Plan hashes of small loads, as they were when this was written. A change of a policy or of a price changes them, and has to say
so; nothing else may: no other process, machine or order of work.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.sim.kit import SPEC, TOKEN_BYTES, VOCAB

from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.sim.arrivals import Arrival, Lengths, arrivals_of, poisson_trace
from plait.sim.cluster import ClusterSpec, simulate_cluster
from plait.sim.form import Form, Routing
from plait.sim.prompts import block_prompt

ROWS = poisson_trace(300.0, 60, Lengths(80, 0.8, 400), Lengths(25, 0.7, 100), seed=3)
SHARED = [
    Arrival(
        number * 0.02,
        Request(
            RequestId(f"r{number}"),
            block_prompt([number % 3, 10 + number % 5, 20 + number], 90, VOCAB, block_tokens=32),
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
        ("lengths", ClusterSpec(SPEC), "762a8799afa44ab18028b3d9c88c8f4a"),
        ("lengths", ClusterSpec(TIGHT, Form(2), Routing.ROUND_ROBIN), "91d42649effd70e01f4937b88a96c5a5"),
        ("shared", ClusterSpec(TIGHT), "9fcee206b6c2a2e07942deac08046463"),
        ("shared", ClusterSpec(TIGHT, Form(2), Routing.PREFIX), "48daed5f36547e8f6ee8466f19bc80d4"),
        ("lengths", ClusterSpec(SPEC, Form(1, 1), link_bytes_per_s=1e7), "d6fedb08dd9a13e1288d7d2ed702d309"),
    ],
)
def test_plans_are_what_they_were(load: str, spec: ClusterSpec, expected: str, macro_steps: bool) -> None:
    arrivals = arrivals_of(ROWS, VOCAB) if load == "lengths" else SHARED
    assert simulate_cluster(arrivals, replace(spec, macro_steps=macro_steps)).plan_hash == expected


def test_shared_prefixes_are_found() -> None:
    report = simulate_cluster(SHARED, ClusterSpec(SPEC))
    assert report.whole.prefix_hit_fraction == pytest.approx(0.6, abs=0.15)
