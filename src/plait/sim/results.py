"""Results: a trial as the JSON object that docs/sim.md and docs/sim-report-1.schema.json define.

Owns the names of its fields and their version. A field is never renamed or given another meaning within a version; new
ones may come.
Invariant: every number is finite, and null stands for what no request had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from plait.core.request import Slo
from plait.sim.figures import EngineReport
from plait.sim.samples import Distribution
from plait.sim.trial import Trial

SCHEMA = "plait.sim"
SCHEMA_VERSION = 1


def result_object(
    trial: Trial, inputs: Mapping[str, object], seed: int, calibrated_on: str | None = None
) -> dict[str, object]:
    """`inputs`: what was simulated, as `plait.cli` names it."""
    cluster, report = trial.cluster, trial.cluster.whole
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "evidence": "simulated",
        "calibrated_on": calibrated_on,
        "plan_hash": cluster.plan_hash,
        "seed": seed,
        "inputs": {**inputs, "slo": slo_object(trial.slo)},
        "requests": {
            "finished": report.num_finished,
            "failed": report.num_failed,
            "refused": report.num_refused,
            "overloaded": report.num_overloaded,
            "preemptions": report.num_preemptions,
        },
        "tokens": {
            "prompt": report.prompt_tokens,
            "output": report.output_tokens,
            "computed": report.computed_tokens,
        },
        "makespan_s": report.makespan_s,
        "queue_s": _distribution(report.queue_s),
        "ttft_s": _distribution(report.ttft_s),
        "itl_s": _distribution(report.itl_s),
        "tpot_s": _distribution(report.tpot_s),
        "e2e_s": _distribution(report.e2e_s),
        "throughput": {
            "requests_per_s": report.requests_per_s,
            "output_tokens_per_s": report.output_tokens_per_s,
            "total_tokens_per_s": report.total_tokens_per_s,
        },
        "goodput_requests_per_s": trial.goodput_per_s,
        "slo_attainment_fraction": trial.attainment_fraction,
        "steps": report.num_steps,
        "decode_batch_mean": cluster.decode_batch_mean,
        "busy_fraction": report.busy_fraction / max(1, len(cluster.engines)),
        "prefix_hit_fraction": report.prefix_hit_fraction,
        "kv": _memory(cluster.engines),
        "share": {"prefill": cluster.prefill_share},
        "optimum_s": trial.optimum_s,
        "optimum_fraction": trial.optimum_fraction,
        "engines": [_engine(engine) for engine in cluster.engines],
    }


def slo_object(slo: Slo) -> dict[str, object]:
    return {"ttft_s": slo.ttft_s, "itl_s": slo.itl_s, "tpot_s": slo.tpot_s}


def _distribution(found: Distribution | None) -> dict[str, object] | None:
    return None if found is None else asdict(found)


def _memory(engines: tuple[EngineReport, ...]) -> dict[str, object]:
    """Means of all pools, by the time that their engines were at work."""
    busy_s = sum(engine.busy_s for engine in engines)

    def mean(figures: list[float]) -> float:
        weighted = sum(figure * engine.busy_s for figure, engine in zip(figures, engines, strict=True))
        return weighted / busy_s if busy_s > 0 else 0.0

    memories = [engine.memory for engine in engines]
    return {
        "total_bytes": sum(memory.total_bytes for memory in memories),
        "used_fraction": mean([memory.used_fraction for memory in memories]),
        "most_used_fraction": max((memory.most_used_fraction for memory in memories), default=0.0),
        "waste_fraction": mean([memory.waste_fraction for memory in memories]),
        "evictions": sum(memory.num_evictions for memory in memories),
    }


def _engine(engine: EngineReport) -> dict[str, object]:
    return {
        "role": str(engine.role),
        "steps": engine.num_steps,
        "busy_s": engine.busy_s,
        "computed_tokens": engine.computed_tokens,
        "decode_batch_mean": engine.decode_batch_mean,
        "share": {"prefill": engine.prefill_share},
        "kv": _memory((engine,)),
        "plan_hash": engine.plan_hash,
    }
