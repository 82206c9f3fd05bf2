"""BlendServe's four traces in one order after another, as large as one likes: loads alone, no engine.

    .venv/bin/python bench/blend_orders.py [400000] [60] [#1,#3]

Requests, gigabytes of cache and traces; about 40 s of processor time for a trace of 400,000. `parts` splits memory and
does not bound what a step computes, as in the paper.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from plait.cost.interleaved import INTERFERENCE
from plait.reproduce.cases.blendserve_densities import MIXES
from plait.reproduce.cases.blendserve_orders import machine, mix_of
from plait.reproduce.models import LLAMA_8B_ON_A100
from plait.reproduce.offline_jobs import draw_job
from plait.sched.blend.feeds import JobOrder, Ordering


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    memory = 1e9 * float(sys.argv[2]) if len(sys.argv) > 2 else 60e9
    for name in sys.argv[3].split(",") if len(sys.argv) > 3 else MIXES:
        density, sharing, *_ = MIXES[name]
        job = draw_job(LLAMA_8B_ON_A100, mix_of(density, sharing, count))
        best = job.optimum_s(INTERFERENCE)
        print(f"{name}: {len(job.outputs):,} requests, practical optimum {best:,.0f} s")
        blend = Ordering(JobOrder.BLEND, job.lives, memory)
        runs = [("blend", blend, True), ("parts", blend, False)]
        runs += [(order.value, replace(blend, order=order), True) for order in (JobOrder.DFS, JobOrder.RANDOM)]
        for order, ordering, tells in runs:
            began = time.process_time()
            run = job.run(ordering, machine(memory, tells=tells))
            print(
                f"  {order:<8}{run.seconds:>10,.0f} s  {best / run.seconds:>5.1%} of it  {run.steps:>9,} steps  "
                f"{run.found_tokens / job.num_shareable:>6.1%} of sharing  ({time.process_time() - began:.1f} s)"
            )


if __name__ == "__main__":
    main()
