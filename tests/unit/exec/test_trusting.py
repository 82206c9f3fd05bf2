"""An executor that takes plans as sound gives what one that checks them gives."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.sim.kit import SPEC, TOKEN_BYTES, VOCAB

from plait.sim.arrivals import Lengths, arrivals_of, poisson_trace
from plait.sim.cluster import ClusterSpec, simulate_cluster
from plait.sim.form import Form


def test_a_trusting_executor_gives_what_a_checking_one_gives() -> None:
    rows = poisson_trace(400.0, 80, Lengths(60, 0.8, 500), Lengths(20, 0.7, 100), seed=5)
    tight = replace(SPEC, cache_bytes=1500 * TOKEN_BYTES)
    made = ClusterSpec(tight, Form(2, 1), link_bytes_per_s=1e7)
    checked = simulate_cluster(arrivals_of(rows, VOCAB), made)
    trusted = simulate_cluster(arrivals_of(rows, VOCAB), replace(made, replica=replace(tight, check_plans=False)))
    assert trusted == checked
