"""Trials: one workload run on one cluster, with everything that a report says about it.

Owns which observers listen and what they make of the run. Prints nothing.
Invariant: equal clusters, workloads and targets give equal trials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plait.core.request import Slo
from plait.sim.attainment import Attainment, has_target
from plait.sim.cluster import ClusterReport, ClusterSpec, simulate_cluster
from plait.sim.curves import Latencies
from plait.sim.load import Load
from plait.sim.optimum import Optimum
from plait.sim.report import Outcome
from plait.sim.workload import Workload


@dataclass(frozen=True, slots=True)
class Trial:
    cluster: ClusterReport
    slo: Slo
    attainment_fraction: float | None
    """Part of all requests that met every target; None: there is no target."""
    goodput_per_s: float | None
    optimum_s: float
    """`plait.sim.optimum`, on all devices."""
    latencies: Latencies

    @property
    def optimum_fraction(self) -> float:
        makespan_s = self.cluster.whole.makespan_s
        return self.optimum_s / makespan_s if makespan_s > 0 else 0.0


def run_trial(
    spec: ClusterSpec,
    workload: Workload,
    slo: Slo,
    ended: Callable[[], None] = lambda: None,
    load: Load | None = None,
) -> Trial:
    """`ended` is called once for each sequence that ends. `load`: of the workload, other than as its requests come."""
    replica = spec.replica
    attainment, latencies = Attainment(slo), Latencies()
    optimum = Optimum(replica.program, replica.formats)

    def listen(outcome: Outcome) -> None:
        attainment(outcome)
        optimum(outcome)
        latencies(outcome)
        ended()

    load = load or workload.load(replica.program.vocab_size, slo, replica.max_model_tokens)
    report = simulate_cluster(load, spec, outcomes=listen)
    is_judged = has_target(slo)
    return Trial(
        report,
        slo,
        attainment.fraction(report.whole) if is_judged else None,
        attainment.per_s(report.whole) if is_judged else None,
        optimum.seconds(replica.hardware, spec.form.num_engines * replica.tensor_parallel),
        latencies,
    )
